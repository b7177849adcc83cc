// The fields of options and outputs, each written down once. Command line, Python, settings and
// JSON take names, order and help from here; which values a field may have, validate() says.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/context.h"
#include "quire/export.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {

// One field of the struct `Owner`; `Values` are the types that its fields have. Use it through
// std::visit: `owner.*member` is the value.
template <class Owner, class... Values>
struct Field {
  const char* name;  // in Python and JSON; the command line writes "-" for "_"
  std::variant<Values Owner::*...> member;
  const char* help;  // one line; of a bool, the effect of the value that is not the default
};

using SamplingField = Field<SamplingParams, bool, double, std::int32_t, std::optional<std::int32_t>,
                            std::optional<std::uint64_t>, std::vector<std::string>,
                            std::vector<TokenId>, std::vector<std::pair<TokenId, double>>>;
using LLMField = Field<LLMOptions, bool, std::int32_t, std::int64_t, std::uint64_t, std::string>;

// Returns all fields, in the order of the struct. Static memory.
[[nodiscard]] QUIRE_API std::span<const SamplingField> sampling_fields();
// Returns all fields but `progress`, which no text can give. A std::int64_t holds bytes.
[[nodiscard]] QUIRE_API std::span<const LLMField> llm_fields();

// A text of an output that may be missing, which "" stands for.
struct MissingIfEmpty {
  const std::string& text;
};

// Calls visit(name, value) for each member of an output, in the order of every surface. An empty
// list of logprobs and an empty optional stand for what is missing.
template <class Visit>
void visit_members(const Usage& usage, const Visit& visit) {
  visit("prompt_tokens", usage.prompt_tokens);
  visit("cached_tokens", usage.cached_tokens);
  visit("completion_tokens", usage.completion_tokens);
}

template <class Visit>
void visit_members(const ReuseReport& reuse, const Visit& visit) {
  visit("grade", reuse.grade);
  visit("sources", reuse.sources);
  visit("recompute_share", reuse.recompute_share);
}

template <class Visit>
void visit_members(const Timing& timing, const Visit& visit) {
  visit("queue_seconds", timing.queue_seconds);
  visit("first_token_seconds", timing.first_token_seconds);
  visit("total_seconds", timing.total_seconds);
}

template <class Visit>
void visit_members(const GenerationOutput& output, const Visit& visit) {
  visit("request_id", output.request_id);
  visit("text", output.text);
  visit("token_ids", output.token_ids);
  visit("prompt_token_ids", output.prompt_token_ids);
  visit("finish_reason", output.finish_reason);
  visit("usage", output.usage);
  visit("reuse", output.reuse);
  visit("logprobs", output.logprobs);
  visit("timing", output.timing);
}

template <class Visit>
void visit_members(const ContextManager::Answer& answer, const Visit& visit) {
  visit_members(answer.output, visit);
  visit("user_id", MissingIfEmpty{answer.user_id});
  visit("output_id", answer.output_id);
}

template <class Visit>
void visit_members(const Delta& delta, const Visit& visit) {
  visit("text", delta.text);
  visit("token_ids", delta.token_ids);
  visit("logprobs", delta.logprobs);
  visit("finish_reason",
        delta.finished ? std::optional<FinishReason>(delta.finish_reason) : std::nullopt);
}

template <class Visit>
void visit_members(const ReusePart& part, const Visit& visit) {
  visit("chunk_type", MissingIfEmpty{part.chunk_type});
  visit("chunk_id", MissingIfEmpty{part.chunk_id});
  visit("position", part.position);
  visit("tokens", part.tokens);
  visit("hit", part.hit);
  visit("reason", part.reason);
}

// Returns JSON without blanks, in UTF-8: other bytes become U+FFFD. A missing optional or list of
// logprobs is left out; a logit bias and the logprobs of a token are objects of ids. An infinite
// number becomes the largest finite one of its sign, and NaN null.
[[nodiscard]] QUIRE_API std::string to_json(const SamplingParams& params);
[[nodiscard]] QUIRE_API std::string to_json(const Usage& usage);
[[nodiscard]] QUIRE_API std::string to_json(const ReuseReport& reuse);
[[nodiscard]] QUIRE_API std::string to_json(const Timing& timing);
[[nodiscard]] QUIRE_API std::string to_json(const GenerationOutput& output);
[[nodiscard]] QUIRE_API std::string to_json(const ContextManager::Answer& answer);
[[nodiscard]] QUIRE_API std::string to_json(const Delta& delta);
[[nodiscard]] QUIRE_API std::string to_json(std::span<const ReusePart> parts);

// Reads an object as to_json writes it; a field that it leaves out or gives as null is as by
// default, and `stop` may be one text. kInvalidArgument for bad JSON, for a member that is no field
// or has a value of another type, and for what validate() refuses.
[[nodiscard]] QUIRE_API Result<SamplingParams> sampling_from_json(std::string_view json);

}  // namespace quire
