#include "quire/text/decode_stream.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "quire/base/work_meter.h"
#include "quire/text/byte_alphabet.h"
#include "quire/text/decode_stage.h"
#include "quire/text/spelling_decoder.h"
#include "quire/text/utf8.h"
#include "quire/text/vocabulary.h"

namespace quire::text {
namespace {

// The end of the chain: whole characters go to the caller's string.
class OutputStage final : public DecodeStage {
 public:
  OutputStage(std::string* out, base::WorkMeter& meter) : DecodeStage(meter), out_(out) {}
  [[nodiscard]] bool takes_fragments() const override { return true; }
  void push(std::string_view text, bool /*starts_token*/) override {
    if (!meter().write(text.size())) {
      return;
    }
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
    if (!append_bytes_of(held_, text)) {
      held_ += text;
    }
    ready_.clear();
    const std::size_t rest = append_complete_utf8(held_, ready_);
    held_.erase(0, held_.size() - rest);
    next().push(ready_, std::exchange(first_, false));
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
  std::string ready_;  // memory of push
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
    if (meter().write(text.size())) {
      held_ = std::move(held_).value_or("") + std::string(text);
    }
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
  ByteFallbackStage(const decode::ByteFallback& /*step*/, DecodeStage* next) : DecodeStage(next) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    if (const auto byte = byte_of_token(text)) {
      held_.push_back(static_cast<char>(*byte));
      pass_on_characters(false);
      return;
    }
    pass_on_characters(true);
    next().push(text, true);
  }
  void flush() override {
    pass_on_characters(true);
    next().flush();
  }

 private:
  void pass_on_characters(bool is_end) {
    while (!held_.empty()) {
      std::string unused;
      const std::size_t valid = valid_utf8_prefix(held_);
      if (valid > 0) {
        next().push(std::string_view(held_).substr(0, valid), true);
      } else if (!is_end && append_complete_utf8(held_, unused) == held_.size()) {
        return;  // more bytes could complete it
      } else {
        next().push(kReplacementCharacter, true);
      }
      held_.erase(0, std::max<std::size_t>(valid, 1));
    }
  }

  std::string held_;
};

class MetaspaceStage final : public DecodeStage {
 public:
  MetaspaceStage(const decode::Metaspace& step, DecodeStage* next)
      : DecodeStage(next), step_(&step) {}
  void push(std::string_view text, bool /*starts_token*/) override {
    const bool strip = std::exchange(first_, false) && step_->strip_first;
    next().push(replaced(text, step_->replacement, strip ? "" : " ", meter()), true);
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
    next().push(replaced(text, kMetaspace, " ", meter()), true);
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
    next().push(step_->pattern.replace_all(text, step_->content, meter()), true);
  }

 private:
  const decode::Replace* step_;
};

// Replace of a literal in the one token that a Fuse makes, while it arrives in fragments.
class FusedReplaceStage final : public DecodeStage {
 public:
  FusedReplaceStage(const decode::Replace& step, DecodeStage* next)
      : DecodeStage(next), literal_(*step.pattern.literal_text()), content_(step.content) {}
  [[nodiscard]] bool takes_fragments() const override { return next().takes_fragments(); }
  void push(std::string_view text, bool /*starts_token*/) override {
    held_ += text;
    std::size_t done = 0;
    std::string out;
    for (std::size_t at = held_.find(literal_);
         !literal_.empty() && at != std::string::npos && meter().write(at - done + content_.size());
         at = held_.find(literal_, done)) {
      out.append(held_, done, at - done);
      out += content_;
      done = at + literal_.size();
    }
    std::size_t kept = std::min(held_.size() - done, std::max<std::size_t>(literal_.size(), 1) - 1);
    while (!std::string_view(literal_).starts_with(
        std::string_view(held_).substr(held_.size() - kept))) {
      --kept;
    }
    out.append(held_, done, held_.size() - kept - done);
    held_.erase(0, held_.size() - kept);
    next().push(out, std::exchange(first_, false));
  }
  void flush() override {
    next().push(held_, std::exchange(first_, true));
    held_.clear();
    next().flush();
  }

 private:
  std::string literal_;
  std::string content_;
  std::string held_;  // the start of what may become a match
  bool first_ = true;
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
// clang-format on

template <class T>
std::unique_ptr<DecodeStage> make_stage(const T& step, DecodeStage* next) {
  return std::make_unique<typename StageOf<T>::type>(step, next);
}

bool makes_one_token(const decode::Step& step) {
  return std::holds_alternative<decode::Fuse>(step) ||
         std::holds_alternative<decode::ByteLevel>(step);
}

}  // namespace

DecodeStream::DecodeStream(const SpellingDecoder& decoder, base::WorkMeter& meter)
    : text_(std::make_unique<std::string>()) {
  stages_.push_back(std::make_unique<OutputStage>(text_.get(), meter));
  for (std::size_t i = decoder.size(); i-- > 0;) {
    DecodeStage* next = stages_.back().get();
    const auto begin = decoder.begin();
    const bool fused = std::any_of(begin, begin + static_cast<std::ptrdiff_t>(i), makes_one_token);
    const auto* strip = std::get_if<decode::Strip>(&decoder[i]);
    if (fused && strip != nullptr) {
      stages_.push_back(std::make_unique<FusedStripStage>(*strip, next));
      continue;
    }
    const auto* replace = std::get_if<decode::Replace>(&decoder[i]);
    if (fused && replace != nullptr && replace->pattern.literal_text() != nullptr) {
      stages_.push_back(std::make_unique<FusedReplaceStage>(*replace, next));
      continue;
    }
    stages_.push_back(
        std::visit([&](const auto& step) { return make_stage(step, next); }, decoder[i]));
    if (fused && !std::holds_alternative<decode::Fuse>(decoder[i])) {
      stages_.push_back(std::make_unique<CollectStage>(stages_.back().get()));
    }
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
