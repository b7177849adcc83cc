// CheckpointManager: the sequences of a program, all or some, as they are now, in a store that
// outlives the program. Guide: docs/checkpoints.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sequence.h"
#include "quire/sequence_types.h"  // IWYU pragma: export

namespace quire {

// A sequence to be saved, and the name under which load() finds it again. Borrows the sequence.
struct NamedSequence {
  std::string name;
  const Sequence* sequence = nullptr;
};

// A sequence that was loaded, which the caller owns, and its name.
struct LoadedSequence {
  std::string name;
  Sequence sequence;
};

// Saves sequences into the checkpoints of a store, and loads them again.
//
// Each checkpoint is complete by itself, yet saving one writes only the blocks that no earlier one
// has. A process that dies at any point loses no checkpoint that was there. Restored sequences go
// on as the saved ones would have, bit for bit, in this process or another one. KV that another
// kernel set has computed is loaded, too. The grade is then kEqualMath at best.
//
// Ownership: move only. A moved-from manager may only be destroyed or assigned to. The manager ends
// with its LLM: calls return kClosed then.
// Threads: any number of threads may call; calls wait for each other. Only moving and destroying
// need the object for themselves.
//
// Errors of every call:
// * kClosed: the LLM has ended, or the process is a forked child.
// * kIo: the system refuses. Calls that change the store return kIo where it is read-only.
// * kCorrupt: the index of the store is damaged.
// * kOutOfBlocks: the machine refuses memory.
class QUIRE_API CheckpointManager {
 public:
  // Opens the store in `folder`, and makes one where there is none (see Store::open). Other
  // programs may use the store, too. Computes nothing and reads no KV.
  // Errors: those of Store::open. kInvalidArgument names an option that is out of range.
  [[nodiscard]] static Result<CheckpointManager> open(const LLM& llm, const std::string& folder,
                                                      const CheckpointOptions& options = {});
  CheckpointManager(CheckpointManager&&) noexcept;
  CheckpointManager& operator=(CheckpointManager&&) noexcept;
  ~CheckpointManager();

  // Saves a checkpoint of `sequences`, then forgets those that `keep` does not cover. Returns what
  // was saved. An empty name means "checkpoint-<number>"; a checkpoint of that name is replaced.
  // A sequence that another call is changing is saved as it was before that call. Where a sliding
  // window has freed KV, the tokens are saved alone.
  // Waits for the running step, and until KV that is still being loaded is there. Writes the blocks
  // that no checkpoint of the series has.
  // Errors: kInvalidArgument for two sequences of one name, for null, and for a sequence of another
  // LLM or another tenant. kIo for a full disk. kCorrupt for KV that was loaded from a damaged
  // file.
  [[nodiscard]] Result<CheckpointInfo> save(std::span<const NamedSequence> sequences,
                                            const std::string& name = "");
  // Saves under an empty name where CheckpointOptions::every_tokens or every_seconds says so.
  // Returns nullopt where nothing is due.
  // A program calls maybe_save() where its sequences are as they shall be found again, after each
  // turn, say. Nothing is ever saved behind the program's back.
  // Tokens that were saved or loaded last count as saved. Tokens behind an edit count as new. The
  // time starts when the manager is opened, and with each save.
  // Compares the ids of all tokens. Where nothing is due, the engine is asked nothing.
  // Errors: those of save().
  [[nodiscard]] Result<std::optional<CheckpointInfo>> maybe_save(
      std::span<const NamedSequence> sequences);

  // Returns the checkpoints of the series, newest first. Reads no KV.
  // Checkpoints whose entry is malformed are left out: load() by name says what is wrong with one.
  [[nodiscard]] Result<std::vector<CheckpointInfo>> list() const;
  // Returns the newest checkpoint whose every KV file is there and whole. Reads all its KV.
  // Errors: kNotFound when there is none.
  [[nodiscard]] Result<CheckpointInfo> latest() const;
  // Loads all sequences of a checkpoint, or those named in `only`. Returns them in the order in
  // which they were saved. Computes nothing. The call is a use of the checkpoint.
  // An empty name means the newest checkpoint that can be loaded. One that is damaged, or that
  // lacks a name of `only`, is passed over for the next earlier one.
  // With options.wait: blocks until all KV is read, and compares every checksum. Otherwise the KV
  // is read in the background, and only the headers decide which checkpoint can be loaded (see
  // LoadSequenceOptions).
  // Errors: kNotFound names what is not there. kIncompatible for a checkpoint of another model or
  // KV format. kCorrupt for damage. kOverflow for tokens beyond the model's context. kOutOfBlocks
  // when the KV does not fit now. kInvalidArgument for options.salt: the tenant is the salt.
  [[nodiscard]] Result<std::vector<LoadedSequence>> load(const std::string& name = "",
                                                         std::span<const std::string> only = {},
                                                         const LoadSequenceOptions& options = {});

  // Removes a checkpoint, and the KV that nothing else in the store names. Returns false when there
  // was none of this name.
  [[nodiscard]] Result<bool> remove(const std::string& name);
  // Forgets all checkpoints but the newest `keep` and the pinned ones. Returns how many went. With
  // 0 only pinned ones stay.
  // Errors: kInvalidArgument below 0.
  [[nodiscard]] Result<std::int64_t> cleanup(std::int64_t keep);
  // Writes the KV that many small saves have scattered into as few files as one save would have.
  // Returns the checkpoint, which is otherwise what it was.
  // Reads and writes all KV of the checkpoint. Does not wait for the running step.
  // Errors: kNotFound; kCorrupt for damage; kIo.
  [[nodiscard]] Result<CheckpointInfo> compact(const std::string& name);

  // For the library itself.
  struct Impl;

 private:
  explicit CheckpointManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
