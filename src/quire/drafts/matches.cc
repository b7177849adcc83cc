#include "quire/drafts/matches.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "quire/types.h"

namespace quire::drafts {

std::size_t match_length(std::span<const TokenId> own, std::span<const TokenId> text,
                         std::size_t end) {
  const std::size_t most = std::min({own.size(), end, kLongMatch});
  std::size_t length = 0;
  while (length < most && own[own.size() - 1 - length] == text[end - 1 - length]) {
    ++length;
  }
  return length;
}

}  // namespace quire::drafts
