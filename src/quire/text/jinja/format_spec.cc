#include "quire/text/jinja/format_spec.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 1'000'000;
constexpr std::int64_t kMaxPrecision = 1000;

bool is_align(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

void append_fill(std::int64_t count, const FormatSpec& spec, TextBuilder& out) {
  std::string fill;
  for (; count > 0; --count) {
    fill += spec.fill;
  }
  out.append(fill, kFromTemplate);
}

// A number in parts, so that padding and grouping can go between them.
struct NumberText {
  std::string sign;      // "", "-", "+" or " "
  std::string prefix;    // "", "0x", ...
  std::string digits;    // before the point
  std::string fraction;  // point, fraction, exponent, percent sign
};

std::string group(const std::string& digits, char separator, std::size_t size) {
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % size == 0) {
      out.push_back(separator);
    }
    out.push_back(digits[i]);
  }
  return out;
}

std::string sign_of(bool negative, const FormatSpec& spec) {
  if (negative) {
    return "-";
  }
  return spec.sign == '-' ? "" : std::string(1, spec.sign);
}

NumberText integer_text(std::int64_t value, const FormatSpec& spec) {
  const int base = spec.type == 'b'                       ? 2
                   : spec.type == 'o'                     ? 8
                   : spec.type == 'x' || spec.type == 'X' ? 16
                                                          : 10;
  const std::uint64_t magnitude =
      value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
  std::array<char, 64> buffer;
  const char* const end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), magnitude, base).ptr;
  NumberText out{
      .sign = sign_of(value < 0, spec),
      .digits = std::string(buffer.data(), static_cast<std::size_t>(end - buffer.data()))};
  if (spec.alternate && base != 10) {
    out.prefix = std::string{'0', spec.type};
  }
  if (spec.type == 'X') {
    std::transform(out.digits.begin(), out.digits.end(), out.digits.begin(),
                   [](char c) { return c >= 'a' ? static_cast<char>(c - 'a' + 'A') : c; });
  }
  // The precision of %.5d.
  if (spec.precision > static_cast<std::int64_t>(out.digits.size())) {
    out.digits.insert(0, static_cast<std::size_t>(spec.precision) - out.digits.size(), '0');
  }
  return out;
}

Result<NumberText> real_text(double value, const FormatSpec& spec) {
  const char type = static_cast<char>(std::tolower(spec.type));
  const double magnitude = std::fabs(type == '%' ? value * 100 : value);
  const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
  std::string shown;
  if (!std::isfinite(value)) {
    shown = std::isnan(value) ? "nan" : "inf";
  } else if (type == 0) {
    if (spec.precision >= 0) {
      return unsupported("a precision without a type is not supported for floats");
    }
    shown = float_repr(magnitude);
  } else {
    const auto form = type == 'e'   ? std::chars_format::scientific
                      : type == 'g' ? std::chars_format::general
                                    : std::chars_format::fixed;
    shown.resize(400 + static_cast<std::size_t>(precision));
    const auto end =
        std::to_chars(shown.data(), shown.data() + shown.size(), magnitude, form, precision).ptr;
    shown.resize(static_cast<std::size_t>(end - shown.data()));
  }
  if (std::isupper(spec.type) != 0) {
    std::transform(shown.begin(), shown.end(), shown.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  }
  if (type == '%') {
    shown += '%';
  }
  const std::size_t point = std::min(shown.find_first_not_of("0123456789"), shown.size());
  return NumberText{.sign = sign_of(std::signbit(value) && !std::isnan(value), spec),
                    .digits = shown.substr(0, point),
                    .fraction = shown.substr(point)};
}

Result<NumberText> number_text(const Value& value, const FormatSpec& spec) {
  constexpr std::string_view kIntegerTypes = "bdoxXn";
  constexpr std::string_view kRealTypes = "eEfFgG%n";
  const auto integer = value.as_integer();
  const auto number = value.as_number();
  const bool any = spec.type == 0;
  if (integer && (any || kIntegerTypes.find(spec.type) != std::string_view::npos)) {
    return integer_text(*integer, spec);
  }
  if (number && (any || kRealTypes.find(spec.type) != std::string_view::npos)) {
    if (spec.alternate) {
      return unsupported("the flag '#' is not supported for floats");
    }
    return real_text(*number, spec);
  }
  return invalid("unknown format type '", spec.type, "' for ", type_name(value));
}

}  // namespace

