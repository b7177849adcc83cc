#include "quire/text/byte_alphabet.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/text/utf8.h"

namespace quire::text {
namespace {

constexpr std::size_t kEnd = 0x144;  // one behind the last character of the alphabet

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, kEnd> byte{};  // -1: not in the alphabet
};

// Makes the alphabet. Printable Latin-1 stands for itself; the other 68 bytes follow from U+0100
// on.
constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t next = 0x100;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t c = printable ? static_cast<char32_t>(byte) : next++;
    alphabet.character[byte] = c;
    alphabet.byte[c] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

void append_byte_spelling(std::string& out, std::string_view bytes) {
  for (const char byte : bytes) {
    append_code_point(out, kAlphabet.character[static_cast<unsigned char>(byte)]);
  }
}

bool append_bytes_of(std::string& out, std::string_view spelling) {
  const std::size_t before = out.size();
  for (std::size_t position = 0; position < spelling.size();) {
    const char32_t c = next_code_point(spelling, position);
    if (c >= kEnd || kAlphabet.byte[c] < 0) {
      out.resize(before);
      return false;
    }
    out.push_back(static_cast<char>(kAlphabet.byte[c]));
  }
  return true;
}

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  std::string bytes;
  return append_bytes_of(bytes, spelling) ? std::optional(std::move(bytes)) : std::nullopt;
}

}  // namespace quire::text
