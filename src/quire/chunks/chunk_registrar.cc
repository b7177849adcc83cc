#include "quire/chunks/chunk_registrar.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/registration.h"
#include "quire/chunks/saved_chunks.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/engine.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_types.h"
#include "quire/result.h"

namespace quire::chunks {

// Says how many tokens of the drafts have KV. A chunk known by its text has no tokens here.
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
    std::span<const ChunkContent> chunks, const Interrupt& interrupted, RegistrationRules how) {
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

// Returns how many of the drafts, which are not empty, go into one batch. A context stands under
// the system chunk before it, so every system chunk begins a new batch. So does a context that
// stands behind another one of the batch.
std::ptrdiff_t ChunkRegistrar::size_of_batch(std::span<const ChunkDraft> drafts) {
  std::set<std::string_view> ids;
  const auto begins_another = [&](const ChunkDraft& draft) {
    const bool other_kind = (draft.chunk.type == ChunkType::kSystemPrompt) !=
                            (drafts.front().chunk.type == ChunkType::kSystemPrompt);
    return other_kind || std::ranges::any_of(anchor_ids(draft.chunk.anchor),
                                             [&](auto id) { return ids.contains(id); });
  };
  std::size_t count = 0;
  while (count < drafts.size() && !begins_another(drafts[count])) {
    ids.insert(drafts[count++].chunk.id);
  }
  return static_cast<std::ptrdiff_t>(count);
}

// Registers the drafts in batches.
Status ChunkRegistrar::register_all(std::vector<ChunkDraft>& drafts, const RegistrationRules& how,
                                    const Interrupt& interrupted) {
  Anchors anchors;
  Status status;
  for (auto first = drafts.begin(); first != drafts.end() && status.ok();) {
    const auto next = first + size_of_batch({first, drafts.end()});
    status =
        Registration({.core = core_, .prefills = prefills_, .library = library_, .drafts = drafts_},
                     {first, next}, anchors, interrupted)
            .run();
    for (; first != next; ++first) {
      if (first->chunk.type == ChunkType::kSystemPrompt) {
        anchors[first->chunk.salt] = first->result.id;
      }
    }
  }
  return status.ok() && how.counted ? save_all(drafts) : status;
}

// Writes the chunks to the store, where there is one.
Status ChunkRegistrar::save_all(std::span<const ChunkDraft> drafts) {
  for (const ChunkDraft& draft : drafts) {
    // The call that has begun an equal one may not have saved it yet, or may have given up.
    const Status saved =
        library_.save_registered(draft.result.id, draft.chunk.salt,
                                 draft.result.created || draft.waits, draft.result.changed);
    const bool gone = !saved.ok() && saved.error().chunk_id == draft.result.id;
    if (!saved.ok() && !gone) {  // gone from the registry: somebody has deleted it since
      return saved;
    }
  }
  return {};
}

// Lets the anchors of drafts go that are registered, or are not to be.
void ChunkRegistrar::release_anchors(std::span<ChunkDraft> drafts) {
  if (std::ranges::all_of(drafts, [](const ChunkDraft& draft) { return draft.anchor.empty(); })) {
    return;
  }
  core_.engine.thread().call_surely([&] {
    for (ChunkDraft& draft : drafts) {
      for (const kv::ChunkHold& hold : std::exchange(draft.anchor, {})) {
        core_.registry.usage().release(hold);
      }
    }
  });
}

void ChunkRegistrar::release_now(std::span<RegisteredChunk> registered) {
  for (RegisteredChunk& chunk : registered) {
    if (chunk.hold) {
      core_.registry.usage().release(*chunk.hold);
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

// Withdraws chunks that a call has taken. A temporary chunk goes with the last call that holds it,
// whoever created it.
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
        core_.registry.variants().drop(name);
      }
    }
    std::ranges::for_each(salts,
                          [this](const std::string& salt) { prefills_.drop_unused_bos(salt); });
    core_.engine.refresh_stats();
  });
}

}  // namespace quire::chunks
