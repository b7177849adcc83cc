// Chunks on their way into the registry. The call that registers them: chunk_register.cc;
// composing: chunk_compose.cc; what is there, and goes: chunk_upkeep.cc.
#include "quire/chunks/chunk_service.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/chunks.h"
#include "quire/chunks/chunk_setup.h"
#include "quire/chunks/chunk_store.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/kv/chunk_id.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

kv::RegistryConfig registry_config(const ChunkCacheOptions& options, const kv::Ledger& ledger,
                                   std::int64_t block_bytes,
                                   decltype(kv::RegistryConfig::known_elsewhere) known_elsewhere) {
  const double blocks = options.chunk_memory_ratio * ledger.config().num_blocks;
  return {.max_chunks = options.max_chunks,
          .max_blocks = static_cast<std::int32_t>(blocks),
          .block_bytes = block_bytes,
          .known_elsewhere = std::move(known_elsewhere)};
}

}  // namespace

// A prefill in flight. Books how it ended when its request is destroyed.
class ChunkService::Prefill : public engine::RequestObserver {
 public:
  // Gets the segment, or nothing. An error where nobody has it from now on.
  using Store = std::function<Status(std::optional<kv::SegmentId>)>;
  Prefill(kv::Ledger& ledger, Store store) : ledger_(ledger), store_(std::move(store)) {}

  ~Prefill() override {
    Status stored = store_(segment_);
    if (status_.ok()) {
      status_ = std::move(stored);
    }
    done_.set_value(std::move(status_));
  }

  void computed(SeqId sequence) override {
    status_ = base::no_memory("the KV of a chunk");  // until it is sealed
    auto segment = ledger_.seal(sequence);
    if (segment.ok()) {
      segment_ = *segment;
      status_ = {};
    } else {
      status_ = std::move(segment).error();
    }
  }

  void failed(const Error& error) override { status_ = base::copy_of(error); }

  [[nodiscard]] std::shared_future<Status> done() { return done_.get_future().share(); }

 private:
  kv::Ledger& ledger_;
  const Store store_;
  std::optional<kv::SegmentId> segment_;
  Status status_ = {ErrorCode::kCancelled, "the prefill was aborted"};
  std::promise<Status> done_;
};

ChunkService::ChunkService(engine::Engine& engine, tiers::TierService& tiers,
                           const ChunkCacheOptions& options)
    : engine_(engine),
      tiers_(tiers),
      options_(options),
      registry_(registry_config(options, ledger(), engine.core().counters.block_bytes,
                                [this](std::string_view id, std::string_view salt) {
                                  return why_not_found(id, salt);
                                }),
                ledger()) {}

const ChunkSetup& ChunkService::setup() const {
  std::call_once(setup_once_, [this] {
    setup_ = make_chunk_setup(engine_.core().bundle, options_.chunk_format);
  });
  return setup_;
}

ChunkService::~ChunkService() = default;

ChunkService::Name ChunkService::bos_name(const std::string& salt) {
  return {base::str_cat(kv::kBosVariant, " ", salt), {.before = std::string(kv::kBosVariant)}};
}

kv::Ledger& ChunkService::ledger() const { return engine_.core().ledger; }

bool ChunkService::windowed() const {
  return std::ranges::any_of(engine_.model_config().window_tokens,
                             [](std::int32_t window) { return window > 0; });
}

bool ChunkService::needs_kv(const kv::NewChunk& chunk) const {
  return chunk.type != ChunkType::kQuery && !windowed();
}

const text::Affixes& ChunkService::affixes_of(ChunkType type) const {
  const auto& format = setup().format;
  QUIRE_CHECK(format.has_value(), "text was refused when there is no format");
  return type == ChunkType::kSystemPrompt ? format->system
         : type == ChunkType::kContext    ? format->context
                                          : format->query;
}

kv::ChunkIdentity ChunkService::identity_of(const Draft& draft) const {
  return {.model = engine_.model_digest(),
          .salt = draft.chunk.salt,
          .anchor = draft.chunk.anchor,
          .type = draft.chunk.type,
          .serial = draft.serial};
}

