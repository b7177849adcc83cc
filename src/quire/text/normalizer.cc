#include "quire/text/normalizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/text/byte_alphabet.h"
#include "quire/text/byte_trie.h"
#include "quire/text/charsmap.h"
#include "quire/text/normal_text.h"
#include "quire/text/normalizer_internal.h"
#include "quire/text/pattern.h"
#include "quire/text/unicode.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

// Rebuilds the text from what `put(c)` appends to a string for each character.
template <class Put>
void rewrite(NormalText& text, Put&& put) {
  Rewriter out(text);
  std::string bytes;
  for (std::size_t position = 0; position < text.text.size();) {
    const std::size_t begin = position;
    bytes.clear();
    put(bytes, next_code_point(text.text, position));
    if (!bytes.empty() && !out.add(bytes, begin, position)) {
      return;
    }
  }
  out.finish();
}

// Returns whether `c` never changes with, or moves before, the characters on its left in any normal
// form. It is no mark, no vowel or final of Hangul, no voiced mark of half-width Katakana.
bool begins_anew(char32_t c) {
  const bool joins = (c >= 0x1160 && c <= 0x11FF) || (c >= 0x3130 && c <= 0x318F) ||
                     (c >= 0xFF9E && c <= 0xFFDC) || is_mark(c);
  return !joins;
}

// Runs of ASCII are copied, but for the last character, which may compose. Others are normalized in
// stretches: long ones as a rule, short ones where somebody asks what came from where.
class ToNormalForm final : public Normalizer {
 public:
  explicit ToNormalForm(NormalForm form) : form_(form) {}
  void apply(NormalText& text) const override {
    const std::string_view in = text.text;
    Rewriter out(text);
    for (std::size_t begin = 0; begin < in.size();) {
      const auto other = std::find_if(in.begin() + static_cast<std::ptrdiff_t>(begin), in.end(),
                                      [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
      const auto run_end = static_cast<std::size_t>(other - in.begin());
      const std::size_t start = run_end > begin && run_end < in.size() ? run_end - 1 : run_end;
      const std::size_t end = stretch_end(text, start);
      if (!out.copy(begin, start) || !add_stretch(out, in, start, end)) {
        return;
      }
      begin = end;
    }
    out.finish();
  }

 private:
  // Adds a normalised stretch of text. A first character that stays as it is keeps its author,
  // whatever mark follows.
  bool add_stretch(Rewriter& out, std::string_view in, std::size_t begin, std::size_t end) const {
    if (begin == end) {
      return true;
    }
    const std::string normal = to_normal_form(in.substr(begin, end - begin), form_);
    const std::string_view first = in.substr(begin, utf8_length(in[begin]));
    const std::size_t same = normal.starts_with(first) ? first.size() : 0;
    return out.copy(begin, begin + same) &&
           (same == normal.size() ||
            out.add(std::string_view(normal).substr(same), begin + same, end));
  }

  static std::size_t stretch_end(const NormalText& text, std::size_t start) {
    constexpr std::size_t kLongBytes = 4096;
    const std::string_view in = text.text;
    std::size_t end = start;
    while (end < in.size()) {
      const bool may_end = end > start && (!text.authors.each.empty() ||
                                           start < text.origin_bytes || end - start > kLongBytes);
      std::size_t next = end;
      const char32_t c = next_code_point(in, next);
      if (end > start && (c < 0x80 || (may_end && begins_anew(c)))) {
        break;
      }
      end = next;
    }
    return end;
  }

  NormalForm form_;
};

class Lowercase final : public Normalizer {
 public:
  void apply(NormalText& text) const override { rewrite(text, append_lower); }
};

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalText& text) const override {
    std::size_t begin = 0;
    std::size_t end = text.text.size();
    while (left_ && begin < end) {
      std::size_t next = begin;
      if (!is_whitespace(next_code_point(text.text, next))) {
        break;
      }
      begin = next;
    }
    while (right_ && end > begin && is_whitespace(previous_code_point(text.text, end))) {
      do {
        --end;
      } while (is_utf8_continuation(text.text[end]));
    }
    Rewriter out(text);
    if (out.copy(begin, end)) {
      out.finish();
    }
  }

 private:
  bool left_;
  bool right_;
};

class StripAccents final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite(text, [](std::string& out, char32_t c) {
      if (!is_mark(c)) {
        append_code_point(out, c);
      }
    });
  }
};

