// Normalizers that only tokenizer.json names; shared by normalizer.cc and normalizer_json.cc.
#pragma once

#include <memory>
#include <string_view>

#include "quire/text/normalizer.h"

namespace quire::text {

[[nodiscard]] std::unique_ptr<const Normalizer> make_strip(bool left, bool right);
[[nodiscard]] std::unique_ptr<const Normalizer> make_precompiled(Charsmap map);
// Makes one of NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, ByteLevel, Nmt. Returns nullptr for
// another name.
[[nodiscard]] std::unique_ptr<const Normalizer> make_plain_normalizer(std::string_view type);

}  // namespace quire::text
