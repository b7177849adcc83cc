// What registering and generating would refuse, found out before anything has changed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chunks.h"
#include "quire/chunks/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/composition.h"
#include "quire/kv/ledger.h"
#include "quire/result.h"

namespace quire::chunks {

Status ChunkService::check_is_system(const kv::NewChunk& anchor) {
  if (anchor.type == ChunkType::kSystemPrompt) {
    return {};
  }
  return Error{.code = ErrorCode::kInvalidComposition,
               .message = base::str_cat("the anchor is a ", chunk_type_name(anchor.type),
                                        " chunk; give a system chunk"),
               .chunk_id = anchor.id};
}

// An anchor that the last of `drafts` asks for is there, or is registered before.
Status ChunkService::check_anchor(std::span<const Draft> drafts) {
  const std::optional<std::string>& asked = drafts.back().content->options.anchor;
  if (!asked || asked->empty() || windowed()) {
    return {};
  }
  const auto before = drafts.first(drafts.size() - 1);
  const auto own = std::ranges::find_if(before, [&](const Draft& draft) {
    return draft.chunk.id == *asked && draft.chunk.salt == drafts.back().chunk.salt;
  });
  if (own != before.end()) {
    return check_is_system(own->chunk);
  }
  const std::string& salt = drafts.back().chunk.salt;
  if (const auto saved = saved_chunk(*asked, salt)) {
    return check_is_system(*saved);
  }
  QUIRE_TRY(const kv::Chunk* anchor, registry_.get(*asked, salt));
  return check_is_system(*anchor);
}

// Of texts that are there.
void ChunkService::take_known_tokens(std::span<Draft> drafts) {
  std::map<std::string, std::vector<const kv::Chunk*>> lists;  // by salt
  for (Draft& draft : drafts) {
    const std::string* text = draft.text();
    auto [place, is_new] = lists.try_emplace(draft.chunk.salt);
    std::vector<const kv::Chunk*>& listed = place->second;
    if (is_new) {
      listed = registry_.list(draft.chunk.salt);
    }
    const auto known = std::ranges::find_if(listed, [&](const kv::Chunk* other) {
      return text != nullptr && !other->text_id.empty() && other->type == draft.chunk.type &&
             other->content == *text;
    });
    if (known != listed.end()) {
      draft.chunk.tokens = (*known)->tokens;
    }
  }
}

// The anchor that it will have: that of `anchors` unless it names one.
Status ChunkService::name_anchor(Draft& draft, Anchors& anchors) {
  if (draft.chunk.type != ChunkType::kContext || windowed()) {
    return {};
  }
  const std::string& salt = draft.chunk.salt;
  const std::optional<std::string>& asked = draft.content->options.anchor;
  if (!asked && !anchors.contains(salt)) {
    QUIRE_TRY(anchors[salt],
              engine_.thread().ask_for_blocks<std::string>([&] { return last_system(salt); }));
  }
  draft.chunk.anchor = asked ? *asked : anchors[salt];
  return {};
}

// A text that is there is not encoded again.
Status ChunkService::name_drafts(std::span<Draft> drafts) {
  QUIRE_TRY_STATUS(engine_.thread().call([&] { take_known_tokens(drafts); }));
  Anchors anchors;  // the last ones before
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    Draft& draft = drafts[i];
    draft.serial = options_.enable_deduplication ? "" : base::str_cat(i);  // like no other
    QUIRE_TRY_STATUS(name_anchor(draft, anchors));
    QUIRE_TRY_STATUS(draft.chunk.tokens == nullptr ? tokenize(draft) : Status());
    draft.chunk.id = kv::chunk_id(identity_of(draft), *draft.chunk.tokens);
    if (draft.chunk.type == ChunkType::kSystemPrompt) {
      anchors[draft.chunk.salt] = draft.chunk.id;
    }
  }
  return {};
}

