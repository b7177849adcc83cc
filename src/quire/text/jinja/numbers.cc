#include "quire/text/jinja/numbers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

constexpr std::int64_t kMaxDigits = 300;

std::string_view trim_spaces(std::string_view text) {
  while (!text.empty() && is_space(decode_at(text, 0).code)) {
    text.remove_prefix(decode_at(text, 0).bytes);
  }
  while (!text.empty() && is_space(decode_before(text, text.size()).code)) {
    text.remove_suffix(decode_before(text, text.size()).bytes);
  }
  return text;
}

// Without underscores, which must stand between digits; nullopt where they do not.
std::optional<std::string> drop_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
      continue;
    }
    const auto is_digit_at = [&](std::size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (i == 0 || !is_digit_at(i - 1) || !is_digit_at(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

// Takes 0x, 0o or 0b off `digits` where `base` allows it, and returns the base that is meant.
int take_prefix(std::string_view& digits, std::int64_t base) {
  if (digits.size() > 2 && digits[0] == '0') {
    const char mark = static_cast<char>(std::tolower(static_cast<unsigned char>(digits[1])));
    const int meant = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (meant != 0 && (base == 0 || base == meant)) {
      digits.remove_prefix(2);
      if (digits.starts_with('_')) {
        digits.remove_prefix(1);
      }
      return meant;
    }
  }
  return base == 0 ? 10 : static_cast<int>(base);
}

}  // namespace

Result<std::optional<std::int64_t>> parse_integer(std::string_view text, std::int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) {
    return std::optional<std::int64_t>();
  }
  std::string_view digits = trim_spaces(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) {
    digits.remove_prefix(1);
  }
  const int meant = take_prefix(digits, base);
  const auto plain = drop_underscores(digits);
  if (!plain || plain->empty() || plain->front() == '-') {
    return std::optional<std::int64_t>();
  }
  const bool leading_zeros = base == 0 && meant == 10 && plain->size() > 1 &&
                             plain->front() == '0' &&
                             plain->find_first_not_of('0') != std::string::npos;
  if (leading_zeros) {
    return std::optional<std::int64_t>();
  }
  const std::string signed_digits = (negative ? "-" : "") + *plain;
  std::int64_t value = 0;
  const char* end = signed_digits.data() + signed_digits.size();
  const auto parsed = std::from_chars(signed_digits.data(), end, value, meant);
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) {
    return std::optional<std::int64_t>();
  }
  if (parsed.ec == std::errc::result_out_of_range) {
    return invalid("the integer ", base::quoted(text), " is beyond 64 bits");
  }
  return std::optional<std::int64_t>(value);
}

std::optional<double> parse_real(std::string_view text) {
  std::string_view digits = trim_spaces(text);
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) {
    digits.remove_prefix(1);
  }
  const auto plain = drop_underscores(digits);
  if (!plain || plain->empty() || plain->front() == '-' || plain->find('(') != std::string::npos) {
    return std::nullopt;
  }
  double value = 0;
  const char* end = plain->data() + plain->size();
  const auto parsed = std::from_chars(plain->data(), end, value);
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) {
    return std::nullopt;
  }
  if (parsed.ec == std::errc::result_out_of_range) {
    // A large number; or a small one, for which from_chars gives no value either.
    const std::size_t exponent = plain->find_first_of("eE");
    const bool small = exponent != std::string::npos
                           ? plain->find('-', exponent) != std::string::npos
                           : plain->front() == '0' || plain->front() == '.';
    value = small ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return negative ? -value : value;
}

Result<Value> truncate_to_integer(double value) {
  if (std::isinf(value)) {
    return invalid("cannot convert an infinite float to an integer");
  }
  if (!(std::fabs(value) < 9223372036854775808.0)) {
    return invalid("the integer part of a float is beyond 64 bits");
  }
  return Value::integer(static_cast<std::int64_t>(value));
}

Result<Value> round_number(const Value& value, std::int64_t precision, std::string_view method) {
  if (method != "common" && method != "ceil" && method != "floor") {
    return invalid("|round needs the method common, ceil or floor, got ", base::quoted(method));
  }
  const auto number = value.as_number();
  if (!number) {
    return invalid("|round needs a number, got ", type_name(value));
  }
  if (precision < 0) {
    return unsupported("|round with a negative precision is not supported");
  }
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(std::min(precision, kMaxDigits)));
    const double scaled = *number * scale;
    return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (const auto integer = value.as_integer()) {
    return Value::integer(*integer);
  }
  if (!std::isfinite(*number) || precision > kMaxDigits) {
    return Value::real(*number);
  }
  // The exact decimal value, rounded half to even, as CPython does.
  std::array<char, 1024> buffer;
  const auto* end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), *number,
                                  std::chars_format::fixed, static_cast<int>(precision))
                        .ptr;
  double rounded = 0;
  std::from_chars(buffer.data(), end, rounded);
  return Value::real(rounded);
}

}  // namespace quire::text::jinja
