// ChunkRegistrar: registers the chunks of a call, all or none, and takes registrations back.
//
// Thread rule: public functions may be called from any thread but the engine's.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/registration.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_types.h"
#include "quire/result.h"

namespace quire::chunks {

// Chunks that a call has registered, and the KV that was computed for it.
struct TakenChunks {
  std::vector<RegisteredChunk> registered;
  std::vector<kv::VariantName> computed;
};

class ChunkRegistrar {
 public:
  explicit ChunkRegistrar(RegistrationParts parts)
      : core_(parts.core),
        prefills_(parts.prefills),
        library_(parts.library),
        drafts_(parts.drafts) {}

  // Registers all of `chunks` or none, and computes their KV. Errors: ChunkedLLM::register_chunks.
  [[nodiscard]] Result<std::vector<RegisteredChunk>> register_chunks(
      std::span<const ChunkContent> chunks, const Interrupt& interrupted, RegistrationRules how);
  // Gives up what these registrations hold.
  void release(std::vector<RegisteredChunk> registered);
  // Gives it up, and deletes what the call created and computed, unless somebody else uses it.
  void withdraw(TakenChunks taken);

 private:
  [[nodiscard]] Status register_all(std::vector<ChunkDraft>& drafts, const RegistrationRules& how,
                                    const Interrupt& interrupted);
  [[nodiscard]] Status save_all(std::span<const ChunkDraft> drafts);
  static void report(std::span<const ChunkDraft> drafts, const ChunkProgress& progress);
  [[nodiscard]] static std::ptrdiff_t size_of_batch(std::span<const ChunkDraft> drafts);
  void release_anchors(std::span<ChunkDraft> drafts);
  void release_now(std::span<RegisteredChunk> registered);  // engine thread

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  ChunkLibrary& library_;
  ChunkDrafts& drafts_;
};

}  // namespace quire::chunks
