// Checkpoints: all sequences of a program, or chosen ones, as they are now, in a store. Each
// checkpoint is complete by itself, yet writes only the blocks that no earlier one has. So its cost
// follows what has changed since the last one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv_store/checkpoint.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"

namespace quire::kv_store {

struct CheckpointOptions {
  std::string series = "default";  // checkpoints of different series know nothing of each other
  std::string tenant;
  std::int64_t keep = 3;          // newest ones, pinned ones not counted; 0: all
  std::int64_t every_tokens = 0;  // due() says true when there are so many new ones; 0: never
  std::int64_t every_ms = 0;      // ... or some, and so much time went by; 0: never
  [[nodiscard]] Status validate() const;
};

// Borrows the store; the store's thread rule holds.
class CheckpointManager {
 public:
  // Creates a manager. Returns kInvalidArgument naming the option.
  [[nodiscard]] static Result<CheckpointManager> create(Store& store, CheckpointOptions options);

  // Saves `sequences`, then forgets what `keep` does not cover. Interrupted anywhere, the earlier
  // checkpoints are whole. One of the same name is replaced. `name` empty: "checkpoint-<number>",
  // with a number that is free: of several processes that save at a time none loses its own.
  // `only`: names of the sequences to save, empty: all; kNotFound for one that is not given. Writes
  // the blocks that no checkpoint of the series has.
  [[nodiscard]] Result<Checkpoint> save(const std::string& name,
                                        std::span<const LiveSequence> sequences,
                                        const PagedPool& pool,
                                        std::span<const std::string> only = {});

  // Returns a saved sequence without blocks: its runs are empty of KV. Reads the headers of its
  // objects. kNotFound and kCorrupt name the object.
  [[nodiscard]] Result<LiveSequence> tokens_of(const SavedSequence& saved) const;
  // Opens the files that have these blocks of a run of the sequence.
  [[nodiscard]] Result<std::vector<KVFileRange>> open_blocks(const SavedSequence& saved,
                                                             const BlockRange& wanted,
                                                             std::int64_t block_tokens) const;
  // Opens the object of a state of the sequence, whose one state it is. kCorrupt for another one.
  [[nodiscard]] Result<KVFile> open_state(const SavedSequence& saved, std::size_t index) const;
  // Reads blocks [first_block, first_block + to.size()) of a run of it into the pool, the first
  // `without_part` of them without their window part. Blocks read before an error may not be used.
  [[nodiscard]] Status read(const SavedSequence& saved, std::size_t run, std::int32_t first_block,
                            std::span<const BlockId> to, PagedPool& pool,
                            std::int32_t without_part = 0) const;
  // Writes a checkpoint anew in as few objects as if it had been the first one. KV that many small
  // saves have scattered is written together. Cost: reads and writes all of it.
  [[nodiscard]] Result<Checkpoint> compact(std::string_view name);

  // Lists checkpoints, newest first. Reads no KV. Entries of the series that are no checkpoints of
  // ours are passed over; `malformed` gets what is wrong with them.
  [[nodiscard]] Result<std::vector<Checkpoint>> list(std::vector<Error>* malformed = nullptr) const;
  // Finds a checkpoint. Returns kNotFound, or kCorrupt for an entry that list() passes over.
  [[nodiscard]] Result<Checkpoint> find(std::string_view name) const;
  // Returns the newest checkpoint whose every object is there and whole. kNotFound says how many
  // were passed over. Cost: reads what it verifies.
  [[nodiscard]] Result<Checkpoint> latest() const;
  // Returns whether it was there.
  [[nodiscard]] Result<bool> remove(std::string_view name);
  // Forgets all but the newest `keep` and the pinned ones; returns how many.
  [[nodiscard]] Result<std::int64_t> prune(std::int64_t keep);

  // Returns whether a checkpoint is due. `new_tokens` counts tokens that the last one lacks. They
  // reach every_tokens, or there are some and every_ms went by since this manager's last save().
  [[nodiscard]] bool due(std::int64_t new_tokens) const;

 private:
  CheckpointManager(Store& store, CheckpointOptions options);
  [[nodiscard]] std::string key_of(std::string_view name) const;
  [[nodiscard]] Result<Checkpoint> put(const std::string& name,
                                       std::span<const LiveSequence* const> sequences,
                                       const PagedPool& pool);
  [[nodiscard]] Status put_ranges(const LiveSequence& sequence, std::span<const SavedRange> ranges,
                                  const PagedPool& pool, Checkpoint& checkpoint);
  [[nodiscard]] Status put_states(const LiveSequence& sequence, const PagedPool& pool,
                                  Checkpoint& checkpoint, SavedSequence& saved);
  // Fills the entry, but for its parts, from name, number and sequences.
  [[nodiscard]] Status complete_entry(Checkpoint& checkpoint) const;
  // Puts the entry under the first name "checkpoint-<number>" that is free from its number on.
  [[nodiscard]] Status put_numbered(Checkpoint& checkpoint);
  // Puts the entry of what was put before; the stored one.
  [[nodiscard]] Result<Checkpoint> put_checkpoint(Checkpoint checkpoint);
  [[nodiscard]] Status compact_sequence(const SavedSequence& saved, LiveSequence sequence,
                                        RangeCutter& cutter, std::span<const std::int64_t> cuts,
                                        Checkpoint& checkpoint);

  Store* store_;
  CheckpointOptions options_;
  std::int64_t saved_ms_ = 0;
};

// Returns the result of `take` for the newest checkpoint that it can take. Where one is damaged or
// not there (kCorrupt, kNotFound, kIo), the next earlier one follows. Other processes save and
// forget meanwhile: before an earlier one is taken, a newer one that has come is tried.
template <class Take>
auto take_newest(const CheckpointManager& checkpoints, Take take)
    -> decltype(take(std::declval<Checkpoint&>())) {
  std::vector<Error> malformed;
  QUIRE_TRY(std::vector<Checkpoint> known, checkpoints.list(&malformed));
  Error last{.code = ErrorCode::kNotFound, .message = "no checkpoint to load: none was saved"};
  last = malformed.empty() ? last : malformed.front();
  for (std::size_t next = 0; next < known.size();) {
    auto taken = take(known[next]);
    if (taken.ok()) {
      return taken;
    }
    last = taken.error();
    if (last.code != ErrorCode::kCorrupt && last.code != ErrorCode::kNotFound &&
        last.code != ErrorCode::kIo) {
      return last;  // an earlier one would fare no better
    }
    QUIRE_TRY(std::vector<Checkpoint> now, checkpoints.list());
    if (!now.empty() && now.front().number > known.front().number) {
      known = std::move(now);
      next = 0;
    } else {
      ++next;
    }
  }
  return last;
}

}  // namespace quire::kv_store
