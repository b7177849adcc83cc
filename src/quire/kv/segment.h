// Segment: an immutable run of tokens with KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/kv/block_table.h"
#include "quire/types.h"

namespace quire::kv {

// Token i is stored at position i, in slot i % block_tokens of block i / block_tokens; the last
// block may be filled partly. The segment holds its blocks; sequences that use it hold them too, so
// it may go while they stay. Nobody writes into the slots that it covers.
class Segment {
 public:
  Segment(BlockTable blocks, std::vector<TokenId> tokens)
      : blocks_(std::move(blocks)), tokens_(std::move(tokens)) {}

  [[nodiscard]] const BlockTable& blocks() const { return blocks_; }
  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  [[nodiscard]] std::int32_t num_tokens() const {
    return static_cast<std::int32_t>(tokens_.size());
  }

 private:
  BlockTable blocks_;
  std::vector<TokenId> tokens_;
};

}  // namespace quire::kv
