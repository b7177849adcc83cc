#include "quire/drafts/suffix.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/matches.h"
#include "quire/types.h"

namespace quire::drafts {
namespace {

constexpr double kUnlikely = 0.1;        // below it a guess ends
constexpr std::size_t kMostPlaces = 64;  // that are counted

// Returns a name for salt and tenant together.
std::string name_of(const DraftHistory& history) {
  return base::str_cat(history.salt.size(), ":", history.salt, history.tenant);
}

}  // namespace

// Keeps the places behind matches that are as long as the longest.
void SuffixSource::look_in(std::span<const TokenId> own, std::span<const TokenId> text) {
  visit_matches(own, text, [&](std::size_t end, std::size_t length) {
    if (length > length_) {
      length_ = length;
      places_.clear();
    }
    if (length == length_ && places_.size() < kMostPlaces) {
      places_.push_back({.text = text, .next = end});
    }
    return places_.size() < kMostPlaces || length_ < kLongMatch;
  });
}

// Appends the most frequent next token, again and again; of equals the latest.
void SuffixSource::follow(std::int32_t most, std::vector<TokenId>& draft) {
  const std::size_t longest =
      std::min<std::size_t>(static_cast<std::size_t>(most), length_ * kFactor);
  double share = 1;
  while (draft.size() < longest && !places_.empty()) {
    counts_.clear();
    for (const Place& place : places_) {
      const TokenId token = place.text[place.next];
      const auto known = std::ranges::find(counts_, token, &std::pair<TokenId, std::size_t>::first);
      if (known == counts_.end()) {
        counts_.emplace_back(token, 1);
      } else {
        ++known->second;
      }
    }
    const auto best =
        std::ranges::max_element(counts_, {}, &std::pair<TokenId, std::size_t>::second);
    share *= static_cast<double>(best->second) / static_cast<double>(places_.size());
    if (share < kUnlikely) {
      return;
    }
    draft.push_back(best->first);
    std::erase_if(places_, [&](Place& place) {
      const bool goes_on = place.text[place.next] == best->first;
      ++place.next;
      return !goes_on || place.next == place.text.size();
    });
  }
}

void SuffixSource::propose(std::span<const DraftQuery> queries) {
  for (const DraftQuery& query : queries) {
    const std::span<const TokenId> own = query.history.own;
    if (own.empty()) {
      continue;
    }
    length_ = 0;
    places_.clear();
    look_in(own, own.last(std::min(own.size(), kKeptTokens)));
    for (std::size_t i = query.history.prompt.size(); i > 0; --i) {
      look_in(own, query.history.prompt[i - 1]);
    }
    if (const auto found = tenants_.find(name_of(query.history)); found != tenants_.end()) {
      for (auto text = found->second.texts.rbegin(); text != found->second.texts.rend(); ++text) {
        look_in(own, *text);
      }
    }
    follow(query.most, query.draft->tokens);
  }
}

void SuffixSource::learn(const DraftHistory& history) {
  if (history.output.empty()) {
    return;
  }
  Outputs& outputs = tenants_[name_of(history)];
  outputs.heard = ++heard_;
  const auto text = history.output.last(std::min(history.output.size(), kKeptTokens));
  outputs.texts.emplace_back(text.begin(), text.end());
  outputs.tokens += text.size();
  while (outputs.tokens > kKeptTokens) {
    outputs.tokens -= outputs.texts.front().size();
    outputs.texts.pop_front();
  }
  if (tenants_.size() > kTenants) {
    tenants_.erase(std::ranges::min_element(
        tenants_, {}, [](const auto& tenant) { return tenant.second.heard; }));
  }
}

}  // namespace quire::drafts
