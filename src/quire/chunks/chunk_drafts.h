// ChunkDrafts: makes drafts of chunks from what callers give, and checks them before anything
// changes.
//
// Thread rule: callers' threads, unless a function says otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_library.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/engine/channel.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/text/chunk_format.h"
#include "quire/types.h"

namespace quire::chunks {

struct RegisteredChunk {
  std::string id;
  bool created = false;  // true: this call has created it, to stay
  bool used = false;     // counted as a use of one that was there
  bool changed = false;  // true: this call has changed the chunk
  std::int64_t tokens_computed = 0;
  std::optional<kv::ChunkHold> hold;
};

// The rules by which a call registers.
struct RegistrationRules {
  bool counted = true;  // uses, hits and misses; else what it creates is temporary
  bool held = false;    // true: it is not evicted until release() or withdraw()
  ChunkProgress progress = {};
};

// A chunk on its way into the registry.
struct ChunkDraft {
  const ChunkContent* content = nullptr;
  kv::NewChunk chunk;
  std::string serial;  // kv::ChunkIdentity::serial
  RegistrationRules how;
  bool waits = false;  // true: it waits for a prefill that was begun for an equal one
  std::vector<kv::ChunkHold> anchor;         // holds on the anchor, until the draft is registered
  std::shared_ptr<engine::Channel> prefill;  // prefill that this call has begun for it
  RegisteredChunk result;                    // has the chunk's id once the registry knows it
  // Returns the text, or null for what came as ids.
  [[nodiscard]] const std::string* text() const {
    return std::get_if<std::string>(&content->content);
  }
};

// Under which system chunks contexts of one call go that name no anchor, by salt; "": none.
using Anchors = std::map<std::string, std::string>;

class ChunkDrafts {
 public:
  // Borrows all three.
  ChunkDrafts(ChunkCore& core, ChunkPrefills& prefills, ChunkLibrary& library)
      : core_(core), prefills_(prefills), library_(library) {}

  // Returns the ids of a text as a chunk. kUnsupported without a format.
  [[nodiscard]] Result<std::vector<TokenId>> encode(ChunkType type, std::string_view text) const;
  // Returns a draft with all that needs neither the registry nor the tokenizer.
  [[nodiscard]] Result<ChunkDraft> make(const ChunkContent& content) const;
  // Gives the draft the ids of its text, and its chunk's id. The one place where chunks are
  // encoded.
  [[nodiscard]] Status tokenize(ChunkDraft& draft, const Interrupt& interrupted = {}) const;
  [[nodiscard]] const text::Affixes& affixes_of(ChunkType type) const;
  [[nodiscard]] kv::ChunkIdentity identity_of(const ChunkDraft& draft) const;

  // Gives drafts their tokens, and the anchors and ids that they will have.
  [[nodiscard]] Status name_drafts(std::span<ChunkDraft> drafts);
  // Returns whether all of the drafts can be registered.
  [[nodiscard]] Status check_room(std::span<const ChunkDraft> drafts);

  // Room that drafts take. Engine thread, as all below.
  struct Room {
    std::int32_t chunks = 0;
    kv::BlockCounts blocks;
    std::int64_t bytes = 0;  // bytes of these blocks
  };
  using Rooms = std::map<std::string_view, Room>;  // by salt
  // Returns the room for drafts that are neither there nor being computed.
  [[nodiscard]] Rooms rooms_for(std::span<const ChunkDraft> drafts,
                                const std::function<bool(const ChunkDraft&)>& is_there);
  // Returns the ids of chunks that must stay while room is made for the drafts: theirs, and those
  // of their anchors.
  [[nodiscard]] static std::vector<std::string_view> ids_and_anchors(
      std::span<const ChunkDraft> drafts);
  // Returns a serial that no other chunk has.
  [[nodiscard]] std::string next_serial();

 private:
  [[nodiscard]] Status check_text(std::string_view text) const;
  [[nodiscard]] Status check_hidden(const ChunkContent& content) const;
  [[nodiscard]] Status name_anchor(ChunkDraft& draft, Anchors& anchors);
  void take_known_tokens(std::span<ChunkDraft> drafts);
  [[nodiscard]] Status check_anchor(std::span<const ChunkDraft> drafts);
  [[nodiscard]] Status check_in_anchor(std::string_view id, std::span<const ChunkDraft> drafts,
                                       std::span<const std::string_view> before);
  [[nodiscard]] Status check_room_now(std::span<const ChunkDraft> drafts);

  ChunkCore& core_;
  ChunkPrefills& prefills_;
  ChunkLibrary& library_;
  std::uint64_t serial_ = 0;  // last serial of chunks that are not shared. Engine thread
};

}  // namespace quire::chunks
