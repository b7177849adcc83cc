#include "quire/base/json.h"

#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"

// The one translation unit that compiles Boost.JSON.
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>

namespace quire::base {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxKeptDepth = 60;

Error wrong_type(std::string_view key, std::string_view expected, const json::value& value) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = str_cat("key ", quoted(key), " must be ", expected, ", not ",
                             quoted(json::serialize(value), 40))};
}

// Builds the value that is parsed, as Boost.JSON's own handler does, whose doubles may be off by
// their last bit: here each is the nearest to its text.
class Builder {
 public:
  using Failure = boost::system::error_code;
  using Text = json::string_view;

  // NOLINTBEGIN(readability-identifier-naming): names that json::basic_parser asks for
  static constexpr std::size_t max_object_size = json::object::max_size();
  static constexpr std::size_t max_array_size = json::array::max_size();
  static constexpr std::size_t max_key_size = json::string::max_size();
  static constexpr std::size_t max_string_size = json::string::max_size();
  // NOLINTEND(readability-identifier-naming)

  [[nodiscard]] json::value release() { return stack_.release(); }
  // The first number that no 64 bits hold: an integer beyond them, 1e400. "" without one.
  [[nodiscard]] const std::string& lost() const { return lost_; }

  bool on_document_begin(Failure& /*failure*/) {
    stack_.reset();
    return true;
  }
  bool on_document_end(Failure& /*failure*/) { return true; }
  bool on_object_begin(Failure& /*failure*/) { return true; }
  bool on_object_end(std::size_t n, Failure& /*failure*/) {
    stack_.push_object(n);
    return true;
  }
  bool on_array_begin(Failure& /*failure*/) { return true; }
  bool on_array_end(std::size_t n, Failure& /*failure*/) {
    stack_.push_array(n);
    return true;
  }
  bool on_key_part(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    stack_.push_chars(text);
    return true;
  }
  bool on_key(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    stack_.push_key(text);
    return true;
  }
  bool on_string_part(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    stack_.push_chars(text);
    return true;
  }
  bool on_string(Text text, std::size_t /*n*/, Failure& /*failure*/) {
    stack_.push_string(text);
    return true;
  }
  bool on_number_part(Text text, Failure& /*failure*/) {
    literal_.append(text);
    return true;
  }
  bool on_int64(std::int64_t value, Text /*text*/, Failure& /*failure*/) {
    literal_.clear();
    stack_.push_int64(value);
    return true;
  }
  bool on_uint64(std::uint64_t value, Text /*text*/, Failure& /*failure*/) {
    literal_.clear();
    stack_.push_uint64(value);
    return true;
  }
  bool on_double(double value, Text text, Failure& /*failure*/) {
    literal_.append(text);
    std::from_chars(literal_.data(), literal_.data() + literal_.size(), value);
    const bool is_integer = literal_.find_first_of(".eE") == std::string::npos;
    if (lost_.empty() && (is_integer || !std::isfinite(value))) {
      lost_ = literal_;
    }
    literal_.clear();
    stack_.push_double(value);
    return true;
  }
  bool on_bool(bool value, Failure& /*failure*/) {
    stack_.push_bool(value);
    return true;
  }
  bool on_null(Failure& /*failure*/) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(Text /*text*/, Failure& /*failure*/) { return true; }
  bool on_comment(Text /*text*/, Failure& /*failure*/) { return true; }

 private:
  json::value_stack stack_;
  std::string literal_;  // of the number that is read
  std::string lost_;
};

struct Parsed {
  json::value value;
  std::string lost_number;
};

Result<Parsed> parse(std::string_view text, std::string_view what,
                     std::size_t max_depth = kMaxDepth) {
  json::parse_options options;
  options.max_depth = max_depth;
  json::basic_parser<Builder> parser(options);
  Builder::Failure failure;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), failure);
  if (!failure && used < text.size()) {
    failure = json::error::extra_data;
  }
  if (failure) {
    return {ErrorCode::kInvalidArgument, str_cat(what, ": not valid JSON: ", failure.message())};
  }
  return Parsed{parser.handler().release(), parser.handler().lost()};
}

}  // namespace

Result<json::value> parse_json(std::string_view text, std::string_view what) {
  QUIRE_TRY(Parsed parsed, parse(text, what));
  return std::move(parsed.value);
}

Result<json::object> parse_kept_object(std::string_view text, std::string_view what) {
  QUIRE_TRY(Parsed parsed, parse(text, what, kMaxKeptDepth));
  if (!parsed.value.is_object()) {
    return {ErrorCode::kInvalidArgument, str_cat(what, " must be an object")};
  }
  if (const std::string& lost = parsed.lost_number; !lost.empty()) {
    return {ErrorCode::kInvalidArgument,
            str_cat(what, " holds the number ", lost.substr(0, 40), lost.size() > 40 ? "..." : "",
                    ", which 64 bits cannot; give it as a string")};
  }
  return std::move(parsed.value.get_object());
}

Result<std::string> kept_object(std::string_view text, std::string_view what) {
  QUIRE_TRY(const json::object object, parse_kept_object(text, what));
  return json::serialize(object);
}

std::string merged_objects(std::string_view object, std::string_view over) {
  if (over == "{}") {
    return std::string(object);
  }
  json::value merged = parse_json(object, "an object").value();
  const json::value said = parse_json(over, "an object").value();
  for (const auto& [key, value] : said.get_object()) {
    merged.get_object()[key] = value;
  }
  return json::serialize(merged);
}

const json::value* find(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains({key.data(), key.size()});
  return value == nullptr || value->is_null() ? nullptr : value;
}

Result<std::int64_t> get_int(const json::object& object, std::string_view key,
                             std::int64_t fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return fallback;
  }
  if (value->is_int64()) {
    return value->get_int64();
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value->is_double() && std::trunc(value->get_double()) == value->get_double() &&
      std::fabs(value->get_double()) <= kExact) {
    return static_cast<std::int64_t>(value->get_double());
  }
  return wrong_type(key, "an integer", *value);
}

Result<double> get_double(const json::object& object, std::string_view key, double fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_number()) {
    return wrong_type(key, "a number", *value);
  }
  return value->to_number<double>();
}

Result<bool> get_bool(const json::object& object, std::string_view key, bool fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_bool()) {
    return wrong_type(key, "true or false", *value);
  }
  return value->get_bool();
}

Result<std::string> get_string(const json::object& object, std::string_view key,
                               std::string_view fallback) {
  const json::value* value = find(object, key);
  if (value == nullptr) {
    return std::string(fallback);
  }
  if (!value->is_string()) {
    return wrong_type(key, "a string", *value);
  }
  return std::string(value->get_string());
}

}  // namespace quire::base