Result<std::int64_t> parse_digits(std::string_view text, std::size_t& at) {
  std::int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = (value * 10) + (text[at] - '0');
    if (value > kMaxWidth) {
      return invalid("a width or precision in a format is above ", kMaxWidth);
    }
  }
  return value;
}

Result<FormatSpec> parse_format_spec(std::string_view spec) {
  FormatSpec out;
  std::size_t at = 0;
  const auto peek = [&](std::size_t offset = 0) {
    return at + offset < spec.size() ? spec[at + offset] : '\0';
  };
  const std::size_t fill_bytes = spec.empty() ? 0 : decode_at(spec, 0).bytes;
  if (fill_bytes > 0 && is_align(peek(fill_bytes))) {
    out.fill = spec.substr(0, fill_bytes);
    out.align = spec[fill_bytes];
    at = fill_bytes + 1;
  } else if (is_align(peek())) {
    out.align = spec[at++];
  }
  if (peek() == '+' || peek() == '-' || peek() == ' ') {
    out.sign = spec[at++];
  }
  if (peek() == '#') {
    out.alternate = true;
    ++at;
  }
  if (peek() == '0' && out.align == 0) {
    out.fill = "0";
    out.align = '=';
    ++at;
  }
  QUIRE_TRY(out.width, parse_digits(spec, at));
  if (peek() == ',' || peek() == '_') {
    out.grouping = spec[at++];
  }
  if (peek() == '.') {
    const std::size_t digits = ++at;
    QUIRE_TRY(out.precision, parse_digits(spec, at));
    if (at == digits || out.precision > kMaxPrecision) {
      return invalid("format specification '", spec, "' has a bad precision");
    }
  }
  if (at < spec.size()) {
    out.type = spec[at++];
  }
  if (at < spec.size()) {
    return invalid("bad format specification '", spec, "'");
  }
  return out;
}

void append_padded(const Text& text, const FormatSpec& spec, TextBuilder& out) {
  const std::size_t end = spec.precision < 0
                              ? text.size_bytes()
                              : text.byte_offset(static_cast<std::size_t>(spec.precision));
  const auto length = static_cast<std::int64_t>(count_code_points(text.view().substr(0, end)));
  const std::int64_t padding = std::max<std::int64_t>(0, spec.width - length);
  const std::int64_t before = spec.align == '^' ? padding / 2 : spec.align == '>' ? padding : 0;
  append_fill(before, spec, out);
  out.append(text, 0, end);
  append_fill(padding - before, spec, out);
}

Status append_number(const Value& value, const FormatSpec& spec, TextBuilder& out) {
  QUIRE_TRY(auto number, number_text(value, spec));
  if (spec.grouping != 0) {
    if (spec.align == '=' && spec.fill == "0") {
      return unsupported("zero padding with grouping is not supported in formats");
    }
    const bool by_four =
        spec.type == 'b' || spec.type == 'o' || spec.type == 'x' || spec.type == 'X';
    number.digits = group(number.digits, spec.grouping, by_four ? 4 : 3);
  }
  const std::string head = number.sign + number.prefix;
  const std::string body = number.digits + number.fraction;
  const std::int64_t padding =
      std::max<std::int64_t>(0, spec.width - static_cast<std::int64_t>(head.size() + body.size()));
  const char align = spec.align == 0 ? '>' : spec.align;
  const std::int64_t before = align == '>' ? padding : align == '^' ? padding / 2 : 0;
  append_fill(before, spec, out);
  out.append(head, value.source());
  append_fill(align == '=' ? padding : 0, spec, out);
  out.append(body, value.source());
  append_fill(align == '<' || align == '^' ? padding - before : 0, spec, out);
  return {};
}

}  // namespace quire::text::jinja
