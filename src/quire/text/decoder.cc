#include "quire/text/decoder.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "quire/text/byte_alphabet.h"
#include "quire/text/utf8.h"
#include "quire/text/vocabulary.h"

namespace quire::text {

// One step at work. A token may arrive in fragments once a Fuse has run: only the first of them
// `starts_token`.
class DecodeStage {
 public:
  explicit DecodeStage(DecodeStage* next) : next_(next) {}
  virtual ~DecodeStage() = default;
  DecodeStage(const DecodeStage&) = delete;
  DecodeStage& operator=(const DecodeStage&) = delete;

  virtual void push(std::string_view text, bool starts_token) = 0;
  // Passes on what was held back, and resets this stage and the ones behind it.
  virtual void flush() { next().flush(); }

 protected:
  [[nodiscard]] DecodeStage& next() const { return *next_; }

 private:
  DecodeStage* next_;
};

namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  return Pattern::literal(std::string(what)).replace_all(text, by);
}

// wordpiece.rs, cleanup: the English clean-up of BERT.
std::string cleaned(std::string text) {
  // Most words are free of the rules: each needs a space with one of these behind it.
  const auto may_match = [](char a, char b) {
    return a == ' ' && std::string_view(".?!,'nd").find(b) != std::string_view::npos;
  };
  if (std::adjacent_find(text.begin(), text.end(), may_match) == text.end()) {
    return text;
  }
  constexpr std::pair<std::string_view, std::string_view> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [what, by] : kRules) {
    text = replaced(text, what, by);
  }
  return text;
}

// The end of the chain: whole characters go to the caller's string.
class OutputStage final : public DecodeStage {
 public:
  explicit OutputStage(std::string* out) : DecodeStage(nullptr), out_(out) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    held_ += text;
    const std::size_t rest = append_complete_utf8(held_, *out_);
    held_.erase(0, held_.size() - rest);
  }
  void flush() override {
    *out_ += repair_utf8(held_);
    held_.clear();
  }

 private:
  std::string* out_;
  std::string held_;  // the start of a character
};

class JoinStage final : public DecodeStage {
 public:
  JoinStage(const decode::JoinWithSpaces& /*step*/, DecodeStage* next) : DecodeStage(next) {}
  void push(std::string_view text, bool starts_token) override {
    if (starts_token && !std::exchange(first_, false)) {
      next().push(" ", false);
    }
    next().push(text, starts_token);
  }
  void flush() override {
    first_ = true;
    next().flush();
  }

 private:
  bool first_ = true;
};

// Bytes of all tokens; the next stage sees one token.
class ByteLevelStage final : public DecodeStage {
 public:
  ByteLevelStage(const decode::ByteLevel& /*step*/, DecodeStage* next) : DecodeStage(next) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    if (const auto bytes = bytes_of_spelling(text)) {
      held_ += *bytes;
    } else {
      held_ += text;
    }
    std::string ready;
    const std::size_t rest = append_complete_utf8(held_, ready);
    held_.erase(0, held_.size() - rest);
    next().push(ready, std::exchange(first_, false));
  }
  void flush() override {
    if (!held_.empty()) {
      next().push(repair_utf8(held_), false);
    }
    held_.clear();
    first_ = true;
    next().flush();
  }

 private:
  std::string held_;
  bool first_ = true;
};

class FuseStage final : public DecodeStage {
 public:
  FuseStage(const decode::Fuse& /*step*/, DecodeStage* next) : DecodeStage(next) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    next().push(text, std::exchange(first_, false));
  }
  void flush() override {
    first_ = true;
    next().flush();
  }

 private:
  bool first_ = true;
};

// Makes one whole token of what follows a Fuse, for stages that need to see all of it.
class CollectStage final : public DecodeStage {
 public:
  using DecodeStage::DecodeStage;
  void push(std::string_view text, bool /*starts_token*/) override {
    held_ = std::move(held_).value_or("") + std::string(text);
  }
  void flush() override {
    if (held_) {
      next().push(*held_, true);
      held_.reset();
    }
    next().flush();
  }

 private:
  std::optional<std::string> held_;
};

