// Options and outputs as JSON.
#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire {
namespace {

using base::Json;

template <class Output>
Json object_of(const Output& output);

template <class Value>
bool is_missing(const Value& /*value*/) {
  return false;
}
template <class Value>
bool is_missing(const std::optional<Value>& value) {
  return !value.has_value();
}
bool is_missing(const std::vector<TokenLogprobs>& logprobs) { return logprobs.empty(); }

// Each json_of returns the JSON of a member's value.
Json json_of(std::integral auto value) { return value; }
// JSON has no infinite numbers and no NaN.
Json json_of(double value) {
  using Limits = std::numeric_limits<double>;
  return std::isnan(value) ? Json(nullptr)
                           : Json(std::clamp(value, Limits::lowest(), Limits::max()));
}
Json json_of(std::string_view text) { return text::repair_utf8(text); }
Json json_of(const std::string& text) { return json_of(std::string_view(text)); }
Json json_of(MissingIfEmpty value) { return json_of(value.text); }
Json json_of(RequestId id) { return id.value; }
Json json_of(FinishReason reason) { return finish_reason_name(reason); }
Json json_of(ReuseGrade grade) { return reuse_grade_name(grade); }
Json json_of(const Usage& usage) { return object_of(usage); }
Json json_of(const ReuseReport& reuse) { return object_of(reuse); }
Json json_of(const Timing& timing) { return object_of(timing); }
Json json_of(const ReusePart& part) { return object_of(part); }
Json json_of(const std::pair<std::string, std::int64_t>& source) {
  return Json::array(json_of(source.first), source.second);
}

template <class Number>
Json json_of(const std::vector<std::pair<TokenId, Number>>& by_id) {
  Json object = Json::object();
  for (const auto& [id, value] : by_id) {
    object.set(std::to_string(id), json_of(static_cast<double>(value)));
  }
  return object;
}

template <class Value>
Json json_of(std::span<const Value> values) {
  Json array = Json::array();
  for (const Value& value : values) {
    array.push(json_of(value));
  }
  return array;
}
template <class Value>
Json json_of(const std::vector<Value>& values) {
  return json_of(std::span(values));
}
template <class Value>
Json json_of(const std::optional<Value>& value) {
  return value ? json_of(*value) : Json(nullptr);
}

template <class Value>
void set_member(Json& object, std::string_view name, const Value& value) {
  if (!is_missing(value)) {
    object.set(name, json_of(value));
  }
}

template <class Output>
Json object_of(const Output& output) {
  Json object = Json::object();
  visit_members(output,
                [&](const char* name, const auto& value) { set_member(object, name, value); });
  return object;
}

// Writes what `make` gives.
template <class Make>
Result<std::string> written(Make make) try {
  return base::write_json(make());
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of an output");
}

template <class Output>
Result<std::string> written_object(const Output& output) {
  return written([&] { return object_of(output); });
}

}  // namespace

Result<std::string> to_json(const SamplingParams& params) {
  return written([&] {
    Json object = Json::object();
    for (const SamplingField& field : sampling_fields()) {
      std::visit([&](auto member) { set_member(object, field.name, params.*member); },
                 field.member);
    }
    return object;
  });
}

Result<std::string> to_json(const Usage& usage) { return written_object(usage); }
Result<std::string> to_json(const ReuseReport& reuse) { return written_object(reuse); }
Result<std::string> to_json(const Timing& timing) { return written_object(timing); }
Result<std::string> to_json(const GenerationOutput& output) { return written_object(output); }
Result<std::string> to_json(const ContextManager::Answer& answer) { return written_object(answer); }
Result<std::string> to_json(const Delta& delta) { return written_object(delta); }
Result<std::string> to_json(std::span<const ReusePart> parts) {
  return written([&] { return json_of(parts); });
}

}  // namespace quire
