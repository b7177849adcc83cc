#include "quire/base/str.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace quire::base {
namespace {

// Returns the bytes of the character that `text` (not empty) begins with, if it may be shown as it
// is. Returns 0 for controls, quotes, backslashes and what is not UTF-8.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    return lead < 0x20 || lead == 0x7f || lead == '"' || lead == '\\' ? 0 : 1;
  }
  const std::size_t length = lead < 0xc2   ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 0 || text.size() < length) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) {
      return 0;
    }
  }
  // Overlong forms, surrogates and what lies above U+10FFFF.
  const bool bad = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
                   (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f);
  return bad ? 0 : length;
}

std::string escaped(char c) {
  if (c == '"' || c == '\\') {
    return {'\\', c};
  }
  std::array<char, 8> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "\\x%02x", static_cast<unsigned char>(c));
  return buffer.data();
}

}  // namespace

std::string quoted(std::string_view text, std::size_t max_bytes) {
  std::string out = "\"";
  std::size_t at = 0;
  while (at < text.size() && at < max_bytes) {
    const std::size_t length = printable_length(text.substr(at));
    if (length == 0) {
      out += escaped(text[at++]);
    } else if (at + length > max_bytes) {
      break;
    } else {
      out += text.substr(at, length);
      at += length;
    }
  }
  return out + (at < text.size() ? "...\"" : "\"");
}

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), unit == 0 ? "%.0f %s" : "%.1f %s", value,
                kUnits[unit]);
  return buffer.data();
}

}  // namespace quire::base
