#include "quire/text/added_tokens.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/text/byte_trie.h"
#include "quire/text/normal_text.h"
#include "quire/text/unicode.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire::text {
namespace {

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word(previous_code_point(text, begin))) {
    return true;
  }
  return end < text.size() && is_word(next_code_point(text, end));
}

std::size_t skip_space_left(std::string_view text, std::size_t begin, std::size_t limit) {
  while (begin > limit && is_whitespace(previous_code_point(text, begin))) {
    do {
      --begin;
    } while (is_utf8_continuation(text[begin]));
  }
  return begin;
}

std::size_t skip_space_right(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    std::size_t next = end;
    if (!is_whitespace(next_code_point(text, next))) {
      break;
    }
    end = next;
  }
  return end;
}

// Ends of white space, each run of which is walked once.
class SpaceEnds {
 public:
  explicit SpaceEnds(std::string_view text) : text_(text) {}

  std::size_t behind(std::size_t at) {
    if (at < begin_ || at > end_) {
      begin_ = at;
      end_ = skip_space_right(text_, at);
    }
    return end_;
  }

 private:
  std::string_view text_;
  std::size_t begin_ = 1;
  std::size_t end_ = 0;
};

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  starts_token_.resize(256);
  std::vector<std::pair<std::string, std::int32_t>> entries;
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    entries.emplace_back(tokens_[i].content, static_cast<std::int32_t>(i));
    starts_token_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
  }
  trie_ = ByteTrie(std::move(entries));
}

// Tells whether text is always cut at a token. Another token could match across its start only if
// it had the same byte behind its own first one.
bool AddedTokenMatcher::always_cuts(TokenId id) const {
  const auto token = std::ranges::find(tokens_, id, &AddedToken::id);
  return token != tokens_.end() && !token->single_word && !token->lstrip &&
         std::ranges::none_of(tokens_, [&](const AddedToken& other) {
           return other.content.find(token->content.front(), 1) != std::string::npos;
         });
}

const AddedToken* AddedTokenMatcher::match_at(std::string_view text, std::size_t at,
                                              const Authors& authors,
                                              base::WorkMeter& meter) const {
  const AddedToken* best = nullptr;
  std::uint32_t node = ByteTrie::root();
  std::size_t end = at;
  while (end < text.size()) {
    node = trie_.child(node, text[end++]);
    if (node == ByteTrie::kNoNode) {
      break;
    }
    if (trie_.value(node) < 0) {
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(trie_.value(node))];
    if (!token.special || authors.allow_special(at, end)) {
      best = &token;
    }
    if (token.special) {
      meter.step_bytes(end - at);
    }
  }
  return meter.step(static_cast<std::int64_t>((end - at) / 4) + 1) ? best : nullptr;
}

std::vector<AddedTokenMatcher::TextRange> AddedTokenMatcher::split(std::string_view text,
                                                                   const Authors& authors,
                                                                   base::WorkMeter& meter) const {
  std::vector<TextRange> ranges;
  SpaceEnds space_ends(text);
  std::size_t taken = 0;  // end of the last range
  meter.step_bytes(text.size());
  for (std::size_t at = 0; at < text.size() && !tokens_.empty() && !meter.failed();) {
    const AddedToken* token = starts_token_[static_cast<unsigned char>(text[at])]
                                  ? match_at(text, at, authors, meter)
                                  : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + token->content.size();
    at = end;
    if (token->single_word && touches_word(text, begin, end)) {
      continue;
    }
    if (token->lstrip) {
      begin = std::max(skip_space_left(text, begin, taken), taken);
    }
    if (token->rstrip) {
      end = space_ends.behind(end);
    }
    if (taken < begin) {
      ranges.push_back({.begin = taken, .end = begin, .id = -1});
    }
    ranges.push_back({.begin = begin, .end = end, .id = token->id});
    taken = end;
  }
  if (taken < text.size()) {
    ranges.push_back({.begin = taken, .end = text.size(), .id = -1});
  }
  return ranges;
}

}  // namespace quire::text
