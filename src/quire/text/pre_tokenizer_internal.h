// Pre-tokenizers that only tokenizer.json names; shared by pre_tokenizer.cc and
// pre_tokenizer_json.cc.
#pragma once

#include <memory>
#include <string_view>

#include "quire/text/pre_tokenizer.h"

namespace quire::text {

using CharPredicate = bool (*)(char32_t);

// The split pattern of GPT-2, which ByteLevel uses.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

[[nodiscard]] std::unique_ptr<const PreTokenizer> make_char_split(CharPredicate is_delimiter,
                                                                  SplitBehavior behavior);
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_whitespace_split_words();
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_metaspace(const MetaspaceOptions& options);
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_fixed_length(std::size_t num_chars);

// Makes the first part of ByteLevel, a space before pieces that lack one. The next function makes
// the spelling.
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_space_prefix();
[[nodiscard]] std::unique_ptr<const PreTokenizer> make_byte_spelling();

}  // namespace quire::text
