#include "quire/chunks/chunk_drafts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_setup.h"
#include "quire/chunks/saved_chunks.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_anchor.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/result.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire::chunks {

const text::Affixes& ChunkDrafts::affixes_of(ChunkType type) const {
  const auto& format = core_.setup().format;
  QUIRE_CHECK(format.has_value(), "text was refused when there is no format");
  return type == ChunkType::kSystemPrompt ? format->system
         : type == ChunkType::kContext    ? format->context
                                          : format->query;
}

kv::ChunkIdentity ChunkDrafts::identity_of(const ChunkDraft& draft) const {
  return {.model = core_.engine.model_digest(),
          .salt = draft.chunk.salt,
          .anchor = draft.chunk.anchor,
          .type = draft.chunk.type,
          .serial = draft.serial,
          .kv_dtype = draft.chunk.format == kv::kOwnFormat
                          ? std::string_view()
                          : core_.engine.core().kv_name(draft.chunk.format)};
}

std::string ChunkDrafts::next_serial() { return base::str_cat(library_.nonce(), " ", ++serial_); }

Status ChunkDrafts::check_text(std::string_view text) const {
  if (!core_.setup().format) {
    return {ErrorCode::kUnsupported,
            base::str_cat("text cannot become a chunk of this model: ", core_.setup().format_error,
                          "; give chunk_format, or token ids")};
  }
  return text.empty() ? Status(ErrorCode::kInvalidArgument, "the chunk is empty; give some text")
                      : Status();
}

Result<std::vector<TokenId>> ChunkDrafts::encode(ChunkType type, std::string_view text) const {
  QUIRE_TRY_STATUS(check_text(text));
  return text::encode_chunk(core_.engine.text()->tokenizer, affixes_of(type), text);
}

Status ChunkDrafts::check_hidden(const ChunkContent& content) const {
  const std::optional<std::int32_t> layer = content.options.keep_hidden;
  if (!layer) {
    return {};
  }
  const std::int32_t layers = core_.engine.model_config().layers;
  if (content.type != ChunkType::kContext) {
    return {ErrorCode::kInvalidArgument, "only context chunks keep hidden states"};
  }
  if (layers < 2) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("keep_hidden is ", *layer,
                          ", and behind the one layer of this model there is none; leave it out")};
  }
  if (*layer < 1 || *layer >= layers) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("keep_hidden is ", *layer, "; give a layer from 1 to ", layers - 1)};
  }
  return core_.check_runs_some_layers("keep_hidden");
}

Result<ChunkDraft> ChunkDrafts::make(const ChunkContent& content) const {
  const ChunkOptions& options = content.options;
  ChunkDraft draft{.content = &content};
  QUIRE_TRY(draft.chunk.metadata_json, base::kept_object(options.metadata_json, "metadata"));
  if (options.ttl_seconds && !(*options.ttl_seconds > 0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("ttl_seconds is ", *options.ttl_seconds, "; give more than 0, or none")};
  }
  if (options.anchor && content.type != ChunkType::kContext) {
    return {ErrorCode::kInvalidArgument, "only context chunks have an anchor"};
  }
  QUIRE_TRY(draft.chunk.format, core_.format_for(options.kv_dtype));
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", options.salt));
  draft.chunk.salt = core_.engine.salt_of(options.salt);
  draft.chunk.type = content.type;
  draft.chunk.ttl_seconds = options.ttl_seconds;
  draft.chunk.pinned = options.pinned;
  draft.chunk.priority = options.priority;
  QUIRE_TRY_STATUS(check_hidden(content));
  draft.chunk.keep_hidden = options.keep_hidden;
  if (const auto* text = std::get_if<std::string>(&content.content)) {
    QUIRE_TRY_STATUS(check_text(*text));
    return draft;
  }
  const auto& ids = std::get<std::vector<TokenId>>(content.content);
  QUIRE_TRY_STATUS(core_.engine.check_prompt(ids));
  draft.chunk.tokens = std::make_shared<const std::vector<TokenId>>(ids);
  if (core_.engine.text() != nullptr) {
    const text::Tokenizer& tokenizer = core_.engine.text()->tokenizer;
    std::vector<TokenId> known = ids;  // a model may have ids that are no text
    std::erase_if(known, [&](TokenId id) { return id >= tokenizer.vocab_size(); });
    QUIRE_TRY(draft.chunk.content, tokenizer.decode(known, false));
  }
  return draft;
}

Status ChunkDrafts::tokenize(ChunkDraft& draft, const Interrupt& interrupted) const {
  if (const std::string* text = draft.text()) {
    draft.chunk.content = *text;  // copied only now: most texts are there already
  }
  if (draft.chunk.tokens == nullptr) {
    base::WorkMeter meter(text::kWorkOfCall, interrupted);
    QUIRE_TRY(auto ids,
              text::encode_chunk(core_.engine.text()->tokenizer, affixes_of(draft.chunk.type),
                                 draft.chunk.content, &meter));
    QUIRE_TRY_STATUS(core_.engine.check_prompt(ids));
    draft.chunk.tokens = std::make_shared<const std::vector<TokenId>>(std::move(ids));
  }
  draft.chunk.id = kv::chunk_id(identity_of(draft), *draft.chunk.tokens);
  return {};
}

// Returns the error of an anchor that the last of `drafts` asks for and that is neither there nor
// among the drafts before it.
Status ChunkDrafts::check_anchor(std::span<const ChunkDraft> drafts) {
  const std::optional<std::string>& asked = drafts.back().content->options.anchor;
  if (!asked) {
    return {};
  }
  const std::vector<std::string_view> ids = anchor_ids(*asked);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    QUIRE_TRY_STATUS(check_in_anchor(ids[i], drafts, std::span(ids).first(i)));
  }
  return {};
}