class ByteFallbackStage final : public DecodeStage {
 public:
  ByteFallbackStage(const decode::ByteFallback& step, DecodeStage* next)
      : DecodeStage(next), per_character_(step.per_character) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    if (const auto byte = byte_of_token(text)) {
      held_.push_back(static_cast<char>(*byte));
      if (per_character_) {
        pass_on_characters(false);
      }
      return;
    }
    end_run();
    next().push(text, true);
  }
  void flush() override {
    end_run();
    next().flush();
  }

 private:
  void end_run() {
    if (per_character_) {
      pass_on_characters(true);
    } else if (valid_utf8_prefix(held_) == held_.size()) {
      if (!held_.empty()) {
        next().push(held_, true);
      }
    } else {
      for (std::size_t i = 0; i < held_.size(); ++i) {
        next().push(kReplacementCharacter, true);
      }
    }
    held_.clear();
  }

  // Sentencepiece replaces byte by byte what does not start a character.
  void pass_on_characters(bool is_end) {
    while (!held_.empty()) {
      std::string unused;
      const std::size_t valid = valid_utf8_prefix(held_);
      const std::string_view rest = std::string_view(held_).substr(valid);
      if (valid > 0) {
        next().push(std::string_view(held_).substr(0, valid), true);
      } else if (!is_end && append_complete_utf8(rest, unused) == held_.size()) {
        return;  // more bytes could complete it
      } else {
        next().push(kReplacementCharacter, true);
      }
      held_.erase(0, std::max<std::size_t>(valid, 1));
    }
  }

  bool per_character_;
  std::string held_;
};

class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(const decode::Metaspace& step, DecodeStage* next)
      : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    const bool strip = std::exchange(first_, false) && step_->strip_first;
    next().push(replaced(text, step_->replacement, strip ? "" : " "), true);
  }
  void flush() override {
    first_ = true;
    next().flush();
  }

 private:
  const decode::Metaspace* step_;
  bool first_ = true;
};

class LeadingSpaceStage final : public DecodeStage {
 public:
  LeadingSpaceStage(const decode::LeadingSpace& step, DecodeStage* next)
      : DecodeStage(next), drop_(step.drop), dropping_(drop_ != Drop::kNever) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    if (dropping_ && text.starts_with(kMetaspace)) {
      text.remove_prefix(kMetaspace.size());
      dropping_ = drop_ == Drop::kEach;
    }
    dropping_ = dropping_ && text.empty();
    next().push(replaced(text, kMetaspace, " "), true);
  }
  void flush() override {
    dropping_ = drop_ != Drop::kNever;
    next().flush();
  }

 private:
  using Drop = decode::LeadingSpace::Drop;
  Drop drop_;
  bool dropping_;
};

class StripStage final : public DecodeStage {
 public:
  StripStage(const decode::Strip& step, DecodeStage* next) : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    for (std::size_t i = 0; i < step_->start && text.starts_with(step_->content); ++i) {
      text.remove_prefix(step_->content.size());
    }
    for (std::size_t i = 0; i < step_->stop && text.ends_with(step_->content); ++i) {
      text.remove_suffix(step_->content.size());
    }
    next().push(text, true);
  }

 private:
  const decode::Strip* step_;
};

// Strip of the one token that a Fuse makes, while it arrives in fragments of whole characters.
class FusedStripStage final : public DecodeStage {
 public:
  FusedStripStage(const decode::Strip& step, DecodeStage* next)
      : DecodeStage(next), step_(&step), left_to_cut_(step.start) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    while (left_to_cut_ > 0 && !text.empty()) {
      if (!text.starts_with(step_->content)) {
        left_to_cut_ = 0;
        break;
      }
      text.remove_prefix(step_->content.size());
      --left_to_cut_;
    }
    held_ += text;
    std::size_t certain = held_.size();
    for (std::size_t i = 0;
         i < step_->stop && std::string_view(held_).substr(0, certain).ends_with(step_->content);
         ++i) {
      certain -= step_->content.size();
    }
    next().push(std::string_view(held_).substr(0, certain), std::exchange(first_, false));
    held_.erase(0, certain);
  }
  void flush() override {
    held_.clear();
    left_to_cut_ = step_->start;
    first_ = true;
    next().flush();
  }

 private:
  const decode::Strip* step_;
  std::size_t left_to_cut_;
  std::string held_;  // contents that are cut if nothing follows
  bool first_ = true;
};

class ReplaceStage final : public DecodeStage {
 public:
  ReplaceStage(const decode::Replace& step, DecodeStage* next) : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    next().push(step_->pattern.replace_all(text, step_->content), true);
  }

 private:
  const decode::Replace* step_;
};

