#include "quire/text/normalizer.h"

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
#include "quire/text/normalizer_internal.h"
#include "quire/text/pattern.h"
#include "quire/text/unicode.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

// Rebuilds the text from `put(out, c)` for each character. When the first characters vanish, the
// text no longer begins at the origin.
template <class Put>
void rewrite(NormalText& text, Put&& put) {
  std::string out;
  out.reserve(text.text.size());
  for (std::size_t position = 0; position < text.text.size();) {
    const bool first = position == 0;
    put(out, next_code_point(text.text, position));
    if (first && out.empty()) {
      text.at_origin = false;
    }
  }
  text.text = std::move(out);
}

class ToNormalForm final : public Normalizer {
 public:
  explicit ToNormalForm(NormalForm form) : form_(form) {}
  void apply(NormalText& text) const override { text.text = to_normal_form(text.text, form_); }

 private:
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
    text.at_origin = text.at_origin && begin == 0;
    text.text = text.text.substr(begin, end - begin);
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
    text.text = pattern_.replace_all(text.text, content_);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalText& text) const override {
    if (!text.text.empty()) {
      text.text.insert(0, prefix_);
    }
  }

 private:
  std::string prefix_;
};

class ByteLevel final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    std::string out;
    append_byte_spelling(out, text.text);
    text.text = std::move(out);
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
      text.text = to_normal_form(text.text, NormalForm::kNfd);
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
    std::string out;
    std::string_view rest = text.text;
    while (!rest.empty()) {
      const std::string_view grapheme = rest.substr(0, first_grapheme(rest));
      put(out, grapheme);
      rest.remove_prefix(grapheme.size());
    }
    text.text = std::move(out);
  }

 private:
  void put(std::string& out, std::string_view grapheme) const {
    constexpr std::size_t kWholeBelow = 6;
    if (grapheme.size() < kWholeBelow) {
      if (const auto match = map_.shortest_prefix(grapheme)) {
        out += match->replacement;
        return;
      }
    }
    for (std::size_t position = 0; position < grapheme.size();) {
      const std::string_view part = grapheme.substr(position, utf8_length(grapheme[position]));
      const auto match = map_.shortest_prefix(part);
      out += match ? match->replacement : part;
      position += part.size();
    }
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
    std::string mapped;
    for (std::string_view rest = text.text; !rest.empty();) {
      const auto [consumed, replacement] = next(rest);
      rest.remove_prefix(consumed);
      mapped += replacement;
    }
    text.text = with_spaces(mapped);
  }

 private:
  [[nodiscard]] std::string with_spaces(std::string_view mapped) const {
    const std::string_view space = options_.escape_whitespaces ? kMetaspace : " ";
    std::string out;
    bool prefix_due = options_.add_space_prefix;
    bool in_word = false;
    for (const char c : mapped) {
      if (c == ' ') {
        in_word = false;
        out += options_.remove_extra_whitespaces ? std::string_view() : space;
        continue;
      }
      if (!in_word && (prefix_due || options_.remove_extra_whitespaces)) {
        out += space;
        prefix_due = false;
      }
      in_word = true;
      out.push_back(c);
    }
    return out;
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
