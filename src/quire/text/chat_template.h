// Chat templates: what they use of jinja2 (README.md). Their output knows where every span came
// from. So user text can never become a special token, and prompts can be cut into chunks.
//
// Thread rule: immutable after parsing; any number of threads may call render.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text {

// The origin of a span of a rendered prompt.
struct Provenance {
  static constexpr std::int32_t kTemplate = -1;  // literal text or values of the template itself
  static constexpr std::int32_t kArgument = -2;  // a template variable other than messages
  std::int32_t source = kTemplate;               // else: index into `messages`
  // Says that it is a word that the caller gives to the template, not a text. Such are a message's
  // role, the type of a part of its content, a variable that is a string or a number.
  bool is_name = false;
  friend bool operator==(Provenance, Provenance) = default;
};

struct RenderedSpan {
  std::string text;
  Provenance from;
};

// A rendered prompt; joined texts are what jinja2 gives. Neighbours have different provenance, no
// span is empty.
struct RenderedPrompt {
  std::vector<RenderedSpan> spans;
  [[nodiscard]] std::string text() const;
};

struct RenderOptions {
  // Time that strftime_now shows; the local time of the machine when not given.
  std::optional<std::chrono::local_seconds> now = {};
  // Variables whose text counts as the template's own, because they come with the model:
  // {"bos_token", "eos_token"}. Borrowed.
  std::vector<std::string_view> trusted_variables = {};
  // Rendering ends with kInvalidArgument beyond these. A step is a node evaluated, or an item or 64
  // bytes touched; live memory is bounded by four times the output.
  std::int64_t max_steps = 20'000'000;
  base::WorkMeter* meter = nullptr;  // counts the work, too, if there is one; borrowed
  std::size_t max_output_bytes = std::size_t{64} << 20;
};

class ChatTemplate {
 public:
  // Parses a template. kInvalidArgument with line and what was expected; kUnsupported with line and
  // the name of what is not supported. Environment as in transformers: trim_blocks, lstrip_blocks,
  // loopcontrols, sandbox. An unknown filter or test inside of an `if` is refused by render, and
  // only when it is reached, as in jinja2.
  [[nodiscard]] static Result<ChatTemplate> parse(std::string_view source);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Renders the template. `variables` is a JSON object: messages, add_generation_prompt, bos_token,
  // eos_token, tools, documents, ... Strings and keys inside `messages` keep the index of their
  // message as provenance, through every operation that moves, cuts or changes text. Numbers keep
  // it when they are printed as they are. Text that operations add (quotes of |tojson, separators
  // of |join) has the provenance of where it was written. kInvalidArgument with the line and the
  // text of raise_exception, for ill-formed UTF-8, and beyond the bounds of `options`.
  [[nodiscard]] Result<RenderedPrompt> render(base::JsonView variables,
                                              const RenderOptions& options = {}) const;

  [[nodiscard]] const std::string& source() const;
  // Returns the variables that some path through the template reads, in order of the alphabet.
  [[nodiscard]] std::vector<std::string> variables() const;
  // Returns the names and strings that stand in tags of the template, in order of the alphabet.
  [[nodiscard]] std::vector<std::string> words() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Fills in what transformers gives every template: the tokenizer's named tokens, whose text then
// counts as the template's own, and `tools` and `documents`, none. Variables that are there already
// stay.
void add_model_variables(const Tokenizer& tokenizer, base::Json& variables, RenderOptions& options);

// Returns the ids of a rendered prompt: those of its text, but that a special token counts only as
// Tokenizer::encode_spans says. Errors as there.
[[nodiscard]] Result<std::vector<TokenId>> encode_prompt(const Tokenizer& tokenizer,
                                                         const RenderedPrompt& prompt,
                                                         base::WorkMeter* meter = nullptr);

}  // namespace quire::text
