// Sequences and their checkpoints as values: marks, differences, options and descriptions. Sequence
// of sequence.h and CheckpointManager of checkpoints.h work on them. Plain data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

// A moment of one sequence, to come back to (Sequence::rollback). Plain data. A mark holds no KV;
// the sequence holds the KV of its marks.
struct Mark {
  // Number of the mark. Each LLM counts its own marks.
  std::uint64_t value = 0;
  // The LLM of the sequence, not kept alive.
  std::weak_ptr<const void> llm;
};

// Says how two sequences differ. Plain data that the caller owns.
struct SequenceDiff {
  // Number of tokens, from the first one on, that both have in common.
  std::int64_t common_tokens = 0;
  // Tokens behind the common ones. `left` is the sequence whose diff() was called, `right` the
  // argument.
  std::vector<TokenId> left, right;
  // Number of KV blocks that both hold. 0 for sequences of two LLMs.
  std::int64_t shared_blocks = 0;
};

// Says what an edit does to the KV behind the edited place.
// * kExact: computes that KV again.
// * kApproximate: keeps that KV, which has seen the old tokens and not the new ones.
enum class EditMode : std::uint8_t { kExact, kApproximate };

// Options of CheckpointManager::open. Plain data.
struct CheckpointOptions {
  // Name of the series. Checkpoints of different series know nothing of each other.
  std::string series = "default";
  // Tenant of the checkpoints, at most 1,024 bytes. Empty: ChunkCacheOptions::salt, usually none.
  // Checkpoints of different tenants know nothing of each other, and share no KV. A sequence with a
  // salt is saved under the tenant of that name alone. A loaded sequence has the tenant for its
  // salt.
  std::string tenant = {};
  // Number of the newest checkpoints that save() keeps; 0: all. Pinned ones stay beside them.
  std::int64_t keep = 3;
  // For maybe_save(): number of new tokens since the last save from which on a save is due. 0:
  // never.
  std::int64_t every_tokens = 0;
  // For maybe_save(): seconds since the last save, up to 10^10, after which any new token makes a
  // save due. 0: never.
  double every_seconds = 0;
  // Most bytes that the tenant's entries of the store name; 0: no limit. Beyond it saving evicts
  // the tenant's least recently used entries, but none that is pinned or just saved. Entries of
  // other tenants neither count nor go: StoreOptions::max_bytes bounds all of them.
  std::int64_t max_bytes = 0;
  // Compression of what is saved, which is then smaller and slower (docs/store-format.md).
  Compression compress = {};
  // Checks the options by themselves, before any file is opened.
  // Errors: kInvalidArgument names the option, its value and the values that are allowed.
  [[nodiscard]] QUIRE_API Status validate() const;
};

// Describes a checkpoint. Plain data that the caller owns.
struct CheckpointInfo {
  std::string name;
  // Number that grows within a series.
  std::int64_t number = 0;
  // UTC, ISO 8601.
  std::string created_at;
  // True: neither `keep` nor max_bytes removes the checkpoint (see Store::pin).
  bool pinned = false;
  // One sequence of the checkpoint. `tokens` counts all tokens but the last one, whose KV is
  // computed when something follows.
  struct SequenceInfo {
    std::string name;
    std::int64_t tokens = 0;
  };
  std::vector<SequenceInfo> sequences;
  // Bytes of the KV files of the store that the checkpoint names. Checkpoints share what they have
  // in common.
  std::int64_t bytes = 0;
  // Bytes and KV files that save() or compact() had to write. 0 elsewhere.
  std::int64_t written_bytes = 0, written_objects = 0;
};

}  // namespace quire
