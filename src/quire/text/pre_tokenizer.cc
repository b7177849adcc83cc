#include "quire/text/pre_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/text/byte_alphabet.h"
#include "quire/text/pattern.h"
#include "quire/text/pre_tokenizer_internal.h"
#include "quire/text/unicode.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

// Replaces every piece by what `write(out, piece)` appends; the pieces stay the same in number.
template <class Write>
void rewrite(Pieces& pieces, Write&& write) {
  std::string out;
  out.reserve(pieces.text.size() + pieces.ranges.size());
  std::size_t origin_bytes = 0;
  for (Pieces::Range& range : pieces.ranges) {
    const std::size_t begin = out.size();
    write(out, range);
    if (!pieces.meter->write(out.size() - begin)) {
      return;
    }
    if (range.begin < pieces.origin_bytes) {
      origin_bytes = begin + 1;  // the place counts, not the length
    }
    range = {.begin = begin, .end = out.size()};
  }
  pieces.origin_bytes = origin_bytes;
  pieces.text = std::move(out);
}

// Cuts every piece at what `find(piece, cutter)` reports.
template <class Find>
void cut(Pieces& pieces, SplitBehavior behavior, bool invert, Find&& find) {
  std::vector<Pieces::Range> out;
  out.reserve(std::max(pieces.ranges.size(), pieces.text.size() / 4));
  PieceCutter cutter(behavior, invert, out);
  for (const Pieces::Range range : pieces.ranges) {
    if (!pieces.meter->step_bytes(range.end - range.begin)) {
      return;
    }
    cutter.start(range);
    find(range, cutter);
    cutter.finish();
  }
  pieces.ranges = std::move(out);
}

class Split final : public PreTokenizer {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override {
    cut(pieces, behavior_, invert_, [&](Pieces::Range range, PieceCutter& cutter) {
      const auto found = [&](std::size_t begin, std::size_t end) {
        cutter.match(range.begin + begin, range.begin + end);
        return true;
      };
      pattern_.for_each(pieces.view(range), *pieces.meter, found);
    });
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class CharSplit final : public PreTokenizer {
 public:
  CharSplit(CharPredicate is_delimiter, SplitBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void apply(Pieces& pieces) const override {
    cut(pieces, behavior_, false, [&](Pieces::Range range, PieceCutter& cutter) {
      for (std::size_t position = range.begin; position < range.end;) {
        const std::size_t begin = position;
        if (is_delimiter_(next_code_point(pieces.text, position))) {
          cutter.match(begin, position);
        }
      }
    });
  }

 private:
  CharPredicate is_delimiter_;
  SplitBehavior behavior_;
};

// \w+|[^\w\s]+: words and runs of other visible characters; spaces vanish.
class Whitespace final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    std::vector<Pieces::Range> out;
    for (const Pieces::Range range : pieces.ranges) {
      if (!pieces.meter->step_bytes(range.end - range.begin)) {
        return;
      }
      Kind last = Kind::kSpace;
      for (std::size_t position = range.begin; position < range.end;) {
        const std::size_t begin = position;
        const Kind kind = kind_of(next_code_point(pieces.text, position));
        if (kind != Kind::kSpace && kind == last) {
          out.back().end = position;
        } else if (kind != Kind::kSpace) {
          out.push_back({.begin = begin, .end = position});
        }
        last = kind;
      }
    }
    pieces.ranges = std::move(out);
  }

 private:
  enum class Kind : std::uint8_t { kSpace, kWord, kOther };
  static Kind kind_of(char32_t c) {
    return is_word(c) ? Kind::kWord : is_whitespace(c) ? Kind::kSpace : Kind::kOther;
  }
};

class Metaspace final : public PreTokenizer {
 public:
  explicit Metaspace(const MetaspaceOptions& options) : options_(options) {
    append_code_point(replacement_, options.replacement);
  }
  void apply(Pieces& pieces) const override {
    rewrite(pieces, [&](std::string& out, Pieces::Range range) {
      const std::size_t begin = out.size();
      for (std::size_t i = range.begin; i < range.end; ++i) {
        if (pieces.text[i] == ' ') {
          out += replacement_;
        } else {
          out.push_back(pieces.text[i]);
        }
      }
      const bool due =
          options_.prepend_scheme == PrependScheme::kAlways ||
          (options_.prepend_scheme == PrependScheme::kFirst && range.begin < pieces.origin_bytes);
      if (due && !std::string_view(out).substr(begin).starts_with(replacement_)) {
        out.insert(begin, replacement_);
      }
    });
    if (!options_.split) {
      return;
    }
    cut(pieces, SplitBehavior::kMergedWithNext, false,
        [&](Pieces::Range range, PieceCutter& cutter) {
          const std::string_view piece = pieces.view(range);
          for (std::size_t at = piece.find(replacement_); at != std::string_view::npos;
               at = piece.find(replacement_, at + replacement_.size())) {
            cutter.match(range.begin + at, range.begin + at + replacement_.size());
          }
        });
  }

 private:
  MetaspaceOptions options_;
  std::string replacement_;
};

class MetaspaceCut final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    std::vector<Pieces::Range> out;
    out.reserve(pieces.text.size() / 4);
    for (const Pieces::Range range : pieces.ranges) {
      if (!pieces.meter->step_bytes(range.end - range.begin)) {
        return;
      }
      const std::string_view piece = pieces.view(range);
      std::size_t begin = 0;
      std::size_t behind_run = 0;  // place behind a run of U+2581
      for (std::size_t at = piece.find(kMetaspace); at != std::string_view::npos;
           at = piece.find(kMetaspace, behind_run)) {
        if (at > behind_run) {
          out.push_back({.begin = range.begin + begin, .end = range.begin + at});
          begin = at;
        }
        behind_run = at + kMetaspace.size();
      }
      out.push_back({.begin = range.begin + begin, .end = range.end});
    }
    pieces.ranges = std::move(out);
  }
};

