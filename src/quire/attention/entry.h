// Entries describe all attention work: decode, prefill, shared prefixes, chunks and trees are lists
// of entries. An entry does not say who owns its blocks (docs/architecture.md).
#pragma once

#include <cstdint>
#include <span>

namespace quire::attention {

// One query row of an entry.
struct EntryRow {
  std::int32_t row = 0;             // index into q and out
  std::int32_t query_position = 0;  // rotary position of the query for this run: use position minus
                                    // shift of the run, so it may differ between entries of one row
  std::int32_t visible_end = 0;     // sees tokens [0, visible_end) of the run, less what a sliding
                                    // window hides: token j is visible iff
                                    // stored_from + j > query_position - window
};

// Query rows over one run of consecutive tokens stored at positions 0, 1, 2, ... of the run.
// A row that appears in several entries sees their union; results are merged in list order.
struct Entry {
  std::span<const std::int32_t>
      blocks;                      // ids; block i holds tokens [i * B, (i + 1) * B) of the run.
                                   // Ids of blocks that every row's window hides may be -1.
  std::int32_t num_tokens = 0;     // tokens of the run that are stored (or appended this step)
  std::span<const EntryRow> rows;  // ascending in `row`
  std::int32_t first_token = 0;  // rows see nothing before it; a multiple of kPieceTokens, so that
                                 // the parts of a run reduce to what the whole run does
  std::uint8_t format = 0;       // index of the view that has the blocks: RunParams::views
  std::int32_t stored_from = 0;  // position that the key of token 0 is rotated to
};

}  // namespace quire::attention