class Replace final : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(NormalText& text) const override {
    Rewriter out(text);
    std::size_t copied = 0;
    pattern_.for_each(text.text, *text.meter, [&](std::size_t begin, std::size_t end) {
      const bool goes_on = out.copy(copied, begin) && out.add(content_, begin, end);
      copied = end;
      return goes_on;
    });
    if (!text.meter->failed() && out.copy(copied, text.text.size())) {
      out.finish();
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalText& text) const override {
    Rewriter out(text);
    if (!text.text.empty() && out.add(prefix_, 0, 0) && out.copy(0, text.text.size())) {
      out.finish();
    }
  }

 private:
  std::string prefix_;
};

class ByteLevel final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    Rewriter out(text);
    std::string spelling;
    for (std::size_t i = 0; i < text.text.size(); ++i) {
      spelling.clear();
      append_byte_spelling(spelling, std::string_view(text.text).substr(i, 1));
      if (!out.add(spelling, i, i + 1)) {
        return;
      }
    }
    out.finish();
  }
};

class Nmt final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite(text, [](std::string& out, char32_t c) {
      if (is_dropped(c)) {
        return;
      }
      append_code_point(out, is_space(c) ? U' ' : c);
    });
  }

 private:
  static bool is_dropped(char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
           c == 0x8F || c == 0x9F;
  }
  static bool is_space(char32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
           (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
           c == 0xFEFF || c == 0xFFFD;
  }
};

class BertNormalizer final : public Normalizer {
 public:
  explicit BertNormalizer(const BertNormalization& options) : options_(options) {}
  void apply(NormalText& text) const override {
    if (options_.clean_text) {
      rewrite(text, [&](std::string& out, char32_t c) {
        if (options_.keep_control_spaces && is_whitespace(c)) {
          out.push_back(' ');
        } else {
          put_clean(out, c);
        }
      });
    }
    if (options_.handle_chinese_chars) {
      rewrite(text, put_spaced);
    }
    if (options_.strip_accents) {
      ToNormalForm(NormalForm::kNfd).apply(text);
      rewrite(text, [](std::string& out, char32_t c) {
        if (!is_nonspacing_mark(c)) {
          append_code_point(out, c);
        }
      });
    }
    if (options_.lowercase) {
      rewrite(text, append_lower);
    }
  }

 private:
  static void put_clean(std::string& out, char32_t c) {
    const bool blank = c == '\t' || c == '\n' || c == '\r';
    if (blank || (!is_other(c) && is_whitespace(c))) {
      out.push_back(' ');
    } else if (c != 0 && c != 0xFFFD && !is_other(c)) {
      append_code_point(out, c);
    }
  }
  static void put_spaced(std::string& out, char32_t c) {
    const bool spaced = is_cjk(c);
    if (spaced) {
      out.push_back(' ');
    }
    append_code_point(out, c);
    if (spaced) {
      out.push_back(' ');
    }
  }

  BertNormalization options_;
};

// Hugging Face's reading of a character map: whole graphemes under six bytes first, then single
// characters, and of several entries that match the shortest (spm_precompiled).
class Precompiled final : public Normalizer {
 public:
  explicit Precompiled(Charsmap map) : map_(std::move(map)) {}
  void apply(NormalText& text) const override {
    Rewriter out(text);
    for (std::size_t begin = 0; begin < text.text.size();) {
      const std::string_view rest = std::string_view(text.text).substr(begin);
      const std::string_view grapheme = rest.substr(0, first_grapheme(rest));
      if (!put(out, grapheme, begin)) {
        return;
      }
      begin += grapheme.size();
    }
    out.finish();
  }

 private:
  bool put(Rewriter& out, std::string_view grapheme, std::size_t begin) const {
    constexpr std::size_t kWholeBelow = 6;
    if (grapheme.size() < kWholeBelow) {
      if (const auto match = map_.shortest_prefix(grapheme)) {
        return out.add(match->replacement, begin, begin + grapheme.size());
      }
    }
    for (std::size_t position = 0; position < grapheme.size();) {
      const std::string_view part = grapheme.substr(position, utf8_length(grapheme[position]));
      const auto match = map_.shortest_prefix(part);
      const std::size_t at = begin + position;
      if (!out.add(match ? match->replacement : part, at, at + part.size())) {
        return false;
      }
      position += part.size();
    }
    return true;
  }

