// Sampling parameters from JSON, field by field.
#include <algorithm>
#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/fields.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {
namespace {

using base::JsonView;

// Returns whether `json` has a value of the type of `out`, and gives it to `out`. Every read_field
// does so.
bool read_field(JsonView json, bool& out) {
  out = json.is_bool() && json.as_bool();
  return json.is_bool();
}

bool read_field(JsonView json, double& out) {
  out = json.is_number() ? json.as_double() : 0;
  return json.is_number();
}

// Reads an integer, which may be written as 1.0.
template <std::integral Int>
bool read_field(JsonView json, Int& out) {
  const std::optional<Int> number = json.exact<Int>();
  out = number.value_or(0);
  return number.has_value();
}

template <class Value>
bool read_field(JsonView json, std::optional<Value>& out) {
  return read_field(json, out.emplace());
}

template <class Value>
bool read_list(JsonView json, std::vector<Value>& out) {
  std::optional<std::vector<Value>> list = base::read_json_list<Value>(json);
  if (!list) {
    return false;
  }
  out = *std::move(list);
  return true;
}

bool read_field(JsonView json, std::vector<TokenId>& out) { return read_list(json, out); }

bool read_field(JsonView json, std::vector<std::string>& out) {
  if (json.is_string()) {
    out = {std::string(json.as_string())};
    return true;
  }
  return read_list(json, out);
}

bool read_field(JsonView json, std::vector<std::pair<TokenId, double>>& out) {
  out.clear();
  for (const auto [key, value] : json.members()) {
    auto& [id, bias] = out.emplace_back();
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || stop != key.data() + key.size() || !read_field(value, bias)) {
      return false;
    }
  }
  return json.is_object();
}

Status unknown_sampling_field(std::string_view name) {
  std::string names;
  for (const SamplingField& field : sampling_fields()) {
    names += (names.empty() ? "" : ", ") + std::string(field.name);
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("unknown sampling parameter ", base::quoted(name), "; there are ", names)};
}

Status set_sampling_field(SamplingParams& params, std::string_view name, JsonView json) {
  const auto fields = sampling_fields();
  const auto field = std::ranges::find(fields, name, &SamplingField::name);
  if (field == fields.end()) {
    return unknown_sampling_field(name);
  }
  const auto set = [&](auto member) { return read_field(json, params.*member); };
  if (json.is_null() || std::visit(set, field->member)) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("sampling parameter ", base::quoted(name), " cannot be ",
                        base::quoted(base::write_json(json), 40))};
}

}  // namespace

Result<SamplingParams> sampling_from_json(std::string_view json) {
  QUIRE_TRY(const base::Json parsed, base::parse_json(json, "sampling parameters"));
  const JsonView object = parsed;
  if (!object.is_object()) {
    return {ErrorCode::kInvalidArgument, "sampling parameters must be an object"};
  }
  SamplingParams params;
  for (const auto [name, value] : object.members()) {
    QUIRE_TRY_STATUS(set_sampling_field(params, name, value));
  }
  QUIRE_TRY_STATUS(params.validate());
  return params;
}

}  // namespace quire
