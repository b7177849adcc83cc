// Composition: an ordered list of chunks as segments at positions. Resolving one is a pure function
// of the chunks: what preview shows is what a run then does. Cost: O(parts), whatever their length.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

// A chunk in use.
struct Part {
  const Chunk* chunk = nullptr;      // valid as long as the finder says
  VariantKey key;                    // key of the KV that the mode asks for
  FormatId format;                   // format of that KV: the chunk's
  std::optional<SegmentId> segment;  // segment that is there already
  std::int32_t position = 0;         // position of its first token
};

struct ResolvedComposition {
  std::vector<Part> parts;  // with KV, in order: system, contexts
  Part query;               // always computed; no segment
  ReuseMode mode = ReuseMode::kAnchored;
  ReuseGrade grade = ReuseGrade::kApproximate;
  // Mode kExact with a chunk in another format than the pool's own. Each part has KV of its own,
  // computed behind all parts before it.
  bool chained = false;
  // Returns whether the ids are a plain prompt, whose parts have no KV of their own.
  [[nodiscard]] bool plain() const { return mode == ReuseMode::kExact && !chained; }
  // Returns parts whose KV is wanted and not there, each (chunk, key) once. A chain gives the first
  // of them alone, since the others stand behind it.
  [[nodiscard]] std::vector<Part> missing() const;
  // Returns the parts before `part`, which are there, where its key names a chain.
  [[nodiscard]] std::vector<SegmentUse> chain_before(const Part& part) const;
  [[nodiscard]] std::vector<SegmentUse> uses() const;  // precondition: nothing is missing
  [[nodiscard]] std::vector<TokenId> joined() const;   // ids of all parts and the query
  [[nodiscard]] std::int64_t num_tokens() const;
};

// Returns whether the KV was computed behind several chunks, for one composition alone.
[[nodiscard]] bool is_chained(const VariantKey& key);

// A function that finds a chunk by its id, or says why there is none.
using FindChunk = std::function<Result<const Chunk*>(const std::string& id)>;
// Properties of a model that modes depend on.
struct ModelShape {
  bool has_states = false;  // some layer carries a state, which parts change by their maps
  std::int32_t layers = 0;  // number of layers
  // Formats of KV that hold it otherwise than the pool's own does, and not only rounded finer.
  std::array<bool, kMaxFormats> changes_kv = {};
};
// Resolves a composition among the chunks that `find` finds. kInvalidComposition for wrong kinds,
// numbers or positions, kNotFound for unknown chunks, kIncompatible when the mode has no meaning.
// Mode kExact gives parts without segments, where all chunks have the pool's own format.
[[nodiscard]] Result<ResolvedComposition> resolve(const FindChunk& find,
                                                  const CompositionSpec& spec,
                                                  const ModelShape& model);
// Resolves among the chunks that the tenant `salt` has in a registry, valid until it changes.
[[nodiscard]] Result<ResolvedComposition> resolve(ChunkRegistry& registry, std::string_view salt,
                                                  const CompositionSpec& spec,
                                                  const ModelShape& model);

}  // namespace quire::kv
