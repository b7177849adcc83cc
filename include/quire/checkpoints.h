// CheckpointManager: the sequences of a program, all or some, as they are now, in a store that
// outlives it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sequence.h"

namespace quire {

struct CheckpointOptions {
  std::string series = "default";  // checkpoints of different series know nothing of each other
  std::string tenant = {};  // nor do those of different tenants; nor do they share KV: a sequence
                            // with a salt is saved under the tenant of that name, and a loaded one
                            // has it. Empty: ChunkCacheOptions::salt, usually none
  std::int64_t keep = 3;    // newest ones, pinned ones beside; 0: all
  std::int64_t every_tokens = 0;  // for maybe_save: new ones since the last save; 0: never
  double every_seconds = 0;       // ... or any new ones, and so much time went by; 0: never
  std::int64_t max_bytes =
      0;                  // of the store: saving evicts what was used least recently; 0: no limit
  bool compress = false;  // what is saved: smaller, slower (docs/store-format.md)
  // kInvalidArgument naming the option.
  [[nodiscard]] QUIRE_API Status validate() const;
};

// What is to be saved, and the name under which it is found again. Borrows the sequence.
struct NamedSequence {
  std::string name;
  const Sequence* sequence = nullptr;
};

struct LoadedSequence {
  std::string name;
  Sequence sequence;
};

struct CheckpointInfo {
  std::string name;
  std::int64_t number = 0;  // grows within a series
  std::string created_at;   // UTC, ISO 8601
  bool pinned = false;      // see Store::pin
  struct SequenceInfo {
    std::string name;
    std::int64_t tokens = 0;
  };
  std::vector<SequenceInfo> sequences;
  std::int64_t bytes = 0;  // of its KV in the store; checkpoints share what they have in common
  // Of save and compact: what had to be written.
  std::int64_t written_bytes = 0, written_objects = 0;
};

// Each checkpoint is complete by itself, yet saving one writes only the blocks that no earlier one
// has. A process that dies at any point loses none that was there. Restored sequences go on as the
// saved ones would have, bit for bit, in this process or another one.
//
// Move only; calls may come from any thread and wait for each other. Ends with its LLM: kClosed.
class QUIRE_API CheckpointManager {
 public:
  // Makes the store (docs/store-format.md) where there is none; other programs may use it too.
  [[nodiscard]] static Result<CheckpointManager> open(const LLM& llm, const std::string& folder,
                                                      const CheckpointOptions& options = {});
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;
  ~CheckpointManager();

  // Of these `sequences`; then forgets what `keep` does not cover. `name` empty:
  // "checkpoint-<number>"; one of the same name is replaced. kInvalidArgument for two sequences of
  // one name, kIo for a full disk. Of what a sliding window has freed the tokens are saved alone.
  [[nodiscard]] Result<CheckpointInfo> save(std::span<const NamedSequence> sequences,
                                            const std::string& name = "");
  // Saves when every_tokens or every_seconds says so; nothing otherwise. What was loaded counts as
  // saved; a time starts with the manager, and with each save. Nothing is ever saved
  // behind the program's back: it calls this where its sequences are as they shall be found again,
  // after each turn, say. Cost when nothing is due: comparing the ids.
  [[nodiscard]] Result<std::optional<CheckpointInfo>> maybe_save(
      std::span<const NamedSequence> sequences);

  // Newest first, without those whose entry is malformed: load() by name says what is wrong with
  // one. Reads no KV.
  [[nodiscard]] Result<std::vector<CheckpointInfo>> list() const;
  // The newest that is whole; kNotFound when there is none. Reads all of it.
  [[nodiscard]] Result<CheckpointInfo> latest() const;
  // All sequences of a checkpoint, or those called as in `only`. `name` empty: of the newest one
  // that can be loaded; without options.wait its KV is not looked at, only what says what it is.
  // kNotFound naming what is not there, kIncompatible for those of another model or KV format,
  // kCorrupt for damage.
  [[nodiscard]] Result<std::vector<LoadedSequence>> load(const std::string& name = "",
                                                         std::span<const std::string> only = {},
                                                         const LoadSequenceOptions& options = {});

  // False when there was none of this name.
  [[nodiscard]] Result<bool> remove(const std::string& name);
  // Forgets all but the newest `keep` and the pinned ones; how many. kInvalidArgument below 0.
  [[nodiscard]] Result<std::int64_t> cleanup(std::int64_t keep);
  // Writes what many small saves have scattered into as few files as one save would have; the
  // checkpoint stays what it is. Cost: reads and writes all of it.
  [[nodiscard]] Result<CheckpointInfo> compact(const std::string& name);

  struct Impl;

 private:
  explicit CheckpointManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
