// Shares fields and frames of streams between the two generating endpoints of OpenAI.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/extension.h"
#include "api/fields.h"
#include "api/generation.h"
#include "api/render.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::server {

// Returns the rules that chat and completions share: `model`, `n`, `stream`, `stream_options`, ...
[[nodiscard]] std::span<const FieldRule> openai_rules();

// Fields of an OpenAI body beside its prompt. Plain data.
struct OpenAIRequest {
  SamplingParams sampling = {};
  Extension extension = {};
  std::int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool timings_per_token = false;
  // Likeliest tokens to show for each token; nullopt: no log probabilities.
  std::optional<std::int64_t> top_logprobs = {};
  // Limit of tokens to generate, if the body sets it.
  std::optional<std::int64_t> max_tokens = {};
  // Tokens of all prompts, once they are known, for usage in the middle of a stream.
  std::int64_t prompt_tokens = 0;
};

// Reads the fields of openai_rules(), sampling_rules() and extension_rules().
// Errors: 400, and 404 for another model.
[[nodiscard]] Checked<OpenAIRequest> read_openai(const Services& services, const Call& call);

// Writes bodies and chunks that chat and completions have in common.
class OpenAIRenderer : public Renderer {
 public:
  OpenAIRenderer(Services& services, const OpenAIRequest& request, std::string_view id_prefix,
                 const char* object, const char* chunk_object);

  void delta(std::string& out, std::size_t index, const Delta& delta) final;
  void finish(std::string& out, std::size_t index, const GenerationOutput& output,
              const RunReport* report) final;
  void end(std::string& out, const RunReport& report) final;
  [[nodiscard]] json::value body(const std::vector<ChoiceState>& choices,
                                 const RunReport& report) final;

 protected:
  // Appends the members of a choice behind `"index":N`: a piece of text, and logprobs.
  virtual void append_choice(std::string& out, std::size_t index, const Delta& delta) = 0;
  // Appends the members of the last chunk of a choice, without finish_reason.
  virtual void append_last(std::string& out, std::size_t index, const GenerationOutput& output) = 0;
  // Appends whole chunks before the first delta of a choice.
  virtual void append_first(std::string& out, std::size_t index) = 0;
  // Appends members behind `choices` of the very last chunk.
  virtual void append_top(std::string& out) { (void)out; }
  // Sets the members of a choice in a body.
  virtual void set_choice(json::object& choice, std::size_t index,
                          const GenerationOutput& output) = 0;
  // Sets further members of a body.
  virtual void set_body(json::object& body, const std::vector<ChoiceState>& choices) = 0;
  // Appends the chunks of a delta: one, unless nothing of it shows.
  virtual void append_delta(std::string& out, std::size_t index, const Delta& delta);
  // Appends chunks for what was held back of a choice, at its end.
  virtual void append_rest(std::string& out, std::size_t index) { (void)out, (void)index; }
  // Returns why a choice ended, after append_last() or set_choice().
  [[nodiscard]] virtual const char* finish_reason(std::size_t index,
                                                  const GenerationOutput& output) const;
  // Returns how many generated tokens were thinking, once all choices have ended.
  [[nodiscard]] virtual std::int64_t reasoning_tokens() const { return 0; }

  // Returns whether ids of tokens show beside their text.
  [[nodiscard]] bool shows_ids() const {
    return request_.top_logprobs.has_value() || request_.return_token_ids;
  }
  void open_chunk(std::string& out, std::size_t index) const;
  void close_chunk(std::string& out, const RunReport* report);

  [[nodiscard]] const OpenAIRequest& request() const { return request_; }
  [[nodiscard]] Services& services() const { return services_; }
  [[nodiscard]] TokenPieces& pieces() const;

 private:
  struct Progress {
    bool begun = false;
    std::int64_t tokens = 0;
  };
  // Returns the progress of a choice, after its first chunks were sent.
  Progress& begin_choice(std::string& out, std::size_t index);
  [[nodiscard]] json::object head(const char* object) const;
  [[nodiscard]] std::int64_t tokens_so_far() const;
  [[nodiscard]] json::object usage_so_far() const;
  void append_timings(std::string& out);

  Services& services_;
  OpenAIRequest request_;
  std::string id_;
  std::int64_t created_;
  const char* object_;
  std::string prefix_;  // JSON of a chunk, up to the list of choices
  std::vector<Progress> progress_;
  std::optional<Loop::Clock::time_point> first_token_;
};

// Makes the plan for prompts of ids, with lengths of outputs and salts. Sets
// `request.prompt_tokens`.
[[nodiscard]] GenerationPlan plan_of(const Services& services, const Call& call,
                                     OpenAIRequest& request,
                                     std::vector<std::vector<TokenId>> prompts, const char* path,
                                     std::int64_t default_tokens);

}  // namespace quire::server