Status ChunkService::check_text(std::string_view text) const {
  if (!setup().format) {
    return {ErrorCode::kUnsupported,
            base::str_cat("text cannot become a chunk of this model: ", setup().format_error,
                          "; give chunk_format, or token ids")};
  }
  return text.empty() ? Status(ErrorCode::kInvalidArgument, "the chunk is empty; give some text")
                      : Status();
}

Result<std::vector<TokenId>> ChunkService::encode(ChunkType type, std::string_view text) const {
  QUIRE_TRY_STATUS(check_text(text));
  return text::encode_chunk(engine_.text()->tokenizer, affixes_of(type), text);
}

// Everything about a chunk that does not need the registry.
Result<ChunkService::Draft> ChunkService::draft(const ChunkContent& content) const {
  const ChunkOptions& options = content.options;
  Draft draft{.content = &content};
  QUIRE_TRY(draft.chunk.metadata_json, base::kept_object(options.metadata_json, "metadata"));
  if (options.ttl_seconds && !(*options.ttl_seconds > 0)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("ttl_seconds is ", *options.ttl_seconds, "; give more than 0, or none")};
  }
  if (options.anchor && content.type != ChunkType::kContext) {
    return {ErrorCode::kInvalidArgument, "only context chunks have an anchor"};
  }
  QUIRE_TRY_STATUS(engine::SessionService::check_salt("salt", options.salt));
  draft.chunk.salt = engine_.salt_of(options.salt);
  draft.chunk.type = content.type;
  draft.chunk.ttl_seconds = options.ttl_seconds;
  draft.chunk.pinned = options.pinned;
  draft.chunk.priority = options.priority;
  if (const auto* text = std::get_if<std::string>(&content.content)) {
    QUIRE_TRY_STATUS(check_text(*text));
    return draft;
  }
  const auto& ids = std::get<std::vector<TokenId>>(content.content);
  QUIRE_TRY_STATUS(engine_.check_prompt(ids));
  draft.chunk.tokens = std::make_shared<const std::vector<TokenId>>(ids);
  if (engine_.text() != nullptr) {
    const text::Tokenizer& tokenizer = engine_.text()->tokenizer;
    std::vector<TokenId> known = ids;  // a model may have ids that are no text
    std::erase_if(known, [&](TokenId id) { return id >= tokenizer.vocab_size(); });
    QUIRE_TRY(draft.chunk.content, tokenizer.decode(known, false));
  }
  return draft;
}

// Ids of text; then the chunk's own id. The one place where a chunk is encoded.
Status ChunkService::tokenize(Draft& draft, const Interrupt& interrupted) const {
  if (const std::string* text = draft.text()) {
    draft.chunk.content = *text;  // not before: most texts are there already
  }
  if (draft.chunk.tokens == nullptr) {
    base::WorkMeter meter(text::kWorkOfCall, interrupted);
    QUIRE_TRY(auto ids, text::encode_chunk(engine_.text()->tokenizer, affixes_of(draft.chunk.type),
                                           draft.chunk.content, &meter));
    QUIRE_TRY_STATUS(engine_.check_prompt(ids));
    draft.chunk.tokens = std::make_shared<const std::vector<TokenId>>(std::move(ids));
  }
  draft.chunk.id = kv::chunk_id(identity_of(draft), *draft.chunk.tokens);
  return {};
}

// Returns the anchor that a context names, else the system chunk that its tenant has registered
// last: in this call, or before. Chunks of one call go under the same one, whatever others do
// meanwhile.
Result<std::string> ChunkService::anchor_of(const Draft& draft, Anchors& anchors) {
  const std::string& salt = draft.chunk.salt;
  if (const std::optional<std::string>& asked = draft.content->options.anchor) {
    return *asked;
  }
  const auto known = anchors.find(salt);
  if (known == anchors.end() ||
      (!known->second.empty() && registry_.find(known->second, salt) == nullptr)) {
    QUIRE_TRY(anchors[salt], last_system(salt));
  }
  return anchors[salt];
}

// Puts a context under its anchor, which stays until the context is registered.
Status ChunkService::place_anchor(Draft& draft, Anchors& anchors) {
  const std::string& salt = draft.chunk.salt;
  if (draft.chunk.type == ChunkType::kContext && !windowed()) {
    QUIRE_TRY(draft.chunk.anchor, anchor_of(draft, anchors));
    QUIRE_TRY_STATUS(adopt(draft.chunk.anchor, salt));
  }
  if (draft.chunk.anchor.empty()) {
    return {};
  }
  QUIRE_TRY(const kv::Chunk* anchor, registry_.get(draft.chunk.anchor, salt));
  QUIRE_TRY_STATUS(check_is_system(*anchor));
  if (!draft.anchor) {
    draft.anchor = registry_.hold(anchor->id);
  }
  return {};
}

