// Guesses what most often followed the last tokens, in the request and in earlier outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/drafts/draft_source.h"
#include "quire/types.h"

namespace quire::drafts {

// Keeps the last outputs of each tenant, and shows no tenant those of another. A guess begins
// behind the longest match and follows what came there most often. It ends where that becomes
// unlikely, and is at most kFactor times as long as the match. Cost: O(tokens kept of the tenant
// and of the request). Source of the idea: Oliaro et al., SuffixDecoding, arXiv 2411.04975.
class SuffixSource final : public DraftSource {
 public:
  static constexpr std::size_t kKeptTokens = 32'768;  // of a tenant
  static constexpr std::size_t kTenants = 64;         // those that were heard of last
  static constexpr std::size_t kFactor = 4;

  void propose(std::span<const DraftQuery> queries) override;
  void learn(const DraftHistory& history) override;

 private:
  struct Outputs {
    std::deque<std::vector<TokenId>> texts;  // the last one at the end
    std::size_t tokens = 0;
    std::uint64_t heard = 0;
  };
  // A place behind a match: the text, and the next token in it.
  struct Place {
    std::span<const TokenId> text;
    std::size_t next = 0;
  };

  void look_in(std::span<const TokenId> own, std::span<const TokenId> text);
  void follow(std::int32_t most, std::vector<TokenId>& draft);

  std::map<std::string, Outputs, std::less<>> tenants_;
  std::uint64_t heard_ = 0;
  std::size_t length_ = 0;     // tokens of the longest match
  std::vector<Place> places_;  // behind matches of this length, the latest first
  std::vector<std::pair<TokenId, std::size_t>> counts_;  // of next tokens
};

}  // namespace quire::drafts