// Checks a chunk of the anchor of the last of `drafts`, which stands behind those `before`.
Status ChunkDrafts::check_in_anchor(std::string_view id, std::span<const ChunkDraft> drafts,
                                    std::span<const std::string_view> before) {
  const std::string& salt = drafts.back().chunk.salt;
  const auto others = drafts.first(drafts.size() - 1);
  const auto own = std::ranges::find_if(others, [&](const ChunkDraft& draft) {
    return draft.chunk.id == id && draft.chunk.salt == salt;
  });
  if (own != others.end()) {
    return kv::check_in_anchor(own->chunk, before);
  }
  if (const auto saved = library_.saved_chunk(std::string(id), salt)) {
    return kv::check_in_anchor(*saved, before);
  }
  QUIRE_TRY(const kv::Chunk* chunk, core_.registry.get(id, salt));
  return kv::check_in_anchor(*chunk, before);
}

// Gives drafts the tokens of registered chunks that have their texts.
void ChunkDrafts::take_known_tokens(std::span<ChunkDraft> drafts) {
  std::map<std::string, std::vector<const kv::Chunk*>> lists;  // by salt
  for (ChunkDraft& draft : drafts) {
    const std::string* text = draft.text();
    auto [place, is_new] = lists.try_emplace(draft.chunk.salt);
    std::vector<const kv::Chunk*>& listed = place->second;
    if (is_new) {
      listed = core_.registry.list(draft.chunk.salt);
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

// Gives a context the anchor that it will have: the one it names, else that of `anchors`.
Status ChunkDrafts::name_anchor(ChunkDraft& draft, Anchors& anchors) {
  if (draft.chunk.type != ChunkType::kContext) {
    return {};
  }
  const std::string& salt = draft.chunk.salt;
  const std::optional<std::string>& asked = draft.content->options.anchor;
  if (!asked && !anchors.contains(salt)) {
    QUIRE_TRY(anchors[salt], core_.engine.thread().ask_for_blocks<std::string>(
                                 [&] { return library_.last_system(salt); }));
  }
  draft.chunk.anchor = asked ? *asked : anchors[salt];
  return {};
}

// Encodes no text that is registered already.
Status ChunkDrafts::name_drafts(std::span<ChunkDraft> drafts) {
  QUIRE_TRY_STATUS(core_.engine.thread().call([&] { take_known_tokens(drafts); }));
  Anchors anchors;  // the last ones before
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    ChunkDraft& draft = drafts[i];
    draft.serial = core_.options.enable_deduplication ? "" : base::str_cat(i);  // like no other
    QUIRE_TRY_STATUS(name_anchor(draft, anchors));
    QUIRE_TRY_STATUS(draft.chunk.tokens == nullptr ? tokenize(draft) : Status());
    draft.chunk.id = kv::chunk_id(identity_of(draft), *draft.chunk.tokens);
    if (draft.chunk.type == ChunkType::kSystemPrompt) {
      anchors[draft.chunk.salt] = draft.chunk.id;
    }
  }
  return {};
}

std::vector<std::string_view> ChunkDrafts::ids_and_anchors(std::span<const ChunkDraft> drafts) {
  std::vector<std::string_view> ids;
  for (const ChunkDraft& draft : drafts) {
    ids.push_back(draft.chunk.id);
    std::ranges::copy(anchor_ids(draft.chunk.anchor), std::back_inserter(ids));
  }
  return ids;
}

ChunkDrafts::Rooms ChunkDrafts::rooms_for(std::span<const ChunkDraft> drafts,
                                          const std::function<bool(const ChunkDraft&)>& is_there) {
  Rooms rooms;
  std::set<std::string_view> wanted;
  for (const ChunkDraft& draft : drafts) {
    const kv::NewChunk& chunk = draft.chunk;
    if (is_there(draft) || prefills_.is_under_way({chunk.id, kv::registered_key(chunk)}) ||
        !wanted.insert(chunk.id).second) {
      continue;
    }
    Room& room = rooms[chunk.salt];
    ++room.chunks;
    if (core_.needs_kv(chunk)) {
      core_.add_blocks(chunk, room.blocks);
      room.bytes += core_.registry.room().bytes_for(chunk);
    }
  }
  return rooms;
}

// Checks that there is room for the drafts now. Saved chunks need no room: they are read into what
// there is.
Status ChunkDrafts::check_room_now(std::span<const ChunkDraft> drafts) {
  for (std::size_t count = 1; count <= drafts.size(); ++count) {
    QUIRE_TRY_STATUS(check_anchor(drafts.first(count)));
  }
  const Rooms rooms = rooms_for(drafts, [this](const ChunkDraft& draft) {
    return core_.registry.find(draft.chunk.id) != nullptr ||
           library_.saved_chunk(draft.chunk.id, draft.chunk.salt);
  });
  const std::vector<std::string_view> spared = ids_and_anchors(drafts);
  for (const auto& [salt, room] : rooms) {
    QUIRE_TRY_STATUS(core_.registry.room().check_room(
        {.salt = salt, .chunks = room.chunks, .bytes = room.bytes, .spared = spared}));
  }
  return {};
}

Status ChunkDrafts::check_room(std::span<const ChunkDraft> drafts) {
  const auto fits = core_.engine.thread().ask_for_blocks<bool>([&]() -> Result<bool> {
    const Status status = check_room_now(drafts);
    return status.ok() ? Result<bool>(true) : status.error();
  });
  return fits.ok() ? Status() : fits.error();
}

}  // namespace quire::chunks
