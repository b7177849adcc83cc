// Fields of options and outputs, each written down once. The command line, Python, settings and
// JSON take names, order and help from here. validate() of each struct says which values are
// allowed.
//
// Threads: every function here may be called from any thread. Nothing here waits for an engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/chat.h"
#include "quire/context_types.h"
#include "quire/export.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {

// One field of the struct `Owner`. `Values` are the types that fields of `Owner` have.
// std::visit of `member` gives a pointer to member: `owner.*member` is the value. This lists all
// fields with their values:
//
//   for (const SamplingField& field : sampling_fields()) {
//     std::visit([&](auto member) { show(field.name, params.*member); }, field.member);
//   }
template <class Owner, class... Values>
struct Field {
  // Name in Python and JSON. The command line writes "-" for "_".
  const char* name;
  std::variant<Values Owner::*...> member;
  // One line of help. For a bool: the effect of the value that is not the default.
  const char* help;
};

// A field of SamplingParams.
using SamplingField = Field<SamplingParams, bool, double, std::int32_t, std::optional<std::int32_t>,
                            std::optional<std::uint64_t>, std::vector<std::string>,
                            std::vector<TokenId>, std::vector<std::pair<TokenId, double>>>;
// A field of LLMOptions. A std::int64_t holds bytes.
using LLMField =
    Field<LLMOptions, bool, std::int32_t, std::int64_t, std::uint64_t, double, std::string>;

// Returns all fields of SamplingParams, in the order of the struct. Static memory.
[[nodiscard]] QUIRE_API std::span<const SamplingField> sampling_fields();
// Returns all fields of LLMOptions but the functions, which no text can give, in the order of the
// struct. Static memory.
[[nodiscard]] QUIRE_API std::span<const LLMField> llm_fields();

// A text of an output for which "" means that it is missing. to_json() writes such a text as "".
// Borrows the text: a visitor copies it to keep it.
struct MissingIfEmpty {
  const std::string& text;
};

// Each visit_members() calls visit(name, value) for every member of an output. All surfaces show
// the members in this order.
//
// `visit` is a callable for every type of value that the comments below name. `name` is static
// memory; `value` refers to the output.
// An empty list of logprobs, parts or outputs and an empty optional mean that the value is missing;
// so does a StoppedBy of kind kNothing.

// Visits the counts of a Usage, a std::int64_t each.
template <class Visit>
void visit_members(const Usage& usage, const Visit& visit) {
  visit("prompt_tokens", usage.prompt_tokens);
  visit("cached_tokens", usage.cached_tokens);
  visit("completion_tokens", usage.completion_tokens);
  visit("drafted_tokens", usage.drafted_tokens);
  visit("accepted_tokens", usage.accepted_tokens);
}

// Visits the members of a ReuseReport: a ReuseGrade, the list of pairs of source and tokens, and a
// double.
template <class Visit>
void visit_members(const ReuseReport& reuse, const Visit& visit) {
  visit("grade", reuse.grade);
  visit("sources", reuse.sources);
  visit("recompute_share", reuse.recompute_share);
}

// Visits the members of a Timing: seconds, a double each.
template <class Visit>
void visit_members(const Timing& timing, const Visit& visit) {
  visit("queue_seconds", timing.queue_seconds);
  visit("first_token_seconds", timing.first_token_seconds);
  visit("total_seconds", timing.total_seconds);
}

// Visits the parts of a chat's answer: two std::string and a list of ToolCall. Visits nothing where
// they are not given.
template <class Visit>
void visit_members(const std::optional<AnswerParts>& answer, const Visit& visit) {
  if (answer) {
    visit("thinking", answer->thinking);
    visit("content", answer->content);
    visit("tool_calls", answer->tool_calls);
  }
}

// Visits the members of a GenerationOutput, with those of its answer's parts behind the text.
// Usage, ReuseReport and Timing come as one value each, which visit_members() takes in turn.
// The other values are a RequestId, a std::string, two lists of TokenId, a FinishReason, a
// StoppedBy and lists of ReusePart, TokenLogprobs and GenerationOutput.
template <class Visit>
void visit_members(const GenerationOutput& output, const Visit& visit) {
  visit("request_id", output.request_id);
  visit("text", output.text);
  visit_members(output.answer, visit);
  visit("token_ids", output.token_ids);
  visit("prompt_token_ids", output.prompt_token_ids);
  visit("finish_reason", output.finish_reason);
  visit("stopped_by", output.stopped_by);
  visit("usage", output.usage);
  visit("reuse", output.reuse);
  visit("parts", output.parts);
  visit("logprobs", output.logprobs);
  visit("timing", output.timing);
  visit("outputs", output.outputs);
}

