#include "quire/text/answer/mark_splitter.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "quire/chat.h"
#include "quire/text/answer/calls.h"
#include "quire/text/answer/marked_text.h"
#include "quire/text/answer/parts.h"
#include "quire/text/answer/splitter.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {
namespace {

// Blanks that are held back at most. A longer run is text.
constexpr std::size_t kMaxHeldBytes = 256;
// Closing marks inside a quoted text of one call that are passed over.
constexpr int kMaxRefusedCloses = 4;

}  // namespace

MarkSplitter::MarkSplitter(Style style, bool starts_thinking, const ToolSchemas& schemas,
                           Parts& parts)
    : style_(std::move(style)), schemas_(schemas), parts_(parts) {
  if (schemas_.empty()) {
    style_.calls.clear();
  }
  first_bytes_ = kBlanks;
  first_bytes_ += kSpecialBegin;
  for (const CallMarks& marks : style_.calls) {
    first_bytes_ += marks.open.front();
  }
  if (!style_.think_open.empty()) {
    first_bytes_ += style_.think_open.front();
    first_bytes_ += style_.think_close.front();
  }
  if (starts_thinking) {
    begin_thinking(0);
  }
}

void MarkSplitter::push(std::string_view marked) {
  buffer_.erase(0, at_);
  at_ = 0;
  buffer_ += marked;
  run();
}

void MarkSplitter::finish() {
  ended_ = true;
  run();
  if (state_ == State::kText) {
    say_held();
  }
}

void MarkSplitter::run() {
  while (step()) {
  }
}

bool MarkSplitter::step() {
  switch (state_) {
    case State::kText:
      return step_text();
    case State::kThinking:
      return step_thinking();
    case State::kCall:
      break;
  }
  return step_call();
}

MarkSplitter::Match MarkSplitter::match(std::string_view mark) const {
  const std::string_view given = rest();
  if (mark.empty()) {
    return Match::kNo;
  }
  if (given.starts_with(mark)) {
    return Match::kWhole;
  }
  return !ended_ && mark.starts_with(given) ? Match::kPartly : Match::kNo;
}

void MarkSplitter::hold_blanks() {
  const bool drops = state_ == State::kThinking ? fresh_ : fresh_ && after_part_;
  for (; at_ < buffer_.size() && kBlanks.find(buffer_[at_]) != std::string_view::npos; ++at_) {
    held_ += drops ? "" : std::string(1, buffer_[at_]);
    if (held_.size() == kMaxHeldBytes) {
      say_held();
    }
  }
}

void MarkSplitter::say_held() {
  if (state_ == State::kThinking) {
    parts_.think(held_);
  } else {
    parts_.say(held_);
  }
  held_.clear();
}

bool MarkSplitter::skip_special() {
  if (!rest().starts_with(kSpecialBegin)) {
    return false;
  }
  const std::size_t end = rest().find(kSpecialEnd);
  at_ = end == std::string_view::npos ? buffer_.size() : at_ + end + 1;
  return true;
}

std::size_t MarkSplitter::plain_run() const {
  return std::min(rest().find_first_of(first_bytes_, 1), rest().size());
}

void MarkSplitter::say(std::string_view text) {
  say_held();
  parts_.say(text);
  fresh_ = after_part_ = false;
}

void MarkSplitter::think(std::string_view text) {
  say_held();
  parts_.think(text);
  fresh_ = false;
}

bool MarkSplitter::step_text() {
  hold_blanks();
  if (rest().empty()) {
    return false;
  }
  bool waits = false;
  if (fresh_) {
    const Match found = match(style_.think_open);
    if (found == Match::kWhole) {
      begin_thinking(style_.think_open.size());
      return true;
    }
    waits = found == Match::kPartly;
  }
  for (const CallMarks& marks : style_.calls) {
    const Match found = marks.bare && !fresh_ ? Match::kNo : match(marks.open);
    if (found == Match::kWhole) {
      begin_call(marks);
      return true;
    }
    waits |= found == Match::kPartly;
  }
  if (waits) {
    return false;
  }
  if (!skip_special()) {
    const std::size_t bytes = plain_run();
    say(rest().substr(0, bytes));
    at_ += bytes;
  }
  return true;
}

void MarkSplitter::begin_thinking(std::size_t mark_bytes) {
  at_ += mark_bytes;
  held_.clear();
  parts_.end_block();
  state_ = State::kThinking;
  fresh_ = true;
}

// Thinking that a template has opened may be opened again by the model.
bool MarkSplitter::step_thinking() {
  hold_blanks();
  if (rest().empty()) {
    return false;
  }
  const Match close = match(style_.think_close);
  const Match open = fresh_ ? match(style_.think_open) : Match::kNo;
  if (close == Match::kWhole) {
    at_ += style_.think_close.size();
    begin_text();
  } else if (open == Match::kWhole) {
    at_ += style_.think_open.size();
  } else if (close == Match::kPartly || open == Match::kPartly) {
    return false;
  } else if (!skip_special()) {
    const std::size_t bytes = plain_run();
    think(rest().substr(0, bytes));
    at_ += bytes;
  }
  return true;
}

// Begins the text behind a part.
void MarkSplitter::begin_text() {
  state_ = State::kText;
  held_.clear();
  fresh_ = after_part_ = true;
  parts_.end_block();
}

void MarkSplitter::begin_call(const CallMarks& marks) {
  at_ += marks.bare ? 0 : marks.open.size();
  call_ = &marks;
  state_ = State::kCall;
  scanned_ = first_close_ = 0;
  refused_closes_ = 0;
}

bool MarkSplitter::accept(std::string_view body, std::size_t bytes) {
  auto calls = parse_calls(call_->form, body, schemas_);
  if (!calls) {
    return false;
  }
  for (ToolCall& call : *calls) {
    parts_.call(std::move(call));
  }
  at_ += bytes;
  begin_text();
  return true;
}

void MarkSplitter::give_up(std::size_t bytes) {
  state_ = State::kText;
  const std::string mark = call_->bare ? "" : call_->open;
  say(without_specials(mark + std::string(rest().substr(0, bytes))));
  at_ += bytes;
}

bool MarkSplitter::step_call() {
  if (!call_->close.empty()) {
    return step_closed_call();
  }
  const bool too_long = rest().size() > kMaxCallBytes;
  if (!ended_ && !too_long) {
    return false;
  }
  if (too_long || !accept(rest(), rest().size())) {
    give_up(std::min(rest().size(), kMaxCallBytes));
  }
  return true;
}

// Passes over closing marks inside of quoted texts. A call that never parses is text up to the
// first of them.
bool MarkSplitter::step_closed_call() {
  const std::string& close = call_->close;
  const std::size_t at = rest().find(close, scanned_);
  if (at <= kMaxCallBytes) {
    const std::string_view body = rest().substr(0, at);
    const std::size_t end = at + close.size();
    if (accept(body, end)) {
      return true;
    }
    first_close_ = first_close_ == 0 ? end : first_close_;
    scanned_ = end;
    if (refused_closes_++ == kMaxRefusedCloses || !ends_in_quotes(call_->form, body)) {
      give_up(first_close_);
    }
    return true;
  }
  const bool too_long = rest().size() >= kMaxCallBytes + close.size();
  if (!ended_ && !too_long) {
    scanned_ = std::max(scanned_, rest().size() - std::min(rest().size(), close.size() - 1));
    return false;
  }
  if (first_close_ == 0 && !too_long && accept(rest(), rest().size())) {
    return true;
  }
  give_up(first_close_ != 0 ? first_close_ : std::min(rest().size(), kMaxCallBytes));
  return true;
}

}  // namespace quire::text::answer
