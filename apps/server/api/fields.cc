#include "api/fields.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "api/json.h"
#include "config.h"
#include "quire/result.h"

namespace quire::server {
namespace {

constexpr double kInt64Limit = 9223372036854775808.0;

// Returns the kinds that a value is of.
std::uint8_t kinds_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::bool_:
      return kBool;
    case json::kind::int64:
    case json::kind::uint64:
      return kInteger | kNumber;
    case json::kind::double_: {
      const double number = value.get_double();
      const bool whole = std::floor(number) == number && std::abs(number) < kInt64Limit;
      return whole ? kInteger | kNumber : kNumber;
    }
    case json::kind::string:
      return kString;
    case json::kind::array:
      return kArray;
    case json::kind::object:
      return kObject;
    case json::kind::null:
      break;
  }
  return 0;
}

// Names kinds for a message: "a string or a list".
std::string names_of(std::uint8_t kinds) {
  constexpr std::pair<Kind, const char*> kNames[] = {
      {kBool, "true or false"}, {kInteger, "an integer"}, {kNumber, "a number"},
      {kString, "a string"},    {kArray, "a list"},       {kObject, "an object"}};
  std::string names;
  for (const auto& [kind, name] : kNames) {
    if ((kinds & kind) != 0) {
      names += names.empty() ? "" : " or ";
      names += name;
    }
  }
  return names;
}

std::string number_text(double value) {
  return json::serialize(std::floor(value) == value && std::abs(value) < kInt64Limit
                             ? json::value(static_cast<std::int64_t>(value))
                             : json::value(value));
}

std::string range_text(const FieldRule& rule) {
  std::string text = "must be ";
  const bool low = std::isfinite(rule.min);
  if (low) {
    text += (rule.above ? "above " : "at least ") + number_text(rule.min);
  }
  if (std::isfinite(rule.max)) {
    text += (low ? " and at most " : "at most ") + number_text(rule.max);
  }
  return text;
}

Check check_number(const FieldRule& rule, const json::value& value, const std::string& path) {
  const double number = value.to_number<double>();
  if (number < rule.min || number > rule.max || (rule.above && number == rule.min)) {
    return invalid(path, number_text(number) + " is out of range, it " + range_text(rule));
  }
  return passed();
}

bool is_word(std::string_view words, std::string_view word) {
  while (true) {
    const std::size_t end = words.find('|');
    if (words.substr(0, end) == word) {
      return true;
    }
    if (end == std::string_view::npos) {
      return false;
    }
    words.remove_prefix(end + 1);
  }
}

std::string words_text(std::string_view words) {
  std::string text;
  for (const char c : words) {
    text += c == '|' ? std::string(", ") : std::string(1, c);
  }
  return text;
}

Check check_size(const FieldRule& rule, std::size_t size, const char* unit,
                 const std::string& path) {
  const auto length = static_cast<std::int64_t>(size);
  if (length < rule.min_size) {
    return invalid(path, "has " + std::to_string(length) + " " + unit + ", at least " +
                             std::to_string(rule.min_size) + " must be there");
  }
  if (length > rule.max_size) {
    return invalid(path, "has " + std::to_string(length) + " " + unit + ", at most " +
                             std::to_string(rule.max_size) + " are allowed");
  }
  return passed();
}

Check check_text(const FieldRule& rule, std::string_view text, const std::string& path) {
  if (rule.words[0] != '\0' && !is_word(rule.words, text)) {
    return invalid(path, "must be one of " + words_text(rule.words));
  }
  return check_size(rule, text.size(), "bytes", path);
}

Check check_list(const FieldRule& rule, json::array& list, const std::string& path,
                 FieldNotes& notes) {
  QUIRE_TRY_STATUS(check_size(rule, list.size(), "elements", path));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place =
        rule.elements != 0 || rule.members != nullptr ? element_path(path, i) : std::string();
    const std::uint8_t kinds = kinds_of(list[i]);
    if (rule.elements != 0 && (kinds & rule.elements) == 0) {
      return invalid(place, "must be " + names_of(rule.elements));
    }
    if ((rule.elements & kInteger) != 0 && list[i].is_double()) {
      list[i] = static_cast<std::int64_t>(list[i].get_double());
    }
    if (rule.members != nullptr && list[i].is_object()) {
      QUIRE_TRY_STATUS(check_fields(*rule.members, list[i].get_object(), place, notes));
    }
  }
  return passed();
}