// Lets the anchors of drafts go that are registered, or are not to be.
void ChunkService::release_anchors(std::span<Draft> drafts) {
  if (std::ranges::none_of(drafts, [](const Draft& draft) { return draft.anchor.has_value(); })) {
    return;
  }
  engine_.thread().call_surely([&] {
    for (Draft& draft : drafts) {
      if (draft.anchor) {
        registry_.release(*std::exchange(draft.anchor, std::nullopt));
      }
    }
  });
}

// True when an equal chunk is there: the draft has become a use of it.
bool ChunkService::merge(Draft& draft, const kv::Chunk* known) {
  if (known == nullptr) {
    return false;
  }
  draft.result.id = draft.chunk.id = known->id;
  if (draft.how.held) {
    draft.result.hold = registry_.hold(known->id);
  }
  if (draft.how.counted) {
    draft.result.changed = registry_.merge(draft.chunk);
    note_use(known->id, known->salt);
    draft.result.used = true;
  }
  return true;
}

Result<ChunkService::Pending> ChunkService::start(engine::NewRequest request, Name name,
                                                  Prefill::Store store) {
  auto observer = std::make_shared<Prefill>(
      ledger(), [this, name, store = std::move(store)](std::optional<kv::SegmentId> kv) {
        pending_.erase(name);
        return store(kv);
      });
  Pending pending{.done = observer->done(), .waiters = std::make_shared<int>(1)};
  request.kind = engine::RequestKind::kPrefill;
  request.params.max_tokens = 0;
  request.observer = std::move(observer);
  std::vector<engine::NewRequest> requests;
  requests.push_back(std::move(request));
  std::vector<std::shared_ptr<engine::Channel>> channels;
  QUIRE_TRY_STATUS(engine_.enqueue(std::move(requests), channels));
  pending.channel = channels.front();
  pending_[std::move(name)] = pending;
  return pending;
}

// Room was set aside for this variant; it is given back when the prefill cannot start.
Result<ChunkService::Pending> ChunkService::start_prefill(const kv::Chunk& chunk,
                                                          const kv::VariantKey& key, bool counted) {
  const auto store = [this, id = chunk.id, salt = chunk.salt, key,
                      counted](std::optional<kv::SegmentId> segment) {
    if (counted && segment) {
      registry_.count(salt, 0, 1);
    }
    Status ended = registry_.end(id, key, segment);
    if (ended.ok() && segment) {
      registry_.publish(id);
    }
    return ended;
  };
  engine::NewRequest request{.reuse = options_.enable_deduplication, .salt = chunk.salt};
  if (key.before.empty()) {
    request.prompt = *chunk.tokens;
    return start(std::move(request), {chunk.id, key}, store);
  }
  const Result<SeqId> sequence = compose_behind(chunk, key);
  if (!sequence.ok()) {
    [[maybe_unused]] const Status ended = store(std::nullopt);
    return sequence.error();
  }
  request.composed = engine::ComposedPrompt{.sequence = *sequence, .pieces = {chunk.tokens}};
  return start(std::move(request), {chunk.id, key}, store);
}

std::optional<TokenId> ChunkService::bos_token() const {
  return engine_.text() == nullptr ? engine_.model_config().bos_token_id
                                   : engine_.text()->tokenizer.bos_token_id();
}

// A sequence of the chunk's tokens behind what its variant stands behind.
Result<SeqId> ChunkService::compose_behind(const kv::Chunk& chunk, const kv::VariantKey& key) {
  kv::SegmentUse before;
  std::int64_t position = key.gap;
  if (key.before == kv::kBosVariant) {
    const auto bos = bos_.find(chunk.salt);
    QUIRE_CHECK(bos != bos_.end(), "the BOS token is computed first");
    before.segment = bos->second;
    position += 1;
  } else {
    QUIRE_TRY(const kv::Chunk* anchor, registry_.get(key.before, chunk.salt));
    const auto variant = anchor->variants.find({});
    QUIRE_CHECK(variant != anchor->variants.end(), "a listed system chunk has KV");
    before = {.segment = variant->second, .rank = {anchor->rank}};
    position += std::ssize(*anchor->tokens);
  }
  return ledger().compose(
      {&before, 1}, {.tokens = *chunk.tokens, .position = static_cast<std::int32_t>(position)});
}

