#include "outputs.h"

#include <nanobind/ndarray.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "casters.h"  // IWYU pragma: keep (conversions)
#include "quire/chat.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/output.h"
#include "quire/types.h"
#include "text.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

// Returns a member as Python holds it.
template <class Value>
nb::object to_python(const Value& value) {
  return nb::cast(value);
}
nb::object to_python(const std::string& text) { return to_text(text); }
nb::object to_python(MissingIfEmpty value) { return or_none(value.text); }
nb::object to_python(RequestId id) { return nb::cast(id.value); }
nb::object to_python(FinishReason reason) { return nb::str(finish_reason_name(reason)); }
nb::object to_python(ReuseGrade grade) { return nb::str(reuse_grade_name(grade)); }
nb::object to_python(const std::optional<FinishReason>& reason) {
  return reason ? to_python(*reason) : nb::none();
}
nb::object to_python(const std::vector<TokenLogprobs>& logprobs) {
  nb::list list;
  for (const TokenLogprobs& token : logprobs) {
    nb::dict dict;
    for (const auto& [id, logprob] : token) {
      dict[nb::int_(id)] = logprob;
    }
    list.append(dict);
  }
  return logprobs.empty() ? nb::none() : nb::object(list);
}
nb::object to_python(const StoppedBy& by) {
  switch (by.kind) {
    case StoppedBy::Kind::kEos:
      return nb::str("eos");
    case StoppedBy::Kind::kStopId:
      return nb::int_(by.id);
    case StoppedBy::Kind::kStopString:
      return to_text(by.text);
    case StoppedBy::Kind::kLength:
      return nb::str("length");
    case StoppedBy::Kind::kNothing:
      break;
  }
  return nb::none();
}
nb::object to_python(const std::vector<ToolCall>& calls) {
  return list_of(calls, [](const ToolCall& call) {
    nb::dict dict;
    dict["id"] = to_text(call.id);
    dict["name"] = to_text(call.name);
    dict["arguments"] = to_text(call.arguments_json);
    return dict;
  });
}
nb::object to_python(const std::vector<ReusePart>& parts);
nb::object to_python(const std::vector<GenerationOutput>& outputs);
nb::object to_python(const Usage& usage);
nb::object to_python(const ReuseReport& reuse);
nb::object to_python(const Timing& timing);

template <class Output>
nb::dict members_of(const Output& output) {
  nb::dict dict;
  visit_members(output,
                [&dict](const char* name, const auto& value) { dict[name] = to_python(value); });
  return dict;
}

// Returns a list of dicts; None for an empty one.
template <class Output>
nb::object dicts_of(const std::vector<Output>& outputs) {
  nb::list list;
  for (const Output& output : outputs) {
    list.append(members_of(output));
  }
  return outputs.empty() ? nb::none() : nb::object(list);
}

nb::object to_python(const std::vector<ReusePart>& parts) { return dicts_of(parts); }
nb::object to_python(const std::vector<GenerationOutput>& outputs) { return dicts_of(outputs); }
nb::object to_python(const Usage& usage) { return members_of(usage); }
nb::object to_python(const ReuseReport& reuse) { return members_of(reuse); }
nb::object to_python(const Timing& timing) { return members_of(timing); }

}  // namespace

nb::object or_none(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::cast(text));
}

nb::dict to_dict(const GenerationOutput& output) { return members_of(output); }
nb::dict to_dict(const ContextManager::Answer& answer) { return members_of(answer); }
nb::dict to_dict(const Delta& delta) { return members_of(delta); }

nb::list to_list(const std::vector<ReusePart>& parts) {
  return list_of(parts, [](const ReusePart& part) { return members_of(part); });
}

nb::list to_list(const std::vector<CachedPart>& parts) {
  return list_of(parts, [](const CachedPart& part) {
    nb::dict dict;
    dict["position"] = part.position;
    dict["tokens"] = part.tokens;
    dict["num_salts"] = part.num_salts;
    return dict;
  });
}

nb::object to_array(std::vector<float> values, std::initializer_list<std::size_t> shape) {
  auto kept = std::make_unique<std::vector<float>>(std::move(values));
  const nb::capsule owner(
      kept.get(), [](void* data) noexcept { delete static_cast<std::vector<float>*>(data); });
  return nb::cast(nb::ndarray<nb::numpy, float>(kept.release()->data(), shape, owner));
}

namespace {

nb::dict to_dict(const LayerErrors& errors) {
  nb::dict dict;
  dict["mean"] = errors.mean;
  dict["max"] = errors.max;
  dict["layers"] = errors.layers;
  return dict;
}

}  // namespace

nb::dict to_dict(const KVAccuracy& accuracy) {
  nb::dict dict;
  dict["kv_dtype"] = accuracy.kv_dtype;
  dict["reference"] = accuracy.reference;
  dict["num_tokens"] = accuracy.num_tokens;
  dict["bits_per_value"] = accuracy.bits_per_value;
  dict["ratio_vs_bf16"] = accuracy.ratio_vs_bf16;
  dict["ratio_vs_fp32"] = accuracy.ratio_vs_fp32;
  dict["key_error"] = to_dict(accuracy.key_error);
  dict["value_error"] = to_dict(accuracy.value_error);
  dict["attention_kl"] = accuracy.attention_kl;
  dict["logit_kl_mean"] = accuracy.logit_kl_mean;
  dict["logit_kl_p99"] = accuracy.logit_kl_p99;
  dict["same_best"] = accuracy.same_best;
  dict["perplexity"] = accuracy.perplexity;
  dict["perplexity_delta"] = accuracy.perplexity_delta;
  return dict;
}

nb::dict to_dict(ForwardOutput output) {
  const auto rows = static_cast<std::size_t>(output.rows);
  const auto vocab = static_cast<std::size_t>(output.vocab_size);
  nb::dict dict;
  dict["request_id"] = output.request_id.value;
  dict["logits"] = to_array(std::move(output.logits), {rows, vocab});
  dict["cached_tokens"] = output.cached_tokens;
  return dict;
}

}  // namespace quire::python