Check check_value(const FieldRule& rule, json::value& value, const std::string& path,
                  FieldNotes& notes) {
  const std::uint8_t kinds = kinds_of(value);
  if ((kinds & rule.kinds) == 0) {
    return invalid(path, "must be " + names_of(rule.kinds));
  }
  if ((kinds & kNumber) != 0) {
    if ((rule.kinds & kInteger) != 0 && value.is_double() && (kinds & kInteger) != 0) {
      value = static_cast<std::int64_t>(value.get_double());
    }
    return check_number(rule, value, path);
  }
  if (value.is_string()) {
    return check_text(rule, view_of(value.get_string()), path);
  }
  if (value.is_array()) {
    return check_list(rule, value.get_array(), path, notes);
  }
  if (value.is_object() && rule.members != nullptr) {
    return check_fields(*rule.members, value.get_object(), path, notes);
  }
  return passed();
}

// Returns true when the value of a field that is refused is the one that changes nothing.
bool is_only(const FieldRule& rule, const json::value& value) {
  return rule.only[0] != '\0' && value == json::parse(rule.only);
}

Check refuse_unknown(const FieldTable& table, const std::string& path, FieldNotes& notes) {
  const bool tolerated = notes.unknown == UnknownFields::kLenient ||
                         (table.lenient && notes.unknown == UnknownFields::kByPath);
  if (tolerated) {
    notes.ignore(path);
    return passed();
  }
  ApiError error = invalid(path, "no such field");
  error.code = "unknown_parameter";
  return error;
}

// Checks one member. True: it stays.
Checked<bool> check_member(const FieldTable& table, json::value& value, const std::string& path,
                           std::string_view name, FieldNotes& notes) {
  const FieldRule* const rule = table.find(name);
  if (rule == nullptr) {
    if (table.open) {
      return true;
    }
    QUIRE_TRY_STATUS(refuse_unknown(table, path, notes));
    return false;
  }
  if (value.is_null()) {
    return false;
  }
  if (rule->effect == Effect::kRefused) {
    if (!is_only(*rule, value)) {
      const std::string_view help = rule->help;
      return unsupported(
          path, help.empty() ? "not supported" : std::string("not supported; ").append(help));
    }
    notes.ignore(path);
    return false;
  }
  if (rule->effect == Effect::kIgnored) {
    notes.ignore(path);
    return false;
  }
  QUIRE_TRY_STATUS(check_value(*rule, value, path, notes));
  return true;
}

}  // namespace

const FieldRule* FieldTable::find(std::string_view field) const {
  for (const auto& part : parts) {
    for (const FieldRule& rule : part) {
      if (rule.name == field) {
        return &rule;
      }
    }
  }
  return nullptr;
}

void FieldNotes::ignore(std::string path) {
  if (std::ranges::find(ignored, path) == ignored.end()) {
    ignored.push_back(std::move(path));
  }
}

Check check_fields(const FieldTable& table, json::object& object, std::string_view path,
                   FieldNotes& notes) {
  std::vector<std::string> gone;
  for (auto& member : object) {
    const std::string_view name(member.key().data(), member.key().size());
    QUIRE_TRY(const bool stays,
              check_member(table, member.value(), member_path(path, name), name, notes));
    if (!stays) {
      gone.emplace_back(name);
    }
  }
  for (const std::string& name : gone) {
    object.erase(json_view(name));
  }
  for (const auto& part : table.parts) {
    for (const FieldRule& rule : part) {
      if (rule.required && !object.contains(rule.name)) {
        return missing(member_path(path, rule.name));
      }
    }
  }
  return passed();
}

const json::value* Members::value(std::string_view name) const {
  return object_.if_contains(json_view(name));
}

std::optional<bool> Members::boolean(std::string_view name) const {
  const json::value* const found = value(name);
  return found != nullptr && found->is_bool() ? std::optional(found->get_bool()) : std::nullopt;
}

bool Members::flag(std::string_view name, bool otherwise) const {
  return boolean(name).value_or(otherwise);
}

std::optional<std::int64_t> Members::integer(std::string_view name) const {
  const json::value* const found = value(name);
  return found != nullptr && found->is_int64() ? std::optional(found->get_int64()) : std::nullopt;
}

std::optional<double> Members::number(std::string_view name) const {
  const json::value* const found = value(name);
  if (found == nullptr || !found->is_number()) {
    return std::nullopt;
  }
  return found->to_number<double>();
}

std::optional<std::string_view> Members::text(std::string_view name) const {
  const json::value* const found = value(name);
  return found != nullptr && found->is_string() ? std::optional(view_of(found->get_string()))
                                                : std::nullopt;
}

const json::array* Members::array(std::string_view name) const {
  const json::value* const found = value(name);
  return found == nullptr ? nullptr : found->if_array();
}

const json::object* Members::object(std::string_view name) const {
  const json::value* const found = value(name);
  return found == nullptr ? nullptr : found->if_object();
}

}  // namespace quire::server
