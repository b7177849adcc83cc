// CompositionPreview: says what running a composition would do.
//
// Thread rule: any thread but the engine's.
#pragma once

#include <optional>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/composition_planner.h"
#include "quire/kv/composition.h"
#include "quire/output.h"
#include "quire/result.h"

namespace quire::chunks {

// Reasons why the KV of a chunk is not there.
inline constexpr const char* kQueryIsComputed = "a query is always computed";
inline constexpr const char* kNotComputedYet = "not computed yet";

// Returns the segments of a composition as explain shows them.
[[nodiscard]] std::vector<ReusePart> parts_of(const CompositionInfo& info);

class CompositionPreview {
 public:
  // Borrows all four.
  CompositionPreview(ChunkCore& core, ChunkPrefills& prefills, ChunkLibrary& library,
                     CompositionPlanner& planner)
      : core_(core), prefills_(prefills), library_(library), planner_(planner) {}

  // Changes nothing, needs no block, and reads no KV: what is damaged in the store counts as there.
  [[nodiscard]] Result<CompositionInfo> preview(const CompositionSpec& spec);
  // Returns what preview() returns. Engine thread.
  [[nodiscard]] Result<CompositionInfo> preview_now(const CompositionSpec& spec);
  // Returns whether encoding the joined text gives the joined ids. Encodes nothing where every
  // segment begins with a token that stands apart, and was registered by this process.
  [[nodiscard]] bool retokenizes_alike(const CompositionInfo& info);

 private:
  class Foresight;
  // Returns whether the text of each segment, encoded, gives its ids again. Returns nothing where
  // that is unknown of one and true of all others. Engine thread.
  [[nodiscard]] std::optional<bool> each_retokenizes_alike(const CompositionInfo& info);
  void describe_exact(const kv::ResolvedComposition& composition, CompositionInfo& info) const;
  void describe_composed(const kv::ResolvedComposition& composition, const Foresight& foresight,
                         CompositionInfo& info) const;

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  ChunkLibrary& library_;
  CompositionPlanner& planner_;
};

}  // namespace quire::chunks
