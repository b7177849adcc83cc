// normalizers_from_json: the "normalizer" section of tokenizer.json.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/json.h"
#include "quire/result.h"
#include "quire/text/charsmap.h"
#include "quire/text/json_section.h"
#include "quire/text/normalizer.h"
#include "quire/text/normalizer_internal.h"
#include "quire/text/pattern.h"

namespace quire::text {
namespace {

using Made = Result<std::unique_ptr<const Normalizer>>;

Result<std::string> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t bits = 0;
  int num_bits = 0;
  while (text.ends_with('=')) {
    text.remove_suffix(1);
  }
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) {
      return {ErrorCode::kInvalidArgument, "precompiled_charsmap is not base64"};
    }
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes.push_back(static_cast<char>(bits >> num_bits & 0xFF));
    }
  }
  return bytes;
}

Made bert(base::JsonView object) {
  BertNormalization options;
  QUIRE_TRY(options.clean_text, base::get_bool(object, "clean_text", true));
  QUIRE_TRY(options.handle_chinese_chars, base::get_bool(object, "handle_chinese_chars", true));
  QUIRE_TRY(options.lowercase, base::get_bool(object, "lowercase", true));
  QUIRE_TRY(options.strip_accents, base::get_bool(object, "strip_accents", options.lowercase));
  return make_bert_normalizer(options);
}

Made precompiled(base::JsonView object) {
  QUIRE_TRY(const std::string text, require_string(object, "precompiled_charsmap"));
  QUIRE_TRY(const std::string blob, decode_base64(text));
  QUIRE_TRY(Charsmap map, Charsmap::parse(blob));
  return make_precompiled(std::move(map));
}

Made replace(base::JsonView object) {
  QUIRE_TRY(Pattern pattern, Pattern::from_json(object.find("pattern"), "normalizer Replace"));
  QUIRE_TRY(std::string content, require_string(object, "content"));
  return make_replace(std::move(pattern), std::move(content));
}

Made strip(base::JsonView object) {
  QUIRE_TRY(const bool left, base::get_bool(object, "strip_left", true));
  QUIRE_TRY(const bool right, base::get_bool(object, "strip_right", true));
  return make_strip(left, right);
}

Made make(const TypedSection& section) {
  if (section.type == "BertNormalizer") {
    return bert(section.object);
  }
  if (section.type == "Precompiled") {
    return precompiled(section.object);
  }
  if (section.type == "Replace") {
    return replace(section.object);
  }
  if (section.type == "Strip") {
    return strip(section.object);
  }
  if (section.type == "Prepend") {
    QUIRE_TRY(std::string prefix, require_string(section.object, "prepend"));
    return make_prepend(std::move(prefix));
  }
  auto plain = make_plain_normalizer(section.type);
  if (plain == nullptr) {
    return unknown_type("normalizer", section.type);
  }
  return plain;
}

}  // namespace

Result<Normalizers> normalizers_from_json(base::JsonView section) {
  Normalizers made;
  QUIRE_TRY_STATUS(
      for_each_section(section, "normalizer", "normalizers", [&](const TypedSection& each) {
        auto one = make(each);
        if (!one.ok()) {
          return Status(std::move(one).error());
        }
        made.push_back(std::move(one).value());
        return Status();
      }));
  return made;
}

}  // namespace quire::text
