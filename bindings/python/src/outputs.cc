#include "outputs.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "quire/output.h"
#include "text.h"

namespace nb = nanobind;

namespace quire::python {
namespace {

nb::list to_list(const std::vector<TokenLogprobs>& logprobs) {
  nb::list list;
  for (const TokenLogprobs& token : logprobs) {
    nb::dict dict;
    for (const auto& [id, logprob] : token) {
      dict[nb::int_(id)] = logprob;
    }
    list.append(dict);
  }
  return list;
}

}  // namespace

nb::object or_none(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::cast(text));
}

nb::dict to_dict(const GenerationOutput& output) {
  nb::dict usage;
  usage["prompt_tokens"] = output.usage.prompt_tokens;
  usage["cached_tokens"] = output.usage.cached_tokens;
  usage["completion_tokens"] = output.usage.completion_tokens;
  nb::dict reuse;
  reuse["grade"] = reuse_grade_name(output.reuse.grade);
  reuse["sources"] = output.reuse.sources;
  reuse["recompute_share"] = output.reuse.recompute_share;
  nb::dict timing;
  timing["queue_seconds"] = output.timing.queue_seconds;
  timing["first_token_seconds"] = output.timing.first_token_seconds;
  timing["total_seconds"] = output.timing.total_seconds;
  nb::dict dict;
  dict["request_id"] = output.request_id.value;
  dict["text"] = to_text(output.text);
  dict["token_ids"] = output.token_ids;
  dict["prompt_token_ids"] = output.prompt_token_ids;
  dict["finish_reason"] = finish_reason_name(output.finish_reason);
  dict["usage"] = usage;
  dict["reuse"] = reuse;
  dict["logprobs"] = output.logprobs.empty() ? nb::none() : nb::object(to_list(output.logprobs));
  dict["timing"] = timing;
  return dict;
}

nb::dict to_dict(const Delta& delta) {
  nb::dict dict;
  dict["text"] = to_text(delta.text);
  dict["token_ids"] = delta.token_ids;
  dict["logprobs"] = delta.logprobs.empty() ? nb::none() : nb::object(to_list(delta.logprobs));
  dict["finish_reason"] =
      delta.finished ? nb::object(nb::str(finish_reason_name(delta.finish_reason))) : nb::none();
  return dict;
}

nb::list to_list(const std::vector<ReusePart>& parts) {
  nb::list list;
  for (const ReusePart& part : parts) {
    nb::dict dict;
    dict["chunk_type"] = or_none(part.chunk_type);
    dict["chunk_id"] = or_none(part.chunk_id);
    dict["position"] = part.position;
    dict["tokens"] = part.tokens;
    dict["hit"] = part.hit;
    dict["reason"] = part.reason;
    list.append(dict);
  }
  return list;
}

nb::object to_array(std::vector<float> values, std::initializer_list<std::size_t> shape) {
  auto* kept = new std::vector<float>(std::move(values));
  const nb::capsule owner(
      kept, [](void* data) noexcept { delete static_cast<std::vector<float>*>(data); });
  return nb::cast(nb::ndarray<nb::numpy, float>(kept->data(), shape, owner));
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