// A chunk that nobody has registered yet: it has its id from now on, unless somebody else computes
// it, who may yet give it up. Nothing to wait for when it needs no KV.
Result<std::optional<ChunkService::Pending>> ChunkService::begin(Draft& draft) {
  const bool has_kv = needs_kv(draft.chunk);
  const kv::VariantKey key = kv::registered_key(draft.chunk);
  if (auto meanwhile = join({draft.chunk.id, key})) {
    draft.waits = true;
    return meanwhile;
  }
  draft.result.id = draft.chunk.id;
  QUIRE_TRY(const kv::Chunk* chunk,
            registry_.begin(draft.chunk, has_kv ? std::optional(key) : std::nullopt));
  draft.result.created = draft.how.counted;
  try {
    if (draft.how.held) {
      draft.result.hold = registry_.hold(chunk->id);
    }
    if (!has_kv) {
      registry_.publish(chunk->id);
      return std::optional<Pending>();
    }
    QUIRE_TRY(const Pending pending, start_prefill(*chunk, key, draft.how.counted));
    draft.prefill = pending.channel;
    return std::optional(pending);
  } catch (const std::bad_alloc&) {
    [[maybe_unused]] const Status ended =  // no effect where it was ended already
        registry_.end(draft.chunk.id, key, std::nullopt);
    registry_.give_up(draft.chunk.id);
    throw;
  }
}

std::int64_t ChunkService::lacking(std::int64_t blocks) const {
  const std::int64_t available = ledger().blocks_available();
  return engine_.has_requests() ? 0 : std::max(blocks - available, std::int64_t{0});
}

// Drafts that have no id yet become uses of what is there, or are begun or waited for.
Status ChunkService::begin_all(std::span<Draft> drafts, std::vector<Pending>& pending) {
  const Rooms rooms = rooms_for(drafts, [this](const Draft& draft) {  // before one of them is begun
    return !draft.result.id.empty() || registry_.find(draft.chunk.id) != nullptr;
  });
  const std::vector<std::string_view> spared = ids_and_anchors(drafts);
  for (const auto& [salt, room] : rooms) {
    QUIRE_TRY_STATUS(registry_.make_room({.salt = salt,
                                          .chunks = room.chunks,
                                          .blocks = static_cast<std::int32_t>(room.blocks),
                                          .spared = spared,
                                          .lacking = lacking(room.blocks)}));
  }
  for (Draft& draft : drafts) {
    if (!draft.result.id.empty() ||
        (options_.enable_deduplication && merge(draft, registry_.find(draft.chunk.id)))) {
      continue;
    }
    QUIRE_TRY(const std::optional<Pending> prefill, begin(draft));
    if (prefill) {
      pending.push_back(*prefill);
    }
  }
  engine_.publish_stats();
  return {};
}

std::optional<ChunkService::Pending> ChunkService::join(const Name& name) {
  const auto known = pending_.find(name);
  if (known == pending_.end()) {
    return std::nullopt;
  }
  ++*known->second.waiters;
  return known->second;
}

void ChunkService::leave(std::span<const Pending> pending) {
  for (const Pending& given_up : pending) {
    if (--*given_up.waiters == 0) {
      engine_.abort_now(given_up.channel->id());
    }
  }
}

Status ChunkService::wait(std::span<const Pending> pending, const Interrupt& interrupted) {
  Status first_failure;
  for (const Pending& prefill : pending) {
    while (interrupted && prefill.done.wait_for(std::chrono::milliseconds(kInterruptPollMs)) !=
                              std::future_status::ready) {
      if (interrupted()) {
        return {ErrorCode::kCancelled, "the call was interrupted"};
      }
    }
    if (const Status status = prefill.done.get(); !status.ok() && first_failure.ok()) {
      first_failure = status;
    }
  }
  return first_failure;
}

}  // namespace quire::chunks
