// ChunkRegistrar: registers chunks, from their texts to their KV, and takes registrations back.
//
// A registration is a request without logits, whose KV is sealed into a segment when it ends.
//
// Thread rule: public functions may be called from any thread but the engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_registry.h"
#include "quire/result.h"

namespace quire::chunks {

// Chunks that a call has registered, and the KV that was computed for it.
struct TakenChunks {
  std::vector<RegisteredChunk> registered;
  std::vector<kv::VariantName> computed;
};

class ChunkRegistrar {
 public:
  // All are borrowed.
  ChunkRegistrar(ChunkCore& core, ChunkPrefills& prefills, ChunkLibrary& library,
                 ChunkDrafts& drafts)
      : core_(core), prefills_(prefills), library_(library), drafts_(drafts) {}

  // Registers all of `chunks` or none, and computes their KV. Errors: ChunkedLLM::register_chunks.
  [[nodiscard]] Result<std::vector<RegisteredChunk>> register_chunks(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted, Registration how);
  // Gives up what these registrations hold.
  void release(std::vector<RegisteredChunk> registered);
  // Gives it up, and deletes what the call created and computed, unless somebody else uses it.
  void withdraw(TakenChunks taken);

 private:
  [[nodiscard]] Status register_all(std::vector<ChunkDraft>& drafts, const Registration& how,
                                    const Interrupt& interrupted);
  static void report(std::span<const ChunkDraft> drafts, const ChunkProgress& progress);
  [[nodiscard]] Status register_drafts(std::span<ChunkDraft> drafts, Anchors& anchors,
                                       const Interrupt& interrupted);
  [[nodiscard]] Status visit(std::span<ChunkDraft> drafts,
                             const std::function<Status(ChunkDraft&)>& visit);
  [[nodiscard]] Status visit_with_room(std::span<ChunkDraft> drafts,
                                       const std::function<Status(ChunkDraft&)>& visit_one);
  [[nodiscard]] Status begin_all_with_room(std::span<ChunkDraft> drafts,
                                           std::vector<PendingPrefill>& pending);
  void release_anchors(std::span<ChunkDraft> drafts);

  // Engine thread.
  [[nodiscard]] Status place_anchor(ChunkDraft& draft, Anchors& anchors);
  [[nodiscard]] Result<std::string> anchor_of(const ChunkDraft& draft, Anchors& anchors);
  bool merge(ChunkDraft& draft, const kv::Chunk* known);
  void release_now(std::span<RegisteredChunk> registered);
  [[nodiscard]] Result<std::optional<PendingPrefill>> begin(ChunkDraft& draft);
  [[nodiscard]] Status begin_all(std::span<ChunkDraft> drafts,
                                 std::vector<PendingPrefill>& pending);

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  ChunkLibrary& library_;
  ChunkDrafts& drafts_;
  std::uint64_t serial_ = 0;  // of chunks that are not shared. Engine thread
};

}  // namespace quire::chunks
