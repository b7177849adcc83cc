// Checkpoints: all sequences of a program, or chosen ones, as they are now, in a store. Each
// checkpoint is complete by itself, yet writes only the objects that are not there already, so that
// its cost follows what has changed since the last one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv_store/entry.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_store.h"
#include "quire/kv_store/store.h"
#include "quire/result.h"

namespace quire::kv_store {

// A piece of a sequence that is an object of its own. Pieces that never change again (full blocks)
// are written once; only the piece that grows is written at every checkpoint.
struct CheckpointPiece {
  std::string object;                        // hash, see Store::put_object
  KVFileContent content;                     // its runs are the tokens of the piece
  std::vector<std::vector<BlockId>> blocks;  // [runs] on the shelves
};

struct CheckpointSequence {
  std::string name;  // unique in a checkpoint
  std::string metadata_json = "{}";
  std::vector<CheckpointPiece> pieces;
};

struct CheckpointOptions {
  std::string series = "default";  // checkpoints of different series know nothing of each other
  std::string tenant;
  std::int64_t keep = 3;         // newest ones, pinned ones not counted; 0: all
  std::int64_t every_calls = 0;  // due() says true at every n-th call; 0: never
  std::int64_t every_ms = 0;     // ... and when so much time went by since the last one; 0: never
  [[nodiscard]] Status validate() const;
};

struct SavedSequence {
  std::string name;
  std::string metadata_json;
  std::vector<EntryPart> parts;
};

struct Checkpoint {
  std::string name;
  std::int64_t number = 0;  // grows within a series
  Entry entry;              // of kind kCheckpoint
  std::vector<SavedSequence> sequences;
  // Of save() only:
  std::int64_t written_objects = 0;
  std::int64_t written_bytes = 0;
};

// Borrows the store; the store's thread rule holds.
class CheckpointManager {
 public:
  // kInvalidArgument naming the option.
  [[nodiscard]] static Result<CheckpointManager> create(Store& store, CheckpointOptions options);

  // Saves `sequences`, then forgets what `keep` does not cover. Interrupted anywhere, the earlier
  // checkpoints are whole. `name` empty: "checkpoint-<number>"; one of the same name is replaced.
  // `only`: names of the sequences to save, empty: all; kNotFound for one that is not given.
  [[nodiscard]] Result<Checkpoint> save(std::string name,
                                        std::span<const CheckpointSequence> sequences,
                                        const PagedStore& shelves,
                                        std::span<const std::string> only = {});

  // Newest first. Reads no KV.
  [[nodiscard]] Result<std::vector<Checkpoint>> list() const;
  [[nodiscard]] Result<Checkpoint> find(std::string_view name) const;  // kNotFound
  // The newest whose every object is there and whole; kNotFound says how many were passed over.
  // Cost: reads what it verifies.
  [[nodiscard]] Result<Checkpoint> latest() const;
  // Whether it was there.
  [[nodiscard]] Result<bool> remove(std::string_view name);
  // Forgets all but the newest `keep` and the pinned ones; returns how many.
  [[nodiscard]] Result<std::int64_t> prune(std::int64_t keep);

  // Counts one call; true when a checkpoint is due by `every_calls` or `every_ms`. save() starts
  // both counts anew.
  [[nodiscard]] bool due();

 private:
  CheckpointManager(Store& store, CheckpointOptions options);
  [[nodiscard]] std::string key_of(std::string_view name) const;
  [[nodiscard]] Status put_pieces(const CheckpointSequence& sequence, const PagedStore& shelves,
                                  Checkpoint& checkpoint);

  Store* store_;
  CheckpointOptions options_;
  std::int64_t calls_ = 0;
  std::int64_t saved_ms_ = 0;
};

}  // namespace quire::kv_store
