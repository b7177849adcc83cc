#include "quire/text/answer/harmony_splitter.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/text/answer/calls.h"
#include "quire/text/answer/marked_text.h"
#include "quire/text/answer/parts.h"
#include "quire/text/answer/splitter.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {
namespace {

// A longer header is content.
constexpr std::size_t kMaxHeaderBytes = 1024;

std::string_view first_word(std::string_view text) {
  text = trimmed(text);
  return text.substr(0, text.find_first_of(kBlanks));
}

// Returns the function that a header names, or "".
std::string recipient_of(std::string_view header) {
  constexpr std::string_view kTo = "to=";
  const std::size_t at = header.find(kTo);
  if (at == std::string_view::npos) {
    return "";
  }
  std::string_view name = first_word(header.substr(at + kTo.size()));
  static_cast<void>(skip(name, "functions."));
  return std::string(name);
}

}  // namespace

HarmonySplitter::HarmonySplitter(std::string_view prompt_end, const ToolSchemas& schemas,
                                 Parts& parts)
    : schemas_(schemas), parts_(parts) {
  const std::size_t start = prompt_end.rfind(special("<|start|>"));
  if (start == std::string_view::npos) {
    return;
  }
  push(prompt_end.substr(start));
  of_prompt_ = header_.size();
  static_cast<void>(parts_.take());
}

void HarmonySplitter::push(std::string_view marked) {
  while (!marked.empty()) {
    const std::size_t begin = std::min(marked.find(kSpecialBegin), marked.size());
    take_text(marked.substr(0, begin));
    marked.remove_prefix(begin);
    if (!marked.empty()) {
      marked.remove_prefix(1);
      take_special(take_until(marked, std::string_view(&kSpecialEnd, 1)));
    }
  }
}

void HarmonySplitter::take_text(std::string_view text) {
  switch (state_) {
    case State::kHeader:
      header_ += text;
      if (header_.size() > kMaxHeaderBytes) {
        lose_header();
      }
      break;
    case State::kThinking:
      parts_.think(text);
      break;
    case State::kContent:
      parts_.say(text);
      break;
    case State::kCall:
      arguments_ += text;
      if (arguments_.size() > kMaxCallBytes) {
        state_ = State::kContent;
        parts_.say(std::exchange(arguments_, {}));
      }
      break;
  }
}

void HarmonySplitter::take_special(std::string_view spelling) {
  if (spelling == "<|start|>" || spelling == "<|end|>" || spelling == "<|call|>" ||
      spelling == "<|return|>") {
    end_message();
    begin_header("");
  } else if (spelling == "<|channel|>") {
    if (state_ != State::kHeader) {
      end_message();
      begin_header("assistant");
    }
    channel_at_ = header_.size();
  } else if (spelling == "<|message|>" && state_ == State::kHeader) {
    begin_message();
  } else if (spelling == "<|constrain|>" && state_ == State::kHeader) {
    header_ += ' ';
  }
}

void HarmonySplitter::begin_header(std::string_view role) {
  state_ = State::kHeader;
  header_ = role;
  of_prompt_ = role.size();
  channel_at_.reset();
}

void HarmonySplitter::begin_message() {
  const std::string_view role =
      std::string_view(header_).substr(0, channel_at_.value_or(std::string::npos));
  const std::string_view rest = std::string_view(header_).substr(role.size());
  const std::string_view channel = channel_at_ ? first_word(rest) : std::string_view();
  recipient_ = recipient_of(role);
  recipient_ = recipient_.empty() ? recipient_of(rest) : recipient_;
  const bool calls = !recipient_.empty() && !schemas_.empty();
  state_ = calls ? State::kCall : channel == "analysis" ? State::kThinking : State::kContent;
  arguments_.clear();
  parts_.end_block();
}

void HarmonySplitter::end_message() {
  if (state_ == State::kHeader) {
    lose_header();
  } else if (state_ == State::kCall) {
    if (auto arguments = parse_arguments(arguments_)) {
      parts_.call({.name = recipient_, .arguments_json = *std::move(arguments)});
    } else {
      parts_.say(arguments_);
    }
  }
  parts_.end_block();
}

void HarmonySplitter::lose_header() {
  const std::string_view own = std::string_view(header_).substr(of_prompt_);
  state_ = State::kContent;
  if (!trimmed(own).empty()) {
    parts_.say(own);
  }
}

void HarmonySplitter::finish() { end_message(); }

}  // namespace quire::text::answer
