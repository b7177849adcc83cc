// Sampling parameters from JSON, field by field.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
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

using JsonValue = base::json::value;

// Each read_field(json, out) says whether `json` has a value of the type of `out`, which it then
// is.
bool read_field(const JsonValue& json, bool& out) {
  out = json.is_bool() && json.get_bool();
  return json.is_bool();
}

bool read_field(const JsonValue& json, double& out) {
  out = json.is_number() ? json.to_number<double>() : 0;
  return json.is_number();
}

// An integer may be written as 1.0.
bool read_field(const JsonValue& json, std::int32_t& out) {
  double number = 0;
  if (!read_field(json, number) || std::trunc(number) != number || number < INT32_MIN ||
      number > INT32_MAX) {
    return false;
  }
  out = static_cast<std::int32_t>(number);
  return true;
}

bool read_field(const JsonValue& json, std::uint64_t& out) {
  if (json.is_uint64()) {
    out = json.get_uint64();
    return true;
  }
  if (json.is_int64() && json.get_int64() >= 0) {
    out = static_cast<std::uint64_t>(json.get_int64());
    return true;
  }
  return false;
}

bool read_field(const JsonValue& json, std::string& out) {
  out = json.is_string() ? std::string(json.get_string()) : "";
  return json.is_string();
}

template <class Value>
bool read_field(const JsonValue& json, std::optional<Value>& out) {
  return read_field(json, out.emplace());
}

template <class Value>
bool read_elements(const JsonValue& json, std::vector<Value>& out) {
  if (!json.is_array()) {
    return false;
  }
  out.clear();
  return std::ranges::all_of(json.get_array(), [&out](const JsonValue& element) {
    return read_field(element, out.emplace_back());
  });
}

bool read_field(const JsonValue& json, std::vector<TokenId>& out) {
  return read_elements(json, out);
}

bool read_field(const JsonValue& json, std::vector<std::string>& out) {
  if (std::string text; read_field(json, text)) {
    out = {text};
    return true;
  }
  return read_elements(json, out);
}

bool read_field(const JsonValue& json, std::vector<std::pair<TokenId, double>>& out) {
  if (!json.is_object()) {
    return false;
  }
  out.clear();
  return std::ranges::all_of(json.get_object(), [&out](const auto& member) {
    const std::string_view key(member.key().data(), member.key().size());
    auto& [id, bias] = out.emplace_back();
    const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    return error == std::errc() && stop == key.data() + key.size() &&
           read_field(member.value(), bias);
  });
}

Status unknown_sampling_field(std::string_view name) {
  std::string names;
  for (const SamplingField& field : sampling_fields()) {
    names += (names.empty() ? "" : ", ") + std::string(field.name);
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("unknown sampling parameter ", base::quoted(name), "; there are ", names)};
}

Status set_sampling_field(SamplingParams& params, std::string_view name, const JsonValue& json) {
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
                        base::quoted(base::json::serialize(json), 40))};
}

}  // namespace

Result<SamplingParams> sampling_from_json(std::string_view json) {
  QUIRE_TRY(const JsonValue parsed, base::parse_json(json, "sampling parameters"));
  if (!parsed.is_object()) {
    return {ErrorCode::kInvalidArgument, "sampling parameters must be an object"};
  }
  SamplingParams params;
  for (const auto& member : parsed.get_object()) {
    const std::string_view name(member.key().data(), member.key().size());
    QUIRE_TRY_STATUS(set_sampling_field(params, name, member.value()));
  }
  QUIRE_TRY_STATUS(params.validate());
  return params;
}

}  // namespace quire
