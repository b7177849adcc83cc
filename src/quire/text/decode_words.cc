// Decoder steps that see tokens as words: WordPiece, BPE with an end-of-word suffix, CTC.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/work_meter.h"
#include "quire/text/decode_stage.h"
#include "quire/text/pattern.h"
#include "quire/text/spelling_decoder.h"

namespace quire::text {

std::string replaced(std::string_view text, std::string_view what, std::string_view by,
                     base::WorkMeter& meter) {
  return Pattern::literal(std::string(what)).replace_all(text, by, meter);
}

namespace {

// Does the English clean-up of BERT: cleanup of wordpiece.rs.
std::string cleaned(std::string text, base::WorkMeter& meter) {
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
    text = replaced(text, what, by, meter);
  }
  return text;
}

class WordPieceStage final : public DecodeStage {
 public:
  WordPieceStage(const decode::WordPiece& step, DecodeStage* next)
      : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    std::string word;
    if (!std::exchange(first_, false)) {
      if (text.starts_with(step_->prefix)) {
        text.remove_prefix(step_->prefix.size());
      } else {
        word.push_back(' ');
      }
    }
    word += text;
    next().push(step_->cleanup ? cleaned(std::move(word), meter()) : word, true);
  }
  void flush() override {
    first_ = true;
    next().flush();
  }

 private:
  const decode::WordPiece* step_;
  bool first_ = true;
};

// The suffix ends a word: a space, but nothing in the last token. Text before a token's first
// suffix is certain.
class BpeStage final : public DecodeStage {
 public:
  BpeStage(const decode::Bpe& step, DecodeStage* next) : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    pass_on(" ");
    const std::size_t certain =
        next().takes_fragments() && !step_->suffix.empty() ? text.find(step_->suffix) : 0;
    if (certain > 0) {
      next().push(text.substr(0, certain), true);
    }
    starts_token_ = certain == 0;
    held_ = text.substr(std::min(certain, text.size()));
  }
  void flush() override {
    pass_on("");
    next().flush();
  }

 private:
  void pass_on(std::string_view space) {
    if (held_ && (starts_token_ || !held_->empty())) {
      next().push(replaced(*held_, step_->suffix, space, meter()), starts_token_);
    }
    held_.reset();
  }

  const decode::Bpe* step_;
  std::optional<std::string> held_;
  bool starts_token_ = true;  // held_ does
};

class CtcStage final : public DecodeStage {
 public:
  CtcStage(const decode::Ctc& step, DecodeStage* next) : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    if (last_ == text) {
      return;
    }
    last_ = std::string(text);
    std::string kept = replaced(text, step_->pad_token, "", meter());
    if (step_->cleanup) {
      kept = replaced(cleaned(std::move(kept), meter()), step_->word_delimiter_token, " ", meter());
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

}  // namespace

std::unique_ptr<DecodeStage> make_stage(const decode::WordPiece& step, DecodeStage* next) {
  return std::make_unique<WordPieceStage>(step, next);
}

std::unique_ptr<DecodeStage> make_stage(const decode::Bpe& step, DecodeStage* next) {
  return std::make_unique<BpeStage>(step, next);
}

std::unique_ptr<DecodeStage> make_stage(const decode::Ctc& step, DecodeStage* next) {
  return std::make_unique<CtcStage>(step, next);
}

}  // namespace quire::text