class WordPieceStage final : public DecodeStage {
 public:
  WordPieceStage(const decode::WordPiece& step, DecodeStage* next)
      : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    std::string word(text);
    if (!std::exchange(first_, false)) {
      if (text.starts_with(step_->prefix)) {
        word.erase(0, step_->prefix.size());
      } else {
        word.insert(0, " ");
      }
    }
    next().push(step_->cleanup ? cleaned(std::move(word)) : word, true);
  }
  void flush() override {
    first_ = true;
    next().flush();
  }

 private:
  const decode::WordPiece* step_;
  bool first_ = true;
};

// The suffix ends a word: a space, but nothing in the last token.
class BpeStage final : public DecodeStage {
 public:
  BpeStage(const decode::Bpe& step, DecodeStage* next) : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    if (held_) {
      next().push(replaced(*held_, step_->suffix, " "), true);
    }
    held_ = std::string(text);
  }
  void flush() override {
    if (held_) {
      next().push(replaced(*held_, step_->suffix, ""), true);
      held_.reset();
    }
    next().flush();
  }

 private:
  const decode::Bpe* step_;
  std::optional<std::string> held_;
};

class CtcStage final : public DecodeStage {
 public:
  CtcStage(const decode::Ctc& step, DecodeStage* next) : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    if (last_ == text) {
      return;
    }
    last_ = std::string(text);
    std::string kept = replaced(text, step_->pad_token, "");
    if (step_->cleanup) {
      kept = replaced(cleaned(std::move(kept)), step_->word_delimiter_token, " ");
    }
    if (!kept.empty()) {
      next().push(kept, true);
    }
  }
  void flush() override {
    last_.reset();
    next().flush();
  }

 private:
  const decode::Ctc* step_;
  std::optional<std::string> last_;
};

template <class T>
struct StageOf;
// clang-format off
template <> struct StageOf<decode::JoinWithSpaces> { using type = JoinStage; };
template <> struct StageOf<decode::ByteLevel> { using type = ByteLevelStage; };
template <> struct StageOf<decode::Fuse> { using type = FuseStage; };
template <> struct StageOf<decode::ByteFallback> { using type = ByteFallbackStage; };
template <> struct StageOf<decode::Metaspace> { using type = MetaspaceStage; };
template <> struct StageOf<decode::LeadingSpace> { using type = LeadingSpaceStage; };
template <> struct StageOf<decode::Strip> { using type = StripStage; };
template <> struct StageOf<decode::Replace> { using type = ReplaceStage; };
template <> struct StageOf<decode::WordPiece> { using type = WordPieceStage; };
template <> struct StageOf<decode::Bpe> { using type = BpeStage; };
template <> struct StageOf<decode::Ctc> { using type = CtcStage; };
// clang-format on

template <class T>
constexpr bool kFuses = std::is_same_v<T, decode::Fuse> || std::is_same_v<T, decode::ByteLevel>;

}  // namespace

DecodeStream::DecodeStream(const Decoder& decoder) : text_(std::make_unique<std::string>()) {
  stages_.push_back(std::make_unique<OutputStage>(text_.get()));
  const auto is_fusing = [](const decode::Step& step) {
    return std::visit([]<class T>(const T&) { return kFuses<T>; }, step);
  };
  for (std::size_t i = decoder.size(); i-- > 0;) {
    const bool fused =
        std::any_of(decoder.begin(), decoder.begin() + static_cast<std::ptrdiff_t>(i), is_fusing);
    std::visit(
        [&]<class T>(const T& step) {
          DecodeStage* next = stages_.back().get();
          if constexpr (std::is_same_v<T, decode::Strip>) {
            if (fused) {
              stages_.push_back(std::make_unique<FusedStripStage>(step, next));
              return;
            }
          }
          stages_.push_back(std::make_unique<typename StageOf<T>::type>(step, next));
          if (fused && !std::is_same_v<T, decode::Fuse>) {
            stages_.push_back(std::make_unique<CollectStage>(stages_.back().get()));
          }
        },
        decoder[i]);
  }
}

DecodeStream::~DecodeStream() = default;
DecodeStream::DecodeStream(DecodeStream&&) noexcept = default;
DecodeStream& DecodeStream::operator=(DecodeStream&&) noexcept = default;

void DecodeStream::push(std::string_view token, std::string& out) {
  stages_.back()->push(token, true);
  out += *text_;
  text_->clear();
}

void DecodeStream::flush(std::string& out) {
  stages_.back()->flush();
  out += *text_;
  text_->clear();
}

}  // namespace quire::text
