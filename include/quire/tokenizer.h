// Tokenizer: text to ids and back as the model's own files define it, and its chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/export.h"
#include "quire/interrupt.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

// A handle; copies share one immutable tokenizer, which outlives the LLM it came from. Any number
// of threads may call it.
class QUIRE_API Tokenizer {
 public:
  // Loads only the tokenizer of a model folder or GGUF file: no weights are read. Errors as
  // LLM::open.
  [[nodiscard]] static Result<Tokenizer> open(const std::string& model);

  // Special tokens written in `text` become their ids, as in the original libraries. As all that
  // works on text, kInvalidArgument naming what ran out when the tokenizer's file asks for endless
  // work, and kCancelled soon after `interrupted` says so.
  [[nodiscard]] Result<std::vector<TokenId>> encode(std::string_view text,
                                                    bool add_special_tokens = true,
                                                    const Interrupt& interrupted = {}) const;
  // Ids of no token, as those of a vocabulary's padding, give no text. kInvalidArgument naming the
  // first id that the model has no row for.
  [[nodiscard]] Result<std::string> decode(std::span<const TokenId> ids,
                                           bool skip_special_tokens = true,
                                           const Interrupt& interrupted = {}) const;
  // The vocabulary's own spelling of an id.
  [[nodiscard]] Result<std::string> id_to_token(TokenId id) const;
  // The bytes that an id stands for in a text, exactly: parts of characters too. Of a special token
  // its spelling. kInvalidArgument as above.
  [[nodiscard]] Result<std::string> token_bytes(TokenId id) const;
  [[nodiscard]] std::optional<TokenId> token_to_id(std::string_view token) const;

  // `messages_json` is a JSON list of {"role", "content", ...}; `variables_json` an object of
  // further template variables (tools, documents, enable_thinking, ...). In apply_chat_template a
  // special token counts where the template writes it, also around a role or a plain variable; text
  // of messages never becomes one. render_chat_template gives the plain prompt text. kUnsupported
  // when the model has no template, kInvalidArgument with the template's own message.
  [[nodiscard]] Result<std::vector<TokenId>> apply_chat_template(
      std::string_view messages_json, bool add_generation_prompt = true,
      std::string_view variables_json = "{}", const Interrupt& interrupted = {}) const;
  [[nodiscard]] Result<std::string> render_chat_template(std::string_view messages_json,
                                                         bool add_generation_prompt = true,
                                                         std::string_view variables_json = "{}",
                                                         const Interrupt& interrupted = {}) const;
  [[nodiscard]] bool has_chat_template() const;
  // Returns the variables that the chat template reads, in order of the alphabet; `with_tools`: of
  // the template that is used when there are tools. Empty without one.
  [[nodiscard]] std::vector<std::string> template_variables(bool with_tools = false) const;

  [[nodiscard]] std::int32_t vocab_size() const;  // highest id + 1
  [[nodiscard]] std::optional<TokenId> bos_token_id() const;
  // The same if prompts begin with it: as the chat template writes them, without one as encode().
  [[nodiscard]] std::optional<TokenId> leading_bos_token_id() const;
  [[nodiscard]] std::optional<TokenId> eos_token_id() const;
  [[nodiscard]] std::optional<TokenId> pad_token_id() const;
  [[nodiscard]] std::optional<TokenId> unk_token_id() const;

  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);  // for the library itself

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace quire
