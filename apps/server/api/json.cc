#include "api/json.h"

#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <utility>
#include <vector>

#include "api/errors.h"

namespace quire::server {
namespace {

ApiError invalid_json(std::string_view message, std::string param = {}) {
  ApiError error = invalid(std::move(param), message);
  error.code = "invalid_json";
  return error;
}

// Builds the value, and keeps the path of where it is. Boost.JSON calls it.
class StrictHandler {
 public:
  static constexpr std::size_t max_object_size = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::size_t max_array_size = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::size_t max_key_size = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::size_t max_string_size = std::numeric_limits<std::uint32_t>::max();

  [[nodiscard]] json::value release() { return stack_.release(); }
  [[nodiscard]] const std::optional<ApiError>& error() const { return error_; }

  bool on_document_begin(json::error_code& /*ec*/) {
    stack_.reset();
    return true;
  }
  bool on_document_end(json::error_code& /*ec*/) { return true; }
  bool on_object_begin(json::error_code& /*ec*/) {
    open(true);
    return true;
  }
  bool on_object_end(std::size_t size, json::error_code& /*ec*/) {
    levels_.pop_back();
    stack_.push_object(size);
    return true;
  }
  bool on_array_begin(json::error_code& /*ec*/) {
    open(false);
    return true;
  }
  bool on_array_end(std::size_t size, json::error_code& /*ec*/) {
    levels_.pop_back();
    stack_.push_array(size);
    return true;
  }
  bool on_key_part(json::string_view part, std::size_t /*size*/, json::error_code& /*ec*/) {
    key_.append(part.data(), part.size());
    stack_.push_chars(part);
    return true;
  }
  bool on_key(json::string_view part, std::size_t /*size*/, json::error_code& ec) {
    key_.append(part.data(), part.size());
    stack_.push_key(part);
    Level& level = levels_.back();
    level.key = std::exchange(key_, {});
    if (!level.keys.insert(level.key).second) {
      return fail(invalid_json("the key stands twice in its object", path()), ec);
    }
    return true;
  }
  bool on_string_part(json::string_view part, std::size_t /*size*/, json::error_code& /*ec*/) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, std::size_t /*size*/, json::error_code& /*ec*/) {
    count();
    stack_.push_string(part);
    return true;
  }
  bool on_number_part(json::string_view part, json::error_code& /*ec*/) {
    number_.append(part.data(), part.size());
    return true;
  }
  bool on_int64(std::int64_t value, json::string_view /*text*/, json::error_code& /*ec*/) {
    count();
    number_.clear();
    stack_.push_int64(value);
    return true;
  }
  bool on_uint64(std::uint64_t value, json::string_view /*text*/, json::error_code& ec) {
    count();
    number_.clear();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return too_large(ec);
    }
    stack_.push_int64(static_cast<std::int64_t>(value));
    return true;
  }
  // Reads the text again: this Boost rounds some numbers wrongly.
  bool on_double(double rounded, json::string_view text, json::error_code& ec) {
    count();
    number_.append(text.data(), text.size());
    const std::string number = std::exchange(number_, {});
    double value = 0;
    const auto read = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool is_integer = number.find_first_of(".eE") == std::string::npos;
    const bool tiny = read.ec == std::errc::result_out_of_range && std::abs(rounded) < 1;
    if (is_integer || (read.ec != std::errc() && !tiny) || !std::isfinite(value)) {
      return too_large(ec);
    }
    stack_.push_double(value);
    return true;
  }
  bool on_bool(bool value, json::error_code& /*ec*/) {
    count();
    stack_.push_bool(value);
    return true;
  }
  bool on_null(json::error_code& /*ec*/) {
    count();
    stack_.push_null();
    return true;
  }
  bool on_comment_part(json::string_view /*part*/, json::error_code& /*ec*/) { return true; }
  bool on_comment(json::string_view /*part*/, json::error_code& /*ec*/) { return true; }

 private:
  struct Level {
    bool is_object = false;
    std::string key = {};
    std::unordered_set<std::string> keys = {};
    std::size_t index = 0;  // number of elements begun
  };

  void count() {
    if (!levels_.empty()) {
      ++levels_.back().index;
    }
  }
  void open(bool is_object) {
    count();
    levels_.push_back({.is_object = is_object});
  }
  [[nodiscard]] std::string path() const {
    std::string path;
    for (const Level& level : levels_) {
      path = level.is_object ? member_path(path, level.key)
                             : element_path(path, level.index == 0 ? 0 : level.index - 1);
    }
    return path;
  }
  bool too_large(json::error_code& ec) {
    return fail(invalid_json("the number is beyond double or int64", path()), ec);
  }
  bool fail(ApiError error, json::error_code& ec) {
    error_ = std::move(error);
    ec = json::error::not_number;  // any: error() says what it is
    return false;
  }

  json::value_stack stack_;
  std::vector<Level> levels_;
  std::string key_;
  std::string number_;
  std::optional<ApiError> error_;
};

std::string what_is_wrong(const json::error_code& ec, std::size_t at) {
  if (ec == json::error::too_deep) {
    return "the body has more than 64 levels of arrays and objects";
  }
  if (ec == json::error::incomplete) {
    return "the body ends in the middle of its JSON";
  }
  return "the body is no JSON: " + ec.message() + " at byte " + std::to_string(at);
}

}  // namespace

Checked<json::value> read_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  json::basic_parser<StrictHandler> parser(options);
  json::error_code ec;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (const auto& error = parser.handler().error()) {
    return *error;
  }
  if (!ec && used < text.size()) {
    ec = json::error::extra_data;
  }
  if (ec) {
    return invalid_json(what_is_wrong(ec, used));
  }
  return parser.handler().release();
}

std::string member_path(std::string_view path, std::string_view name) {
  std::string joined(path);
  if (!joined.empty()) {
    joined += '.';
  }
  return joined += name;
}

std::string element_path(std::string_view path, std::size_t index) {
  return std::string(path) + '[' + std::to_string(index) + ']';
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  std::size_t clean = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') {
      continue;
    }
    out.append(text, clean, i - clean);
    clean = i + 1;
    constexpr const char* kHex = "0123456789abcdef";
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        out += "\\u00";
        out += kHex[byte >> 4];
        out += kHex[byte & 15];
    }
  }
  out.append(text, clean, text.size() - clean);
  out += '"';
}

}  // namespace quire::server