  Charsmap map_;
};

class SentencePiece final : public Normalizer {
 public:
  explicit SentencePiece(SentencePieceNormalization options) : options_(std::move(options)) {
    std::vector<std::pair<std::string, std::int32_t>> kept;
    kept.reserve(options_.kept.size());
    for (std::string& spelling : options_.kept) {
      kept.emplace_back(std::move(spelling), 0);
    }
    kept_ = ByteTrie(std::move(kept));
  }

  void apply(NormalText& text) const override {
    Rewriter mapped(text);
    for (std::size_t begin = 0; begin < text.text.size();) {
      const auto [consumed, replacement] =
          next(std::string_view(text.text).substr(begin, kMaxMatchBytes));
      text.meter->step(kStepsPerMatch);
      if (!mapped.add(replacement, begin, begin + consumed)) {
        return;
      }
      begin += consumed;
    }
    mapped.finish();
    put_spaces(text);
  }

 private:
  // A hostile map could otherwise look at the whole rest of the text for each character.
  static constexpr std::size_t kMaxMatchBytes = 4096;
  static constexpr std::int64_t kStepsPerMatch = 8;

  void put_spaces(NormalText& text) const {
    const std::string_view space = options_.escape_whitespaces ? kMetaspace : " ";
    Rewriter out(text);
    bool prefix_due = options_.add_space_prefix;
    bool in_word = false;
    for (std::size_t i = 0; i < text.text.size(); ++i) {
      const bool is_space = text.text[i] == ' ';
      const bool starts_word = !is_space && !in_word;
      bool writes_space = is_space && !options_.remove_extra_whitespaces;
      if (starts_word && (prefix_due || options_.remove_extra_whitespaces)) {
        writes_space = true;
        prefix_due = false;
      }
      in_word = !is_space;
      if ((writes_space && !out.add(space, i, i + 1)) || (!is_space && !out.copy(i, i + 1))) {
        return;
      }
    }
    out.finish();
  }

  [[nodiscard]] Charsmap::Match next(std::string_view rest) const {
    const std::size_t kept = kept_.longest_prefix(rest).length;
    if (kept == 0 && options_.charsmap) {
      if (const auto match = options_.charsmap->longest_prefix(rest)) {
        return *match;
      }
    }
    const std::size_t length = kept > 0 ? kept : utf8_length(rest[0]);
    return {.length = length, .replacement = rest.substr(0, length)};
  }

  SentencePieceNormalization options_;
  ByteTrie kept_;
};

}  // namespace

std::unique_ptr<const Normalizer> make_prepend(std::string prefix) {
  return std::make_unique<Prepend>(std::move(prefix));
}

std::unique_ptr<const Normalizer> make_replace(Pattern pattern, std::string content) {
  return std::make_unique<Replace>(std::move(pattern), std::move(content));
}

std::unique_ptr<const Normalizer> make_bert_normalizer(const BertNormalization& options) {
  return std::make_unique<BertNormalizer>(options);
}

std::unique_ptr<const Normalizer> make_precompiled(Charsmap map) {
  return std::make_unique<Precompiled>(std::move(map));
}

std::unique_ptr<const Normalizer> make_strip(bool left, bool right) {
  return std::make_unique<Strip>(left, right);
}

std::unique_ptr<const Normalizer> make_sentencepiece_normalizer(
    SentencePieceNormalization options) {
  return std::make_unique<SentencePiece>(std::move(options));
}

std::unique_ptr<const Normalizer> make_plain_normalizer(std::string_view type) {
  if (type == "NFC") {
    return std::make_unique<ToNormalForm>(NormalForm::kNfc);
  }
  if (type == "NFD") {
    return std::make_unique<ToNormalForm>(NormalForm::kNfd);
  }
  if (type == "NFKC") {
    return std::make_unique<ToNormalForm>(NormalForm::kNfkc);
  }
  if (type == "NFKD") {
    return std::make_unique<ToNormalForm>(NormalForm::kNfkd);
  }
  if (type == "Lowercase") {
    return std::make_unique<Lowercase>();
  }
  if (type == "StripAccents") {
    return std::make_unique<StripAccents>();
  }
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevel>();
  }
  if (type == "Nmt") {
    return std::make_unique<Nmt>();
  }
  return nullptr;
}

}  // namespace quire::text
