#include "quire/text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace quire::text {
namespace {

struct Step {
  std::size_t length;  // bytes of the character, or of the maximal ill-formed subpart; at least 1
  bool valid;
  bool truncated;  // ill-formed only because the text ends
};

// Checks the allowed range of the second byte (Unicode table 3-7); the others are always 80..BF.
Step classify(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  if (lead < 0x80) {
    return {.length = 1, .valid = true, .truncated = false};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {.length = 1, .valid = false, .truncated = false};
  }
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) {
    low = 0xA0;
  } else if (lead == 0xED) {
    high = 0x9F;
  } else if (lead == 0xF0) {
    low = 0x90;
  } else if (lead == 0xF4) {
    high = 0x8F;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) {
      return {.length = i, .valid = false, .truncated = true};
    }
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte < low || byte > high) {
      return {.length = i, .valid = false, .truncated = false};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {.length = length, .valid = true, .truncated = false};
}

}  // namespace

char32_t next_code_point(std::string_view text, std::size_t& position) {
  const auto byte = [&](std::size_t offset) -> char32_t {
    return static_cast<unsigned char>(text[position + offset]);
  };
  const char32_t lead = byte(0);
  char32_t code_point = lead;
  const std::size_t length = utf8_length(text[position]);
  if (length == 2) {
    code_point = (lead & 0x1F) << 6 | (byte(1) & 0x3F);
  } else if (length == 3) {
    code_point = (lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
  } else if (length == 4) {
    code_point =
        (lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
  position += length;
  return code_point;
}

char32_t previous_code_point(std::string_view text, std::size_t end) {
  return decode_before(text, end).code;
}

Decoded decode_at(std::string_view text, std::size_t offset) {
  std::size_t end = offset;
  const char32_t code = next_code_point(text, end);
  return {code, end - offset};
}

Decoded decode_before(std::string_view text, std::size_t offset) {
  std::size_t start = offset - 1;
  while (start > 0 && is_utf8_continuation(text[start])) {
    --start;
  }
  return decode_at(text, start);
}

void append_code_point(std::string& out, char32_t code_point) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

std::size_t count_code_points(std::string_view well_formed) {
  return static_cast<std::size_t>(std::count_if(well_formed.begin(), well_formed.end(),
                                                [](char c) { return !is_utf8_continuation(c); }));
}

std::size_t valid_utf8_prefix(std::string_view bytes) {
  std::size_t position = 0;
  while (position < bytes.size()) {
    // Eight ASCII bytes at a time: most text is.
    std::uint64_t word = 0;
    if (bytes.size() - position >= sizeof(word)) {
      std::memcpy(&word, bytes.data() + position, sizeof(word));
      if ((word & 0x8080808080808080ULL) == 0) {
        position += sizeof(word);
        continue;
      }
    }
    const Step step = classify(bytes.substr(position));
    if (!step.valid) {
      return position;
    }
    position += step.length;
  }
  return position;
}

std::string repair_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  const std::size_t rest = append_complete_utf8(bytes, out);
  if (rest > 0) {
    out += kReplacementCharacter;
  }
  return out;
}

std::size_t append_complete_utf8(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const std::size_t valid = valid_utf8_prefix(bytes);
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) {
      return 0;
    }
    const Step step = classify(bytes);
    if (step.truncated) {
      return bytes.size();
    }
    out += kReplacementCharacter;
    bytes.remove_prefix(step.length);
  }
  return 0;
}

}  // namespace quire::text
