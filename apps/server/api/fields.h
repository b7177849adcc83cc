// Field tables: the fields of a body, their types and ranges, and the effect of each. Each table
// checks one kind of object, and also makes openapi.json and docs/http.md.
//
// A field of a body has one of three effects: it is honoured, it is named as having no effect, or
// it is refused.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/errors.h"
#include "api/json.h"
#include "config.h"

namespace quire::server {

// JSON types of a field, or-ed.
enum Kind : std::uint8_t {
  kBool = 1,
  // Also written as 3.0.
  kInteger = 2,
  kNumber = 4,
  kString = 8,
  kArray = 16,
  kObject = 32,
};

// Effect of a field.
// * kHonoured: the server does what the field says.
// * kIgnored: has no effect, and is named in `x-quire-ignored`.
// * kRefused: 400 `unsupported_parameter`.
enum class Effect : std::uint8_t { kHonoured, kIgnored, kRefused };

struct FieldTable;

// One field of an object. Static data.
struct FieldRule {
  const char* name;
  std::uint8_t kinds;
  // One line for docs/http.md. For a refused field: what to do instead, or "".
  const char* help = "";
  Effect effect = Effect::kHonoured;
  bool required = false;
  // Range of a number; `above` excludes `min` itself.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool above = false;
  // Bytes of a string, or elements of an array.
  std::int64_t min_size = 0;
  std::int64_t max_size = std::numeric_limits<std::int64_t>::max();
  // Words that the string may be, separated by "|". "": any.
  const char* words = "";
  // JSON of the one value that a refused field may have, because it has no effect: `["text"]`. "":
  // none.
  const char* only = "";
  // Fields of an object, or of the objects in an array.
  const FieldTable* members = nullptr;
  // Types of an array's elements; 0: any.
  std::uint8_t elements = 0;
};

// The fields of one kind of object. `parts` are read one after the other.
struct FieldTable {
  // Name in openapi.json, as "ChatCompletionRequest".
  const char* name;
  const char* summary;
  std::vector<std::span<const FieldRule>> parts;
  // True: members that no rule names are data of the user, such as metadata.
  bool open = false;
  // True: unknown members have no effect and are named (Anthropic).
  bool lenient = false;

  // Returns the rule for a name, or null.
  [[nodiscard]] const FieldRule* find(std::string_view field) const;
};

// Notes of reading a body: how to treat unknown fields, and which fields had no effect.
struct FieldNotes {
  UnknownFields unknown = UnknownFields::kByPath;
  // Paths of fields without effect, each once.
  std::vector<std::string> ignored;

  void ignore(std::string path);
};

// Checks the members of `object` by `table`, and removes those that are null or have no effect.
// Integers that are written as 3.0 become integers. `path` leads to the object; "" is the body.
// Errors: 400 names the first field that is wrong, unknown, missing or refused.
[[nodiscard]] Check check_fields(const FieldTable& table, json::object& object,
                                 std::string_view path, FieldNotes& notes);

// Reads members of a checked object. A member that is absent, or has another of its types, is
// nullopt or null.
class Members {
 public:
  explicit Members(const json::object& object) : object_(object) {}
  [[nodiscard]] const json::value* value(std::string_view name) const;
  [[nodiscard]] bool has(std::string_view name) const { return value(name) != nullptr; }
  [[nodiscard]] std::optional<bool> boolean(std::string_view name) const;
  [[nodiscard]] bool flag(std::string_view name, bool otherwise = false) const;
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view name) const;
  [[nodiscard]] std::optional<double> number(std::string_view name) const;
  // Refers to the object.
  [[nodiscard]] std::optional<std::string_view> text(std::string_view name) const;
  [[nodiscard]] const json::array* array(std::string_view name) const;
  [[nodiscard]] const json::object* object(std::string_view name) const;

 private:
  const json::object& object_;
};

// Returns the text of a JSON string, without a copy.
[[nodiscard]] inline std::string_view view_of(const json::string& text) {
  return {text.data(), text.size()};
}
[[nodiscard]] inline json::string_view json_view(std::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace quire::server