// Visits the members of an answer's output, then the ids of its items.
// user_id is a MissingIfEmpty, output_id a std::string.
template <class Visit>
void visit_members(const ContextAnswer& answer, const Visit& visit) {
  visit_members(answer.output, visit);
  visit("user_id", MissingIfEmpty{answer.user_id});
  visit("output_id", answer.output_id);
}

// Visits the members of a Delta, with those of its answer's parts behind the text.
// finish_reason is a std::optional<FinishReason>, which is empty until the last delta.
template <class Visit>
void visit_members(const Delta& delta, const Visit& visit) {
  visit("text", delta.text);
  visit_members(delta.answer, visit);
  visit("token_ids", delta.token_ids);
  visit("logprobs", delta.logprobs);
  visit("finish_reason",
        delta.finished ? std::optional<FinishReason>(delta.finish_reason) : std::nullopt);
}

// Visits the members of a ReusePart.
// chunk_type and chunk_id are a MissingIfEmpty each: a plain prompt has neither.
// The other values are two std::int64_t, a bool and a std::string. A plain prompt and a chunk have
// three std::int64_t behind them, and a chunk a kv_dtype, which is a std::string. So is `layers`,
// of a chunk where some layers carry a state.
template <class Visit>
void visit_members(const ReusePart& part, const Visit& visit) {
  visit("chunk_type", MissingIfEmpty{part.chunk_type});
  visit("chunk_id", MissingIfEmpty{part.chunk_id});
  visit("position", part.position);
  visit("tokens", part.tokens);
  visit("hit", part.hit);
  visit("reason", part.reason);
  if (part.matched_tokens && part.usable_tokens && part.replayed_tokens) {
    visit("matched_tokens", *part.matched_tokens);
    visit("usable_tokens", *part.usable_tokens);
    visit("replayed_tokens", *part.replayed_tokens);
  }
  if (!part.kv_dtype.empty()) {
    visit("kv_dtype", part.kv_dtype);
  }
  if (!part.layers.empty()) {
    visit("layers", part.layers);
  }
}

// Each to_json() returns JSON without blanks, which the caller owns. O(size).
// Errors: kOutOfBlocks when the machine refuses memory.
// The text is UTF-8: other bytes become U+FFFD.
// A missing value is left out. A StoppedBy is "eos", "length", the stop id or the stop string.
// A logit bias and the logprobs of a token are JSON objects whose keys are ids.
// An infinite number becomes the largest finite one of its sign, and NaN becomes null.

// Returns a JSON object with the names and the order of sampling_fields().
// sampling_from_json() reads it back.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const SamplingParams& params);
// Returns a JSON object of three token counts:
// {"prompt_tokens":96,"cached_tokens":64,"completion_tokens":8}.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const Usage& usage);
// Returns a JSON object. `grade` is a name of reuse_grade_name(). `sources` is a list of pairs:
// [["prefix_cache",64]].
[[nodiscard]] QUIRE_API Result<std::string> to_json(const ReuseReport& reuse);
// Returns a JSON object of seconds.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const Timing& timing);
// Returns a JSON object with one each for `usage`, `reuse` and `timing`.
// `request_id` is a number, `finish_reason` a name of finish_reason_name().
[[nodiscard]] QUIRE_API Result<std::string> to_json(const GenerationOutput& output);
// Returns the object of the answer's output, with `user_id` and `output_id` as further members.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const ContextAnswer& answer);
// Returns a JSON object with `text` and `token_ids`, and `logprobs` where there are some.
// finish_reason is left out until the last delta.
[[nodiscard]] QUIRE_API Result<std::string> to_json(const Delta& delta);
// Returns a list of JSON objects, one per part.
[[nodiscard]] QUIRE_API Result<std::string> to_json(std::span<const ReusePart> parts);

// Reads a JSON object as to_json() writes it. A field that is left out or null has its default.
// `stop` may be one text, and an integer may be written as 1.0. Errors: kInvalidArgument for bad
// JSON, for a member that is no field and for a value of another type. kInvalidArgument for params
// that SamplingParams::validate refuses.
[[nodiscard]] QUIRE_API Result<SamplingParams> sampling_from_json(std::string_view json);

}  // namespace quire
