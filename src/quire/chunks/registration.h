// Registration: chunks of one call on their way from texts to KV in the registry.
//
// A registration is a value that passes through seven phases, in order:
//
//   phase          thread   afterwards
//   place anchors  engine   each context has its anchor, which stays until it is registered
//   name texts     caller   each text has its text id
//   find texts     engine   a text that is registered already is a use of that chunk
//   tokenize       caller   every other draft has its tokens and the id of its chunk
//   adopt          engine   chunks that the store has are in the registry
//   compute        both     every draft is a use of a chunk, and the KV of new chunks is computed
//   keep hidden    engine   chunks that are to keep hidden states have them
//
// A draft that has become a use of a chunk skips the phases that are left.
//
// Thread rule: run() belongs to one caller's thread. It visits the engine thread for each phase of
// the engine, so other calls come between two phases.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_types.h"
#include "quire/result.h"

namespace quire::chunks {

// Objects that a registration works on. All are borrowed.
struct RegistrationParts {
  ChunkCore& core;
  ChunkPrefills& prefills;
  ChunkLibrary& library;
  ChunkDrafts& drafts;
};

class Registration {
 public:
  // Borrows all arguments. No draft may stand under another one of `drafts`. `anchors` has the
  // system chunks for contexts that name none, and learns those that it lacks.
  Registration(RegistrationParts parts, std::span<ChunkDraft> drafts, Anchors& anchors,
               const Interrupt& interrupted)
      : core_(parts.core),
        prefills_(parts.prefills),
        library_(parts.library),
        parts_(parts),
        drafts_(drafts),
        anchors_(anchors),
        interrupted_(interrupted) {}

  // Takes the drafts through all phases. After an error some drafts may have been registered: the
  // caller withdraws what their results name.
  [[nodiscard]] Status run();

 private:
  using Visit = std::function<Status(ChunkDraft&)>;

  [[nodiscard]] Status place_anchors();
  [[nodiscard]] Status name_texts();
  [[nodiscard]] Status find_texts();
  [[nodiscard]] Status tokenize();
  [[nodiscard]] Status adopt();
  [[nodiscard]] Status compute();
  [[nodiscard]] Status keep_hidden();

  // Runs `visit` on the engine thread, on each draft that is no use yet, until one fails.
  [[nodiscard]] Status visit(const Visit& visit);
  // Visits again while chunks that are being written hold blocks that are needed.
  [[nodiscard]] Status visit_with_room(const Visit& visit);
  // Begins what is not there, and waits until it and equal chunks of other calls are computed.
  [[nodiscard]] Status compute_once();
  [[nodiscard]] Status begin_all_with_room(std::vector<PendingPrefill>& pending);

  // Finds the system chunk under which a draft stands. Engine thread, as for the next functions.
  [[nodiscard]] Status place_anchor(ChunkDraft& draft);
  [[nodiscard]] Status compute_anchors();
  [[nodiscard]] Result<PendingPrefill> compute_anchor(const kv::Chunk& chunk);
  [[nodiscard]] Result<std::string> anchor_of(const ChunkDraft& draft);
  bool use(ChunkDraft& draft, const kv::Chunk* known);
  [[nodiscard]] Status make_room();
  [[nodiscard]] Status begin_all(std::vector<PendingPrefill>& pending);
  [[nodiscard]] Result<std::optional<PendingPrefill>> begin(ChunkDraft& draft);
  [[nodiscard]] Result<std::optional<PendingPrefill>> begin_new(ChunkDraft& draft);

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  ChunkLibrary& library_;
  RegistrationParts parts_;
  std::span<ChunkDraft> drafts_;
  Anchors& anchors_;
  const Interrupt& interrupted_;
  std::optional<ChunkCore::RequestEnd> end_;  // what make_room() waits for
};

}  // namespace quire::chunks
