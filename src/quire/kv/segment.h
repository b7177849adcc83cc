// Segment: an immutable run of tokens with KV.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/types.h"

namespace quire::kv {

// Token i is stored in slot i % block_tokens of block i / block_tokens, its key rotated to position
// stored_from + i. The last block may be filled partly, and then have another format
// (BlockFormat::open). The segment holds its blocks; sequences
// that use it hold them too, so it may go while they stay. Nobody writes into the slots that it
// covers.
//
// While nobody uses the segment, the tokens of its last block may lie behind those of others, from
// slot tail_slot() on (coalescing.h).
//
// Where the model has layers with a state, a segment may have other blocks beside those. They hold
// what its tokens make of the state before them, as bytes (docs/adr/0048).
class Segment {
 public:
  Segment(BlockTable blocks, std::vector<TokenId> tokens, std::int32_t stored_from = 0,
          std::int32_t found_blocks = 0, FormatId format = {},
          std::shared_ptr<const BlockTable> maps = nullptr)
      : blocks_(std::move(blocks)),
        tokens_(std::move(tokens)),
        stored_from_(stored_from),
        found_blocks_(found_blocks),
        format_(format),
        maps_(std::move(maps)) {}

  // Returns a copy that holds the same blocks.
  [[nodiscard]] Segment clone() const {
    Segment copy(blocks_.clone(blocks_.size()), tokens_, stored_from_, found_blocks_, format_,
                 maps_);
    copy.tail_slot_ = tail_slot_;
    return copy;
  }
  // Lets the last block be another one, from which it takes over the caller's reference. Its tokens
  // there begin at `slot`.
  void move_tail(BlockRef to, std::int32_t slot) {
    blocks_.replace(blocks_.size() - 1, to);
    tail_slot_ = slot;
  }

  [[nodiscard]] const BlockTable& blocks() const { return blocks_; }
  // Returns the slot of the last block in which its tokens begin: not 0 where it was coalesced.
  [[nodiscard]] std::int32_t tail_slot() const { return tail_slot_; }
  [[nodiscard]] std::span<const TokenId> tokens() const { return tokens_; }
  // Returns the first slot with KV: 0 except for a part that was copied out of the middle of a run.
  [[nodiscard]] std::int32_t stored_from() const { return stored_from_; }
  // Returns how many leading blocks were cached before their KV was asked for here.
  [[nodiscard]] std::int32_t found_blocks() const { return found_blocks_; }
  // Returns the format that was asked for, also where the only block is not full.
  [[nodiscard]] FormatId format() const { return format_; }
  // Returns the blocks with its maps, of the pool's own format; null where it has none.
  [[nodiscard]] const std::shared_ptr<const BlockTable>& maps() const { return maps_; }
  // Returns the bytes of all its blocks.
  [[nodiscard]] std::int64_t num_bytes() const {
    return blocks_.num_bytes() + (maps_ == nullptr ? 0 : maps_->num_bytes());
  }
  [[nodiscard]] std::int32_t num_tokens() const {
    return static_cast<std::int32_t>(tokens_.size());
  }

 private:
  BlockTable blocks_;
  std::vector<TokenId> tokens_;
  std::int32_t stored_from_ = 0;
  std::int32_t found_blocks_ = 0;
  FormatId format_;
  std::int32_t tail_slot_ = 0;
  std::shared_ptr<const BlockTable> maps_;
};

}  // namespace quire::kv
