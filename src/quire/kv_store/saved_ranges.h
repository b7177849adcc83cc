// Sequences as ranges of tokens that a store keeps once: what a checkpoint writes of them, and
// under which names.
//
// A range is a part of a run, from a block's beginning to another's or to the end of the run. Its
// name says what its KV is, so equal ranges of later checkpoints, and of other sequences that begin
// alike, are the same object. Lost blocks have ranges of their own, tokens without KV: what earlier
// checkpoints have of that KV may go with them. Where blocks have lost their window parts alone,
// what earlier checkpoints have of those goes on to be used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/kv/format.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/kv_store/store_entry.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {

struct LiveRun {
  SavedRun run;                      // without a type: that is in the next two
  std::vector<BlockId> blocks;       // in the paged pool, but those that are lost
  kv::FormatId format = {};          // format of these blocks
  tensor::KVGeometry geometry = {};  // geometry of a saved run; of one to save the pool says it
};

// A sequence as the program has it now.
struct LiveSequence {
  std::string name;                  // unique in a checkpoint
  std::string metadata_json = "{}";  // the caller's
  base::KVFingerprint fingerprint;
  std::string kernels;  // kernels that computed the KV
  // Every bit of the KV follows from fingerprint, kernels and the tokens so far. Else the KV itself
  // is part of the names, which costs a pass over it.
  bool follows_from_tokens = true;
  std::vector<LiveRun> runs;
  SavedStates states = {};
  // States as they lie in memory, of a sequence to save. Borrowed.
  std::vector<std::span<const std::byte>> state_bytes = {};
};

// Tokens [begin, end) of a run.
struct SavedRange {
  std::size_t run = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::string object;           // name of the object
  std::int32_t lost_parts = 0;  // leading blocks that the object has without their window part
  // The object of what is there now, without the parts that have gone. Not empty where `object`,
  // which is known, has more.
  std::string instead = {};
};

// The names of the ranges of one sequence. Borrows it and the pool.
class SavedRangeNames {
 public:
  // Hashes all tokens of the sequence: O(tokens).
  SavedRangeNames(const LiveSequence& sequence, std::string_view tenant, const PagedPool& pool);
  // Names a range. `begin` is at a block, `end` at a block or the end of the run. Either all
  // between them is lost, or nothing. The first `lost_parts` blocks have no window part.
  [[nodiscard]] std::string name(std::size_t run, std::int64_t begin, std::int64_t end,
                                 std::int32_t lost_parts = 0) const;

 private:
  using Digest = std::string;
  const LiveSequence& sequence_;
  const PagedPool& pool_;
  std::vector<std::vector<Digest>> before_;  // [runs][blocks + 1]: of all tokens before it
};

// Names the object of a state of a sequence by what it is: the model's state behind these tokens.
// O(tokens).
[[nodiscard]] std::string name_of_state(const LiveSequence& sequence, std::size_t index,
                                        std::string_view tenant, const PagedPool& pool);

// Cuts sequences so that what is known already is used where it fits.
class RangeCutter {
 public:
  explicit RangeCutter(std::string tenant) : tenant_(std::move(tenant)) {}

  // Learns the ranges of a sequence, in order, that some checkpoint names.
  void learn(std::span<const ObjectRange> parts);
  // Cuts a sequence into ranges, in order, which together are all runs. `cuts`: tokens of the
  // sequence, ascending, where new ranges end if a block does. New ranges are known from then on.
  [[nodiscard]] std::vector<SavedRange> cut(const LiveSequence& sequence, const PagedPool& pool,
                                            std::span<const std::int64_t> cuts);

 private:
  // A run within its sequence.
  struct RunBounds {
    std::int64_t run_start = 0;  // in tokens of the sequence
    std::int64_t length = 0;
    std::int64_t lost = 0;          // leading tokens of the run that are in lost blocks
    std::int64_t without_part = 0;  // leading tokens that are in blocks without window part
    std::int64_t block_tokens = 0;
    // Returns how many leading blocks of a range have no window part.
    [[nodiscard]] std::int32_t lost_parts(std::int64_t begin, std::int64_t end) const;
  };
  [[nodiscard]] std::optional<SavedRange> find_known(const SavedRangeNames& names, std::size_t run,
                                                     std::int64_t begin,
                                                     const RunBounds& bounds) const;

  [[nodiscard]] std::int64_t end_of_new(std::int64_t begin, const RunBounds& bounds,
                                        std::span<const std::int64_t> cuts) const;

  std::string tenant_;
  // Names by first token and length.
  std::map<std::int64_t, std::map<std::int64_t, std::set<std::string>>> known_;
};

// Returns, for each sequence, where it stops to be like another one: ranges that end there are
// shared.
[[nodiscard]] std::vector<std::vector<std::int64_t>> common_cuts(
    std::span<const LiveSequence* const> sequences);

}  // namespace quire::kv_store
