#include "quire/chunks/registration.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/no_memory.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_drafts.h"
#include "quire/chunks/chunk_prefills.h"
#include "quire/chunks/saved_chunks.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/engine.h"
#include "quire/kv/chunk_anchor.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"

namespace quire::chunks {

namespace {

bool is_use(const ChunkDraft& draft) { return !draft.result.id.empty(); }

}  // namespace

Status Registration::run() {
  QUIRE_TRY_STATUS(place_anchors());
  QUIRE_TRY_STATUS(name_texts());
  QUIRE_TRY_STATUS(find_texts());
  QUIRE_TRY_STATUS(tokenize());
  QUIRE_TRY_STATUS(adopt());
  QUIRE_TRY_STATUS(compute_anchors());
  QUIRE_TRY_STATUS(compute());
  return keep_hidden();
}

Status Registration::visit(const Visit& visit) {
  Status failure;
  const Status called = core_.engine.thread().call([&] {
    for (ChunkDraft& draft : drafts_) {
      if (!is_use(draft) && failure.ok()) {
        failure = visit(draft);
      }
    }
    core_.engine.refresh_stats();
  });
  return called.ok() ? failure : called;
}

Status Registration::visit_with_room(const Visit& visit_one) {
  Status visited;
  do {
    visited = visit(visit_one);
  } while (!visited.ok() && visited.error().code == ErrorCode::kOutOfBlocks &&
           library_.writes().wait_one());
  return visited;
}

Status Registration::place_anchors() {
  return visit_with_room([this](ChunkDraft& draft) {
    draft.serial = core_.options.enable_deduplication ? "" : parts_.drafts.next_serial();
    return place_anchor(draft);
  });
}

// Puts a context under its anchor and holds the anchor.
Status Registration::place_anchor(ChunkDraft& draft) {
  const std::string& salt = draft.chunk.salt;
  if (draft.chunk.type == ChunkType::kContext) {
    QUIRE_TRY(draft.chunk.anchor, anchor_of(draft));
  }
  const std::vector<std::string_view> ids = anchor_ids(draft.chunk.anchor);
  draft.anchor.reserve(ids.size());  // a hold that has no place would never be released
  for (std::size_t i = 0; i < ids.size(); ++i) {
    QUIRE_TRY_STATUS(library_.adopt(std::string(ids[i]), salt));
    QUIRE_TRY(const kv::Chunk* chunk, core_.registry.get(ids[i], salt));
    QUIRE_TRY_STATUS(kv::check_in_anchor(*chunk, std::span(ids).first(i)));
    if (draft.anchor.size() == i) {  // not held yet
      draft.anchor.push_back(core_.registry.usage().hold(chunk->id));
    }
  }
  return {};
}

// Computes KV that chunks of anchors lack: it was not read from a store, or was given up.
Status Registration::compute_anchors() {
  while (true) {
    std::vector<PendingPrefill> pending;
    Status status = visit_with_room([&](ChunkDraft& draft) -> Status {
      if (core_.registry.find(draft.chunk.id) != nullptr && !draft.chunk.keep_hidden) {
        return {};
      }
      QUIRE_TRY(const kv::Chunk* chunk,
                prefills_.first_without_kv(draft.chunk.anchor, draft.chunk.salt));
      if (chunk != nullptr) {
        QUIRE_TRY(pending.emplace_back(), compute_anchor(*chunk));
      }
      return {};
    });
    if (status.ok()) {
      status = prefills_.wait(pending, interrupted_);
    }
    if (!status.ok()) {
      core_.engine.thread().call_surely([&] { prefills_.leave(pending); });
    }
    if (!status.ok() || pending.empty()) {
      return status;
    }
  }
}

Result<PendingPrefill> Registration::compute_anchor(const kv::Chunk& chunk) {
  const kv::VariantName name{chunk.id, kv::registered_key(chunk)};
  if (auto meanwhile = prefills_.join(name)) {
    return *std::move(meanwhile);
  }
  kv::BlockCounts needed;
  core_.add_blocks(chunk, needed);
  QUIRE_TRY_STATUS(core_.registry.variants().begin({&name, 1}, core_.lacking(needed)));
  return prefills_.start_prefill(chunk, name.second, false);
}

// Returns the anchor that a context names, else the system chunk that its tenant has registered
// last: in this call, or before. Chunks of one call go under the same one, whatever others do
// meanwhile.
Result<std::string> Registration::anchor_of(const ChunkDraft& draft) {
  const std::string& salt = draft.chunk.salt;
  if (const std::optional<std::string>& asked = draft.content->options.anchor) {
    return *asked;
  }
  const auto known = anchors_.find(salt);
  if (known == anchors_.end() ||
      (!known->second.empty() && core_.registry.find(known->second, salt) == nullptr)) {
    QUIRE_TRY(anchors_[salt], library_.last_system(salt));
  }
  return anchors_[salt];
}

Status Registration::name_texts() {
  for (ChunkDraft& draft : drafts_) {
    if (draft.text() != nullptr) {
      const text::Affixes& around = parts_.drafts.affixes_of(draft.chunk.type);
      draft.chunk.text_id =
          kv::chunk_text_id(parts_.drafts.identity_of(draft),
                            {.prefix = around.prefix, .suffix = around.suffix}, *draft.text());
    }
  }
  return {};
}

Status Registration::find_texts() {
  return visit([this](ChunkDraft& draft) {
    if (core_.options.enable_deduplication && draft.text() != nullptr) {
      use(draft, core_.registry.find_text(draft.chunk.text_id, *draft.text()));
    }
    return Status();
  });
}

Status Registration::tokenize() {
  for (ChunkDraft& draft : drafts_) {
    if (is_use(draft)) {
      continue;
    }
    QUIRE_TRY_STATUS(parts_.drafts.tokenize(draft, interrupted_));
    if (core_.engine.text() != nullptr) {
      draft.chunk.retokenizes_alike =
          core_.engine.text()->tokenizer.retokenizes_alike(*draft.chunk.tokens);
    }
  }
  return {};
}

Status Registration::adopt() {
  if (!core_.options.enable_deduplication) {
    return {};
  }
  return visit_with_room(
      [this](ChunkDraft& draft) { return library_.adopt(draft.chunk.id, draft.chunk.salt); });
}

// Computes all drafts. A draft that waited for an equal one is looked at again once that has ended:
// it may be gone, and is begun anew.
Status Registration::compute() {
  while (!std::ranges::all_of(drafts_, is_use)) {
    QUIRE_TRY_STATUS(compute_once());
  }
  return {};
}

Status Registration::keep_hidden() {
  if (std::ranges::none_of(
          drafts_, [](const ChunkDraft& draft) { return draft.chunk.keep_hidden.has_value(); })) {
    return {};
  }
  Status kept;
  QUIRE_TRY_STATUS(core_.engine.thread().call([&] {
    for (const ChunkDraft& draft : drafts_) {
      const kv::Chunk* const chunk = core_.registry.find(draft.result.id);
      if (kept.ok() && chunk != nullptr) {
        kept = prefills_.keep_hidden(*chunk, kv::registered_key(*chunk));
      }
    }
  }));
  return kept;
}

Status Registration::compute_once() {
  std::vector<PendingPrefill> pending;
  pending.reserve(drafts_.size());
  Status begun, computed;
  try {
    begun = begin_all_with_room(pending);
    computed = prefills_.wait(pending, interrupted_);
  } catch (const std::bad_alloc&) {
    computed = base::no_memory("registering chunks");
  }
  if (begun.ok() && computed.ok()) {
    return {};
  }
  core_.engine.thread().call_surely([&] { prefills_.leave(std::exchange(pending, {})); });
  return begun.ok() ? computed : begun;
}

// Calls begin_all(), and again while it began none because requests, or chunks that are being
// written, hold the blocks.
Status Registration::begin_all_with_room(std::vector<PendingPrefill>& pending) {
  while (true) {
    Status begun;
    end_.reset();
    QUIRE_TRY_STATUS(core_.engine.thread().call([&] { begun = begin_all(pending); }));
    if (begun.ok() || begun.error().code != ErrorCode::kOutOfBlocks || !pending.empty()) {
      return begun;
    }
    if (end_) {
      QUIRE_TRY_STATUS(ChunkCore::await(*end_, interrupted_));
    } else if (!library_.writes().wait_one()) {
      return begun;
    }
  }
}

Status Registration::begin_all(std::vector<PendingPrefill>& pending) {
  QUIRE_TRY_STATUS(make_room());
  for (ChunkDraft& draft : drafts_) {
    if (is_use(draft) ||
        (core_.options.enable_deduplication && use(draft, core_.registry.find(draft.chunk.id)))) {
      continue;
    }
    QUIRE_TRY(const std::optional<PendingPrefill> prefill, begin(draft));
    if (prefill) {
      pending.push_back(*prefill);
    }
  }
  core_.engine.refresh_stats();
  return {};
}

// Evicts what must go before the first of the drafts is begun. Where it is to be waited for the end
// of a request, evicts nothing and returns kOutOfBlocks.
Status Registration::make_room() {
  const ChunkDrafts::Rooms rooms =
      parts_.drafts.rooms_for(drafts_, [this](const ChunkDraft& draft) {
        return is_use(draft) || core_.registry.find(draft.chunk.id) != nullptr;
      });
  const std::vector<std::string_view> spared = ChunkDrafts::ids_and_anchors(drafts_);
  kv::BlockCounts blocks;
  for (const auto& [salt, room] : rooms) {
    kv::add(room.blocks, blocks);
  }
  if (core_.ledger().bytes_lacking(blocks) > 0) {
    QUIRE_TRY([[maybe_unused]] const std::int64_t freed, core_.coalesce());
  }
  const auto end = core_.end_to_await(blocks);
  for (const auto& [salt, room] : rooms) {
    if (end) {
      QUIRE_TRY_STATUS(core_.registry.room().check_room(
          {.salt = salt, .chunks = room.chunks, .bytes = room.bytes, .spared = spared}));
    }
  }
  if (end) {
    end_ = end;
    return core_.registry.room().pool_has_no_room(core_.ledger().bytes_lacking(blocks));
  }
  for (const auto& [salt, room] : rooms) {
    QUIRE_TRY_STATUS(core_.registry.room().make_room({.salt = salt,
                                                      .chunks = room.chunks,
                                                      .bytes = room.bytes,
                                                      .spared = spared,
                                                      .lacking = core_.lacking(room.blocks)}));
  }
  return {};
}

// Makes the draft a use of an equal chunk that is there. Returns false where none is.
bool Registration::use(ChunkDraft& draft, const kv::Chunk* known) {
  if (known == nullptr) {
    return false;
  }
  draft.result.id = draft.chunk.id = known->id;
  if (draft.how.held) {
    draft.result.hold = core_.registry.usage().hold(known->id);
  }
  if (draft.how.counted) {
    draft.result.changed = core_.registry.merge(draft.chunk);
    library_.note_use(known->id, known->salt);
    draft.result.used = true;
  }
  return true;
}

// Returns what to wait for; nothing where the chunk needs no KV. A draft that waits for another
// call's prefill is no use yet, since that call may give up.
Result<std::optional<PendingPrefill>> Registration::begin(ChunkDraft& draft) {
  if (auto meanwhile = prefills_.join({draft.chunk.id, kv::registered_key(draft.chunk)})) {
    draft.waits = true;
    return meanwhile;
  }
  draft.result.id = draft.chunk.id;
  return begin_new(draft);
}

// Adds a chunk that nobody has registered yet and starts its prefill.
Result<std::optional<PendingPrefill>> Registration::begin_new(ChunkDraft& draft) {
  const bool has_kv = core_.needs_kv(draft.chunk);
  const kv::VariantKey key = kv::registered_key(draft.chunk);
  QUIRE_TRY(const kv::Chunk* chunk,
            core_.registry.begin(draft.chunk, has_kv ? std::optional(key) : std::nullopt));
  draft.result.created = draft.how.counted;
  try {
    if (draft.how.held) {
      draft.result.hold = core_.registry.usage().hold(chunk->id);
    }
    if (!has_kv) {
      core_.registry.finish(chunk->id);
      return std::optional<PendingPrefill>();
    }
    QUIRE_TRY(const PendingPrefill pending,
              prefills_.start_prefill(*chunk, key, draft.how.counted));
    draft.prefill = pending.channel;
    return std::optional(pending);
  } catch (const std::bad_alloc&) {
    [[maybe_unused]] const Status ended =  // no effect where it was ended already
        core_.registry.variants().end(draft.chunk.id, key, std::nullopt);
    core_.registry.give_up(draft.chunk.id);
    throw;
  }
}

}  // namespace quire::chunks