std::vector<std::string_view> ChunkService::ids_and_anchors(std::span<const Draft> drafts) {
  std::vector<std::string_view> ids;
  for (const Draft& draft : drafts) {
    ids.insert(ids.end(), {draft.chunk.id, draft.chunk.anchor});
  }
  return ids;
}

ChunkService::Rooms ChunkService::rooms_for(std::span<const Draft> drafts,
                                            const std::function<bool(const Draft&)>& is_there) {
  Rooms rooms;
  std::set<std::string_view> wanted;
  for (const Draft& draft : drafts) {
    const kv::NewChunk& chunk = draft.chunk;
    if (is_there(draft) || pending_.contains({chunk.id, kv::registered_key(chunk)}) ||
        !wanted.insert(chunk.id).second) {
      continue;
    }
    Room& room = rooms[chunk.salt];
    ++room.chunks;
    room.blocks += needs_kv(chunk) ? ledger().min_blocks(std::ssize(*chunk.tokens)) : 0;
  }
  return rooms;
}

// What is saved is read into the room that there is.
Status ChunkService::check_room_now(std::span<const Draft> drafts) {
  for (std::size_t count = 1; count <= drafts.size(); ++count) {
    QUIRE_TRY_STATUS(check_anchor(drafts.first(count)));
  }
  const Rooms rooms = rooms_for(drafts, [this](const Draft& draft) {
    return registry_.find(draft.chunk.id) != nullptr ||
           saved_chunk(draft.chunk.id, draft.chunk.salt);
  });
  const std::vector<std::string_view> spared = ids_and_anchors(drafts);
  for (const auto& [salt, room] : rooms) {
    QUIRE_TRY_STATUS(registry_.check_room({.salt = salt,
                                           .chunks = room.chunks,
                                           .blocks = static_cast<std::int32_t>(room.blocks),
                                           .spared = spared}));
  }
  return {};
}

Status ChunkService::check_room(std::span<const Draft> drafts) {
  const auto fits = engine_.thread().ask_for_blocks<bool>([&]() -> Result<bool> {
    const Status status = check_room_now(drafts);
    return status.ok() ? Result<bool>(true) : status.error();
  });
  return fits.ok() ? Status() : fits.error();
}

Status ChunkService::check(std::span<const ChunkContent> chunks, const Run& run) {
  QUIRE_TRY([[maybe_unused]] const std::string salt, salt_of(run));
  QUIRE_TRY_STATUS(engine_.check(*run.params));
  std::vector<Draft> drafts;
  for (const ChunkContent& content : chunks) {
    QUIRE_TRY(drafts.emplace_back(), draft(content));
  }
  QUIRE_TRY_STATUS(name_drafts(drafts));
  CompositionSpec spec = *run.spec;
  spec.system_chunk_id.clear();
  spec.context_chunk_ids.clear();
  std::map<std::string, kv::Chunk> found;
  for (const Draft& draft : drafts) {
    const std::string& id = draft.chunk.id;
    found.emplace(id, kv::Chunk{draft.chunk});
    if (draft.chunk.type == ChunkType::kContext) {
      spec.context_chunk_ids.push_back(id);
    } else {
      (draft.chunk.type == ChunkType::kQuery ? spec.query_chunk_id : spec.system_chunk_id) = id;
    }
  }
  const auto find = [&](const std::string& id) -> Result<const kv::Chunk*> {
    return &found.at(id);
  };
  QUIRE_TRY(const auto composition, kv::resolve(find, spec, windowed()));
  QUIRE_TRY_STATUS(check_positions(composition));
  Status fits;
  QUIRE_TRY_STATUS(engine_.thread().call([&] {
    std::int64_t blocks = 0;
    for (const auto& [id, chunk] : found) {
      blocks += needs_kv(chunk) ? ledger().min_blocks(std::ssize(*chunk.tokens)) : 0;
    }
    fits = registry_.check_size(std::ssize(found), blocks);
    fits = fits.ok() ? check_fits(run, composition) : fits;
  }));
  return fits.ok() ? check_room(drafts) : fits;
}

}  // namespace quire::chunks
