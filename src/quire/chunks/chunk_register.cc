// Registering chunks: one call from its texts to their KV.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
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
#include "quire/chunks.h"
#include "quire/chunks/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/result.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"

namespace quire::chunks {

// Engine thread. Runs `visit` on the drafts that have no id yet, until one fails.
Status ChunkService::visit(std::span<Draft> drafts, const std::function<Status(Draft&)>& visit) {
  Status failure;
  const Status called = engine_.thread().call([&] {
    for (Draft& draft : drafts) {
      if (draft.result.id.empty() && failure.ok()) {
        failure = visit(draft);
      }
    }
    engine_.publish_stats();
  });
  return called.ok() ? failure : called;
}

// Visits as visit() does, and again while chunks that are being written hold blocks that are
// needed.
Status ChunkService::visit_with_room(std::span<Draft> drafts,
                                     const std::function<Status(Draft&)>& visit_one) {
  Status visited;
  do {
    visited = visit(drafts, visit_one);
  } while (!visited.ok() && visited.error().code == ErrorCode::kOutOfBlocks && await_blocks());
  return visited;
}

// Calls begin_all(), and again while it began none because chunks that are being written hold the
// blocks.
Status ChunkService::begin_all_with_room(std::span<Draft> drafts, std::vector<Pending>& pending) {
  Status begun;
  do {
    QUIRE_TRY_STATUS(engine_.thread().call([&] { begun = begin_all(drafts, pending); }));
  } while (!begun.ok() && begun.error().code == ErrorCode::kOutOfBlocks && pending.empty() &&
           await_blocks());
  return begun;
}

// Registers drafts that do not depend on each other, in one batch. Hashing and encoding happen
// here, between visits to the engine thread. Who waits for an equal one looks again once that has
// ended: it may be gone, and is begun anew.
Status ChunkService::register_drafts(std::span<Draft> drafts, Anchors& anchors,
                                     const Interrupt& interrupted) {
  const bool share = options_.enable_deduplication;
  QUIRE_TRY_STATUS(visit_with_room(drafts, [&](Draft& draft) {
    draft.serial = share ? "" : base::str_cat(nonce_, " ", ++serial_);
    return place_anchor(draft, anchors);
  }));
  for (Draft& draft : drafts) {
    if (draft.text() != nullptr) {
      const text::Affixes& around = affixes_of(draft.chunk.type);
      draft.chunk.text_id = kv::chunk_text_id(
          identity_of(draft), {.prefix = around.prefix, .suffix = around.suffix}, *draft.text());
    }
  }
  QUIRE_TRY_STATUS(visit(drafts, [&](Draft& draft) {
    if (share && draft.text() != nullptr) {
      merge(draft, registry_.find_text(draft.chunk.text_id, *draft.text()));
    }
    return Status();
  }));
  for (Draft& draft : drafts) {
    if (!draft.result.id.empty()) {
      continue;
    }
    QUIRE_TRY_STATUS(tokenize(draft, interrupted));
    if (engine_.text() != nullptr) {
      draft.chunk.retokenizes_alike =
          engine_.text()->tokenizer.retokenizes_alike(*draft.chunk.tokens);
    }
  }
  if (share) {
    QUIRE_TRY_STATUS(visit_with_room(
        drafts, [&](Draft& draft) { return adopt(draft.chunk.id, draft.chunk.salt); }));
  }
  while (std::ranges::any_of(drafts, [](const Draft& draft) { return draft.result.id.empty(); })) {
    std::vector<Pending> pending;
    pending.reserve(drafts.size());
    Status begun, computed;
    try {
      begun = begin_all_with_room(drafts, pending);
      computed = wait(pending, interrupted);
    } catch (const std::bad_alloc&) {
      computed = base::no_memory("registering chunks");
    }
    if (!begun.ok() || !computed.ok()) {
      engine_.thread().call_surely([&] { leave(std::exchange(pending, {})); });
      return begun.ok() ? computed : begun;
    }
  }
  return {};
}

// Says how many tokens of the drafts have KV. What is known by its text has no tokens here.
void ChunkService::report(std::span<const Draft> drafts, const ChunkProgress& progress) {
  std::int64_t done = 0;
  std::int64_t wanted = 0;
  for (const Draft& draft : drafts) {
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

Result<std::vector<ChunkService::Registered>> ChunkService::register_chunks(
    std::span<const ChunkContent> chunks, const Interrupt& interrupted, Registration how) {
  std::vector<Draft> drafts;
  const Interrupt polled = how.progress ? Interrupt([&] {
    report(drafts, how.progress);
    return interrupted && interrupted();
  })
                                        : interrupted;
  for (const ChunkContent& chunk : chunks) {
    QUIRE_TRY(Draft next, draft(chunk));
    next.how = how;
    next.chunk.temporary = !how.counted;
    drafts.push_back(std::move(next));
  }
  if (drafts.size() > 1) {  // one alone is refused before it has changed anything
    QUIRE_TRY_STATUS(name_drafts(drafts));
    QUIRE_TRY_STATUS(check_room(drafts));
  }
  std::vector<Registered> registered;
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
  for (Draft& draft : drafts) {
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
Status ChunkService::register_all(std::vector<Draft>& drafts, const Registration& how,
                                  const Interrupt& interrupted) {
  Anchors anchors;
  Status status;
  for (auto first = drafts.begin(); first != drafts.end() && status.ok();) {
    const auto next = std::find_if(first + 1, drafts.end(), [&](const Draft& draft) {
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
  for (const Draft& draft : drafts) {
    if (status.ok() && how.counted) {
      status = save_registered(draft);
      const bool gone = !status.ok() && status.error().chunk_id == draft.result.id;
      status = gone ? Status() : status;  // from the registry: somebody has deleted it since
    }
  }
  return status;
}

}  // namespace quire::chunks