class FixedLength final : public PreTokenizer {
 public:
  explicit FixedLength(std::size_t num_chars) : num_chars_(num_chars) {}
  void apply(Pieces& pieces) const override {
    std::vector<Pieces::Range> out;
    for (const Pieces::Range range : pieces.ranges) {
      if (!pieces.meter->step_bytes(range.end - range.begin)) {
        return;
      }
      for (std::size_t position = range.begin; position < range.end;) {
        const std::size_t begin = position;
        for (std::size_t i = 0; i < num_chars_ && position < range.end; ++i) {
          position += utf8_length(pieces.text[position]);
        }
        out.push_back({.begin = begin, .end = position});
      }
    }
    pieces.ranges = std::move(out);
  }

 private:
  std::size_t num_chars_;
};

class PiecePrefix final : public PreTokenizer {
 public:
  // Puts a prefix before pieces. With `unless_there`, pieces that start with the prefix stay as
  // they are.
  PiecePrefix(std::string prefix, bool unless_there)
      : prefix_(std::move(prefix)), unless_there_(unless_there) {}
  void apply(Pieces& pieces) const override {
    rewrite(pieces, [&](std::string& out, Pieces::Range range) {
      if (!unless_there_ || !pieces.view(range).starts_with(prefix_)) {
        out += prefix_;
      }
      out += pieces.view(range);
    });
  }

 private:
  std::string prefix_;
  bool unless_there_;
};

class ByteSpelling final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    rewrite(pieces, [&](std::string& out, Pieces::Range range) {
      append_byte_spelling(out, pieces.view(range));
    });
  }
};

class BertPreTokenizer final : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    CharSplit(is_whitespace, SplitBehavior::kRemoved).apply(pieces);
    CharSplit(is_punctuation, SplitBehavior::kIsolated).apply(pieces);
  }
};

}  // namespace

void PieceCutter::start(Pieces::Range piece) {
  piece_ = piece;
  at_ = piece.begin;
  first_part_ = out_->size();
  last_was_match_ = false;
}

void PieceCutter::match(std::size_t begin, std::size_t end) {
  if (begin > at_) {
    part(at_, begin, invert_);
  }
  part(begin, end, !invert_);
  at_ = end;
}

void PieceCutter::finish() {
  if (at_ < piece_.end) {
    part(at_, piece_.end, invert_);
  }
  const auto first = out_->begin() + static_cast<std::ptrdiff_t>(first_part_);
  out_->erase(std::remove_if(first, out_->end(), [](Pieces::Range r) { return r.begin == r.end; }),
              out_->end());
}

void PieceCutter::part(std::size_t begin, std::size_t end, bool is_match) {
  const bool has_last = out_->size() > first_part_;
  const Pieces::Range range = {.begin = begin, .end = end};
  switch (behavior_) {
    case SplitBehavior::kRemoved:
      if (!is_match) {
        out_->push_back(range);
      }
      break;
    case SplitBehavior::kIsolated:
      out_->push_back(range);
      break;
    case SplitBehavior::kMergedWithPrevious:
      if (is_match && !last_was_match_ && has_last) {
        out_->back().end = end;
      } else {
        out_->push_back(range);
      }
      break;
    case SplitBehavior::kMergedWithNext:
      if (!is_match && last_was_match_ && has_last) {
        out_->back().end = end;
      } else {
        out_->push_back(range);
      }
      break;
    case SplitBehavior::kContiguous:
      if (is_match == last_was_match_ && has_last) {
        out_->back().end = end;
      } else {
        out_->push_back(range);
      }
      break;
  }
  last_was_match_ = is_match;
}

std::unique_ptr<const PreTokenizer> make_split(Pattern pattern, SplitBehavior behavior,
                                               bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

std::unique_ptr<const PreTokenizer> make_bert_pre_tokenizer() {
  return std::make_unique<BertPreTokenizer>();
}

std::unique_ptr<const PreTokenizer> make_metaspace_cut() {
  return std::make_unique<MetaspaceCut>();
}

std::unique_ptr<const PreTokenizer> make_piece_prefix(std::string prefix) {
  return std::make_unique<PiecePrefix>(std::move(prefix), false);
}

std::unique_ptr<const PreTokenizer> make_char_split(CharPredicate is_delimiter,
                                                    SplitBehavior behavior) {
  return std::make_unique<CharSplit>(is_delimiter, behavior);
}

std::unique_ptr<const PreTokenizer> make_whitespace_split_words() {
  return std::make_unique<Whitespace>();
}

std::unique_ptr<const PreTokenizer> make_metaspace(const MetaspaceOptions& options) {
  return std::make_unique<Metaspace>(options);
}

std::unique_ptr<const PreTokenizer> make_fixed_length(std::size_t num_chars) {
  return std::make_unique<FixedLength>(num_chars);
}

std::unique_ptr<const PreTokenizer> make_space_prefix() {
  return std::make_unique<PiecePrefix>(" ", true);
}

std::unique_ptr<const PreTokenizer> make_byte_spelling() {
  return std::make_unique<ByteSpelling>();
}

}  // namespace quire::text
