// Step 4, a part: where the rows of a step are stored.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/entry_list.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::engine {

// Gives each row a slot. Where a run's format is written block by block, a row goes into the open
// block of its run. A block that a run begins and fills in one step has none: its rows are
// staged, in the format behind those of the pool. Blocks that become full are listed as seals.
//
// Keeps its arrays between steps.
class RowSlots {
 public:
  // A block of an open run with the rows of this step that lie in it, as they were computed.
  struct OwnBlock {
    BlockId block;
    kv::FormatId format;
    std::int32_t num_tokens = 0;    // those of this step too
    std::int32_t first_token = 0;   // of the block in its run
    std::int32_t run_position = 0;  // use position of the run's token 0
    RowRange rows;

    // Returns the block as a run. It shows `block`, which must outlive it.
    [[nodiscard]] kv::RunView view() const;
  };

  void begin(const kv::LedgerConfig& config);
  // Adds slots for rows of an open run, of which `open.num_tokens` tokens are stored. Rows of
  // tokens before `open.kept_tokens` are kept.
  void add(const kv::RunView& open, RowRange rows);
  // Adds copies of other runs' rows, which are the tokens of an open run before its own rows.
  // Precondition: they fill no block that is written when it is full.
  void add_copies(const kv::RunView& open, std::span<const std::int32_t> rows);

  // Returns whether a format is written block by block.
  [[nodiscard]] bool opens(kv::FormatId format) const { return opens_[format.value]; }
  [[nodiscard]] std::span<const tensor::KVSlot> slots() const { return slots_; }
  // Returns the formats of the slots [rows]; empty if all are the pool's own.
  [[nodiscard]] std::span<const std::uint8_t> formats() const;
  // Returns which rows are there already, with the same bits [rows]; empty if none is.
  [[nodiscard]] std::span<const std::uint8_t> kept() const;
  [[nodiscard]] model::RowCopies copies() const;
  // Returns how many formats the slots name: one more than the last.
  [[nodiscard]] std::uint8_t num_formats() const { return num_formats_; }
  [[nodiscard]] std::span<const model::BlockSeal> seals() const { return seals_; }
  // Returns the blocks in which rows lie as they were computed, run by run; none otherwise.
  [[nodiscard]] std::span<const OwnBlock> own_blocks() const { return own_blocks_; }

 private:
  void add_block(const kv::RunView& open, std::int32_t index, RowRange rows);

  std::int32_t block_tokens_ = 0;
  std::array<bool, kv::kMaxFormats> opens_ = {};
  kv::FormatId staging_;
  std::int32_t num_staged_ = 0;  // blocks
  std::uint8_t num_formats_ = 1;
  std::vector<tensor::KVSlot> slots_;
  std::vector<std::uint8_t> formats_;
  std::vector<std::uint8_t> kept_;
  bool keeps_ = false;  // some rows are kept
  std::vector<model::BlockSeal> seals_;
  std::vector<OwnBlock> own_blocks_;
  std::vector<std::int32_t> copied_rows_;
  std::vector<tensor::KVSlot> copy_slots_;
  std::vector<std::uint8_t> copy_formats_;
};

}  // namespace quire::engine
