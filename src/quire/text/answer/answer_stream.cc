#include "quire/text/answer/answer_stream.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/sha256.h"
#include "quire/chat.h"
#include "quire/result.h"
#include "quire/text/answer/harmony_splitter.h"
#include "quire/text/answer/mark_splitter.h"
#include "quire/text/answer/marked_text.h"
#include "quire/text/answer/parts.h"
#include "quire/text/answer/splitter.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text::answer {
namespace {

// Ids at the end of a prompt that may open something.
constexpr std::size_t kPromptEndTokens = 48;

std::string special_of(const Tokenizer& tokenizer, TokenId id) {
  const auto spelling =
      tokenizer.is_special(id) ? tokenizer.id_to_token(id) : Result<std::string>("");
  return spelling.ok() && !spelling->empty() ? special(*spelling) : "";
}

std::string end_of_prompt(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  Detokenizer detokenizer(tokenizer);
  std::string marked;
  for (const TokenId id : ids.last(std::min(ids.size(), kPromptEndTokens))) {
    marked += detokenizer.push(id);
    marked += special_of(tokenizer, id);
  }
  marked += detokenizer.flush();
  return marked;
}

// Makes the splitter of a style; null where there is nothing to find. `prompt_end` may have opened
// thinking or a message.
std::unique_ptr<Splitter> make_splitter(const Style& style, std::string_view prompt_end,
                                        const ToolSchemas& schemas, Parts& parts) {
  if (style.kind == Style::Kind::kHarmony) {
    return std::make_unique<HarmonySplitter>(prompt_end, schemas, parts);
  }
  if (style.think_open.empty() && (style.calls.empty() || schemas.empty())) {
    return nullptr;
  }
  const bool thinks =
      !style.think_open.empty() && trimmed_end(prompt_end).ends_with(style.think_open);
  return std::make_unique<MarkSplitter>(style, thinks, schemas, parts);
}

// Makes ids that depend on the prompt, so that those of the turns of one chat differ.
CallIds ids_for(const Style& style, std::span<const TokenId> prompt_ids) {
  const auto digest =
      base::FieldHasher().add("tool calls").add_bytes(std::as_bytes(prompt_ids)).finish();
  CallIds ids;
  std::memcpy(&ids.seed, digest.data(), sizeof(ids.seed));
  if (style.short_ids) {
    ids.prefix = "";
    ids.digits = 9;
  }
  return ids;
}

}  // namespace

AnswerStream::AnswerStream(const Tokenizer& tokenizer, const Style& style,
                           std::span<const TokenId> prompt_ids, ToolSchemas schemas)
    : tokenizer_(tokenizer),
      schemas_(std::move(schemas)),
      parts_(ids_for(style, prompt_ids)),
      detokenizer_(tokenizer) {
  if (style.kind != Style::Kind::kPlain) {
    splitter_ = make_splitter(style, end_of_prompt(tokenizer, prompt_ids), schemas_, parts_);
  }
}

Result<AnswerParts> AnswerStream::take(std::string_view text, std::span<const TokenId> ids,
                                       bool finished) {
  if (splitter_ == nullptr) {
    parts_.say(text);
    return parts_.take();
  }
  text_ += text;
  for (const TokenId id : ids) {
    queue(id);
  }
  QUIRE_TRY_STATUS(detokenizer_.status());
  if (finished) {
    pieces_.push_back({.text_bytes = detokenizer_.flush().size()});
  }
  drain();
  if (finished) {
    splitter_->push(text_);
    splitter_->finish();
  }
  return parts_.take();
}

// An id of padding has no text and no spelling.
void AnswerStream::queue(TokenId id) {
  Piece piece{.tokens = 1};
  if (id >= 0 && id < tokenizer_.vocab_size()) {
    piece.text_bytes = detokenizer_.push(id).size();
    piece.special = special_of(tokenizer_, id);
  }
  pieces_.push_back(std::move(piece));
}

void AnswerStream::drain() {
  std::size_t used = 0;
  while (!pieces_.empty()) {
    Piece& piece = pieces_.front();
    const std::size_t bytes = std::min(piece.text_bytes, text_.size() - used);
    piece.text_bytes -= bytes;
    thinking_ |= splitter_->is_thinking();
    splitter_->push(std::string_view(text_).substr(used, bytes));
    used += bytes;
    if (piece.text_bytes > 0) {
      break;
    }
    splitter_->push(piece.special);
    const bool counts = std::exchange(thinking_, false) || splitter_->is_thinking();
    parts_.count_thinking_tokens(counts ? piece.tokens : 0);
    pieces_.pop_front();
  }
  text_.erase(0, used);
}

}  // namespace quire::text::answer
