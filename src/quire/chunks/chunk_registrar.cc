#include "quire/chunks/chunk_registrar.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/chunk_store.h"
#include "quire/chunks/chunk_store.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/engine.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/result.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"

namespace quire::chunks {

// Engine thread. Runs `visit` on the drafts that have no id yet, until one fails.
Status ChunkRegistrar::visit(std::span<ChunkDraft> drafts,
                             const std::function<Status(ChunkDraft&)>& visit) {
  Status failure;
  const Status called = core_.engine.thread().call([&] {
    for (ChunkDraft& draft : drafts) {
      if (draft.result.id.empty() && failure.ok()) {
        failure = visit(draft);
      }
    }
    core_.engine.publish_stats();
  });
  return called.ok() ? failure : called;
}

// Visits as visit() does, and again while chunks that are being written hold blocks that are
// needed.
Status ChunkRegistrar::visit_with_room(std::span<ChunkDraft> drafts,
                                       const std::function<Status(ChunkDraft&)>& visit_one) {
  Status visited;
  do {
    visited = visit(drafts, visit_one);
  } while (!visited.ok() && visited.error().code == ErrorCode::kOutOfBlocks &&
           library_.writes().wait_one());
  return visited;
}

// Calls begin_all(), and again while it began none because chunks that are being written hold the
// blocks.
Status ChunkRegistrar::begin_all_with_room(std::span<ChunkDraft> drafts,
                                           std::vector<PendingPrefill>& pending) {
  Status begun;
  do {
    QUIRE_TRY_STATUS(core_.engine.thread().call([&] { begun = begin_all(drafts, pending); }));
  } while (!begun.ok() && begun.error().code == ErrorCode::kOutOfBlocks && pending.empty() &&
           library_.writes().wait_one());
  return begun;
}

// Registers drafts that do not depend on each other, in one batch. Hashing and encoding happen
// here, between visits to the engine thread. Who waits for an equal one looks again once that has
// ended: it may be gone, and is begun anew.
Status ChunkRegistrar::register_drafts(std::span<ChunkDraft> drafts, Anchors& anchors,
                                       const Interrupt& interrupted) {
  const bool share = core_.options.enable_deduplication;
  QUIRE_TRY_STATUS(visit_with_room(drafts, [&](ChunkDraft& draft) {
    draft.serial = share ? "" : base::str_cat(library_.nonce(), " ", ++serial_);
    return place_anchor(draft, anchors);
  }));
  for (ChunkDraft& draft : drafts) {
    if (draft.text() != nullptr) {
      const text::Affixes& around = drafts_.affixes_of(draft.chunk.type);
      draft.chunk.text_id =
          kv::chunk_text_id(drafts_.identity_of(draft),
                            {.prefix = around.prefix, .suffix = around.suffix}, *draft.text());
    }
  }
  QUIRE_TRY_STATUS(visit(drafts, [&](ChunkDraft& draft) {
    if (share && draft.text() != nullptr) {
      merge(draft, core_.registry.find_text(draft.chunk.text_id, *draft.text()));
    }
    return Status();
  }));
  for (ChunkDraft& draft : drafts) {
    if (!draft.result.id.empty()) {
      continue;
    }
    QUIRE_TRY_STATUS(drafts_.tokenize(draft, interrupted));
    if (core_.engine.text() != nullptr) {
      draft.chunk.retokenizes_alike =
          core_.engine.text()->tokenizer.retokenizes_alike(*draft.chunk.tokens);
    }
  }
  if (share) {
    QUIRE_TRY_STATUS(visit_with_room(drafts, [&](ChunkDraft& draft) {
      return library_.adopt(draft.chunk.id, draft.chunk.salt);
    }));
  }
  while (std::ranges::any_of(drafts,
                             [](const ChunkDraft& draft) { return draft.result.id.empty(); })) {
    std::vector<PendingPrefill> pending;
    pending.reserve(drafts.size());
    Status begun, computed;
    try {
      begun = begin_all_with_room(drafts, pending);
      computed = prefills_.wait(pending, interrupted);
    } catch (const std::bad_alloc&) {
      computed = base::no_memory("registering chunks");
    }
    if (!begun.ok() || !computed.ok()) {
      core_.engine.thread().call_surely([&] { prefills_.leave(std::exchange(pending, {})); });
      return begun.ok() ? computed : begun;
    }
  }
  return {};
}

// Says how many tokens of the drafts have KV. What is known by its text has no tokens here.
void ChunkRegistrar::report(std::span<const ChunkDraft> drafts, const ChunkProgress& progress) {
  std::int64_t done = 0;
  std::int64_t wanted = 0;
  for (const ChunkDraft& draft : drafts) {
    const std::int64_t tokens = draft.chunk.tokens == nullptr ? 0 : std::ssize(*draft.chunk.tokens);
    wanted += tokens;
    if (draft.prefill != nullptr) {
      done += std::min(tokens, draft.prefill->computed_tokens());
    } else if (!draft.result.id.empty()) {
      done += tokens;
    }
  }
  progress(done, wanted);
}

Result<std::vector<RegisteredChunk>> ChunkRegistrar::register_chunks(
    std::span<const ChunkContent> chunks, const Interrupt& interrupted, Registration how) {
  std::vector<ChunkDraft> drafts;
  const Interrupt polled = how.progress ? Interrupt([&] {
    report(drafts, how.progress);
    return interrupted && interrupted();
  })
                                        : interrupted;
  for (const ChunkContent& chunk : chunks) {
    QUIRE_TRY(ChunkDraft next, drafts_.make(chunk));
    next.how = how;
    next.chunk.temporary = !how.counted;
    drafts.push_back(std::move(next));
  }
  if (drafts.size() > 1) {  // one alone is refused before it has changed anything
    QUIRE_TRY_STATUS(drafts_.name_drafts(drafts));
    QUIRE_TRY_STATUS(drafts_.check_room(drafts));
  }
  std::vector<RegisteredChunk> registered;
  registered.reserve(drafts.size());  // once chunks are there, nothing of this may be refused
  Status status;
  try {
    status = register_all(drafts, how, polled);
    if (status.ok() && how.progress) {
      report(drafts, how.progress);
    }
  } catch (const std::bad_alloc&) {
    status = base::no_memory("registering chunks");
  }
  release_anchors(drafts);
  for (ChunkDraft& draft : drafts) {
    if (status.ok() && draft.prefill != nullptr) {
      draft.result.tokens_computed =
          std::ssize(*draft.chunk.tokens) - draft.prefill->cached_tokens();
    }
    registered.push_back(std::move(draft.result));
  }
  if (status.ok()) {
    return registered;
  }
  withdraw({.registered = std::move(registered)});  // all or none
  return std::move(status).error();
}

// A context stands under the system chunk before it, so every system chunk begins a new batch.
Status ChunkRegistrar::register_all(std::vector<ChunkDraft>& drafts, const Registration& how,
                                    const Interrupt& interrupted) {
  Anchors anchors;
  Status status;
  for (auto first = drafts.begin(); first != drafts.end() && status.ok();) {
    const auto next = std::find_if(first + 1, drafts.end(), [&](const ChunkDraft& draft) {
      return (draft.chunk.type == ChunkType::kSystemPrompt) !=
             (first->chunk.type == ChunkType::kSystemPrompt);
    });
    status = register_drafts({first, next}, anchors, interrupted);
    for (; first != next; ++first) {
      if (first->chunk.type == ChunkType::kSystemPrompt) {
        anchors[first->chunk.salt] = first->result.id;
      }
    }
  }
  for (const ChunkDraft& draft : drafts) {
    if (status.ok() && how.counted) {
      // The call that has begun an equal one may not have saved it yet, or may have given up.
      status = library_.save_registered(draft.result.id, draft.chunk.salt,
                                        draft.result.created || draft.waits, draft.result.changed);
      const bool gone = !status.ok() && status.error().chunk_id == draft.result.id;
      status = gone ? Status() : status;  // from the registry: somebody has deleted it since
    }
  }
  return status;
}

// Returns the anchor that a context names, else the system chunk that its tenant has registered
// last: in this call, or before. Chunks of one call go under the same one, whatever others do
// meanwhile.
Result<std::string> ChunkRegistrar::anchor_of(const ChunkDraft& draft, Anchors& anchors) {
  const std::string& salt = draft.chunk.salt;
  if (const std::optional<std::string>& asked = draft.content->options.anchor) {
    return *asked;
  }
  const auto known = anchors.find(salt);
  if (known == anchors.end() ||
      (!known->second.empty() && core_.registry.find(known->second, salt) == nullptr)) {
    QUIRE_TRY(anchors[salt], library_.last_system(salt));
  }
  return anchors[salt];
}

// Puts a context under its anchor, which stays until the context is registered.
Status ChunkRegistrar::place_anchor(ChunkDraft& draft, Anchors& anchors) {
  const std::string& salt = draft.chunk.salt;
  if (draft.chunk.type == ChunkType::kContext && !core_.windowed()) {
    QUIRE_TRY(draft.chunk.anchor, anchor_of(draft, anchors));
    QUIRE_TRY_STATUS(library_.adopt(draft.chunk.anchor, salt));
  }
  if (draft.chunk.anchor.empty()) {
    return {};
  }
  QUIRE_TRY(const kv::Chunk* anchor, core_.registry.get(draft.chunk.anchor, salt));
  QUIRE_TRY_STATUS(ChunkDrafts::check_is_system(*anchor));
  if (!draft.anchor) {
    draft.anchor = core_.registry.hold(anchor->id);
  }
  return {};
}

// Lets the anchors of drafts go that are registered, or are not to be.
void ChunkRegistrar::release_anchors(std::span<ChunkDraft> drafts) {
  if (std::ranges::none_of(drafts,
                           [](const ChunkDraft& draft) { return draft.anchor.has_value(); })) {
    return;
  }
  core_.engine.thread().call_surely([&] {
    for (ChunkDraft& draft : drafts) {
      if (draft.anchor) {
        core_.registry.release(*std::exchange(draft.anchor, std::nullopt));
      }
    }
  });
}

// Makes the draft a use of an equal chunk that is there. Returns false where none is.
bool ChunkRegistrar::merge(ChunkDraft& draft, const kv::Chunk* known) {
  if (known == nullptr) {
    return false;
  }
  draft.result.id = draft.chunk.id = known->id;
  if (draft.how.held) {
    draft.result.hold = core_.registry.hold(known->id);
  }
  if (draft.how.counted) {
    draft.result.changed = core_.registry.merge(draft.chunk);
    library_.note_use(known->id, known->salt);
    draft.result.used = true;
  }
  return true;
}

// A chunk that nobody has registered yet: it has its id from now on, unless somebody else computes
// it, who may yet give it up. Nothing to wait for when it needs no KV.
Result<std::optional<PendingPrefill>> ChunkRegistrar::begin(ChunkDraft& draft) {
  const bool has_kv = core_.needs_kv(draft.chunk);
  const kv::VariantKey key = kv::registered_key(draft.chunk);
  if (auto meanwhile = prefills_.join({draft.chunk.id, key})) {
    draft.waits = true;
    return meanwhile;
  }
  draft.result.id = draft.chunk.id;
  QUIRE_TRY(const kv::Chunk* chunk,
            core_.registry.begin(draft.chunk, has_kv ? std::optional(key) : std::nullopt));
  draft.result.created = draft.how.counted;
  try {
    if (draft.how.held) {
      draft.result.hold = core_.registry.hold(chunk->id);
    }
    if (!has_kv) {
      core_.registry.publish(chunk->id);
      return std::optional<PendingPrefill>();
    }
    QUIRE_TRY(const PendingPrefill pending,
              prefills_.start_prefill(*chunk, key, draft.how.counted));
    draft.prefill = pending.channel;
    return std::optional(pending);
  } catch (const std::bad_alloc&) {
    [[maybe_unused]] const Status ended =  // no effect where it was ended already
        core_.registry.end(draft.chunk.id, key, std::nullopt);
    core_.registry.give_up(draft.chunk.id);
    throw;
  }
}

// Drafts that have no id yet become uses of what is there, or are begun or waited for.
Status ChunkRegistrar::begin_all(std::span<ChunkDraft> drafts,
                                 std::vector<PendingPrefill>& pending) {
  const ChunkDrafts::Rooms rooms =
      drafts_.rooms_for(drafts, [this](const ChunkDraft& draft) {  // before one of them is begun
        return !draft.result.id.empty() || core_.registry.find(draft.chunk.id) != nullptr;
      });
  const std::vector<std::string_view> spared = drafts_.ids_and_anchors(drafts);
  for (const auto& [salt, room] : rooms) {
    QUIRE_TRY_STATUS(core_.registry.make_room({.salt = salt,
                                               .chunks = room.chunks,
                                               .blocks = static_cast<std::int32_t>(room.blocks),
                                               .spared = spared,
                                               .lacking = core_.lacking(room.blocks)}));
  }
  for (ChunkDraft& draft : drafts) {
    if (!draft.result.id.empty() ||
        (core_.options.enable_deduplication && merge(draft, core_.registry.find(draft.chunk.id)))) {
      continue;
    }
    QUIRE_TRY(const std::optional<PendingPrefill> prefill, begin(draft));
    if (prefill) {
      pending.push_back(*prefill);
    }
  }
  core_.engine.publish_stats();
  return {};
}

void ChunkRegistrar::release_now(std::span<RegisteredChunk> registered) {
  for (RegisteredChunk& chunk : registered) {
    if (chunk.hold) {
      core_.registry.release(*chunk.hold);
      chunk.hold.reset();
    }
  }
}

void ChunkRegistrar::release(std::vector<RegisteredChunk> registered) {
  const auto held = std::make_shared<std::vector<RegisteredChunk>>(std::move(registered));
  try {
    core_.engine.thread().post([this, held] { release_now(*held); });
  } catch (const std::bad_alloc&) {
    core_.engine.thread().call_surely([&] { release_now(*held); });
  }
}

// A temporary chunk goes with the last call that holds it, whoever created it.
void ChunkRegistrar::withdraw(TakenChunks taken) {
  library_.writes().wait();
  core_.engine.thread().call_surely([&] {
    release_now(taken.registered);
    std::set<std::string> salts;
    for (const RegisteredChunk& registered : taken.registered) {
      const kv::Chunk* chunk = core_.registry.find(registered.id);
      const std::string salt = chunk == nullptr ? std::string() : chunk->salt;
      salts.insert(salt);
      const auto own = std::ranges::count_if(taken.registered, [&](const RegisteredChunk& equal) {
        return equal.used && equal.id == registered.id;
      });
      if (chunk != nullptr && chunk->holders == 0 &&
          (chunk->temporary || (registered.created && chunk->accesses == own))) {
        core_.registry.remove(registered.id, kv::Removal::kDeleted);
        [[maybe_unused]] const auto saved = library_.remove(registered.id, salt);
      }
    }
    for (const kv::VariantName& name : taken.computed) {
      const kv::Chunk* chunk = core_.registry.find(name.first);
      salts.insert(chunk == nullptr ? std::string() : chunk->salt);
      if (chunk != nullptr && chunk->holders == 0) {
        core_.registry.drop_variant(name);
      }
    }
    std::ranges::for_each(salts,
                          [this](const std::string& salt) { prefills_.drop_unused_bos(salt); });
    core_.engine.publish_stats();
  });
}

}  // namespace quire::chunks
