#include "quire/chunks/chunk_prefills.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_maps.h"
#include "quire/chunks/hidden_pass.h"
#include "quire/chunks/hidden_states.h"
#include "quire/chunks/saved_chunks.h"  // IWYU pragma: keep (destroyed here)
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/interrupt.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/segments.h"
#include "quire/kv/sequences.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

// Opens a plain prompt of a chunk that nothing stands before, on a model with states. Its KV and
// the state behind it serve prompts that begin so. Nothing cached is used: maps need every token.
Result<SeqId> open_plain(ChunkCore& core, const kv::Chunk& chunk) {
  kv::Ledger& ledger = core.ledger();
  const auto tokens = static_cast<std::int32_t>(chunk.tokens->size());
  const SeqId sequence = ledger.sequences().open(*chunk.tokens, false, {}, chunk.salt);
  if (const Status held = ledger.segments().hold_maps(sequence, core.map_blocks(tokens));
      !held.ok()) {
    ledger.sequences().close(sequence);
    return held.error();
  }
  ledger.points().mark(sequence, std::array{kv::PointMark{.tokens = tokens, .stays = true}},
                       tokens);
  return sequence;
}

}  // namespace

// A prefill in flight. Books how it ended when its request is destroyed.
class ChunkPrefills::Prefill : public engine::RequestObserver {
 public:
  // Borrows `core`. `maps`: of the chunk, where the model has layers with a state.
  Prefill(ChunkCore& core, std::optional<model::StateMaps> maps, KeepKv store)
      : core_(core), maps_(std::move(maps)), store_(std::move(store)) {}

  ~Prefill() override {
    Status stored = store_(segment_, sums_);
    if (status_.ok()) {
      status_ = std::move(stored);
    }
    done_.set_value(std::move(status_));
  }

  void computed(SeqId sequence) override {
    status_ = base::no_memory("the KV of a chunk");  // until it is sealed
    if (maps_) {
      if (Status stored = store_maps(core_.engine.core(), sequence, *maps_); !stored.ok()) {
        status_ = std::move(stored);
        return;
      }
    }
    auto segment = core_.ledger().segments().seal(sequence);
    if (segment.ok()) {
      segment_ = *segment;
      status_ = {};
    } else {
      status_ = std::move(segment).error();
    }
  }

  [[nodiscard]] model::StateMaps* maps() override { return maps_ ? &*maps_ : nullptr; }
  [[nodiscard]] bool measures_kv() const override { return true; }
  void stored(const kernels::KVErrorSums& sums) override { sums_.add(sums); }
  void failed(const Error& error) override { status_ = base::copy_of(error); }

  [[nodiscard]] std::shared_future<Status> done() { return done_.get_future().share(); }

 private:
  ChunkCore& core_;
  std::optional<model::StateMaps> maps_;
  const KeepKv store_;
  std::optional<kv::SegmentId> segment_;
  kernels::KVErrorSums sums_;
  Status status_ = {ErrorCode::kCancelled, "the prefill was aborted"};
  std::promise<Status> done_;
};

kv::VariantName ChunkPrefills::bos_name(const std::string& salt) {
  return {base::str_cat(kv::kBosVariant, " ", salt), {.before = std::string(kv::kBosVariant)}};
}

Result<PendingPrefill> ChunkPrefills::start(engine::NewRequest request, kv::VariantName name,
                                            KeepKv store, std::optional<model::StateMaps> maps) {
  request.behind_window = kv::BehindWindow::kKeeps;
  auto observer = std::make_shared<Prefill>(
      core_, std::move(maps),
      [this, name, store = std::move(store)](std::optional<kv::SegmentId> kv,
                                             const kernels::KVErrorSums& sums) {
        pending_.erase(name);
        return store(kv, sums);
      });
  PendingPrefill pending{.done = observer->done(), .waiters = std::make_shared<int>(1)};
  request.kind = engine::RequestKind::kPrefill;
  request.params.max_tokens = 0;
  request.observer = std::move(observer);
  std::vector<engine::NewRequest> requests;
  requests.push_back(std::move(request));
  std::vector<std::shared_ptr<engine::Channel>> channels;
  QUIRE_TRY_STATUS(core_.engine.requests().enqueue(std::move(requests), channels));
  pending.channel = channels.front();
  pending_[std::move(name)] = pending;
  return pending;
}

std::optional<KVError> kv_error_of(const kernels::KVErrorSums& sums,
                                   const tensor::KVGeometry& geometry) {
  if (sums.key_whole <= 0 || sums.value_whole <= 0) {
    return std::nullopt;
  }
  return KVError{.key = std::sqrt(sums.key_error / sums.key_whole),
                 .value = std::sqrt(sums.value_error / sums.value_whole),
                 .bits_per_value = geometry.bits_per_value()};
}

// Starts the prefill of a variant. Room was set aside for it; it is given back when the prefill
// cannot start.
Result<PendingPrefill> ChunkPrefills::start_prefill(const kv::Chunk& chunk,
                                                    const kv::VariantKey& key, bool counted,
                                                    const PrefillPlace* place) {
  const auto store = [this, id = chunk.id, salt = chunk.salt, key, counted, format = chunk.format](
                         std::optional<kv::SegmentId> segment, const kernels::KVErrorSums& sums) {
    if (counted && segment) {
      core_.registry.usage().count(salt, 0, 1);
    }
    Status ended = core_.registry.variants().end(id, key, segment);
    if (ended.ok() && segment) {
      core_.registry.finish(id, kv_error_of(sums, core_.engine.core().paged_pool.geometry(format)));
    }
    return ended;
  };
  engine::NewRequest request{.reuse = core_.options.enable_deduplication, .salt = chunk.salt};
  const bool is_first = key.before.empty() && key.gap == 0 && chunk.format == kv::kOwnFormat;
  if (is_first && !core_.has_states()) {
    request.prompt = *chunk.tokens;
    return start(std::move(request), {chunk.id, key}, store);
  }
  auto maps = make_maps(core_.engine, std::ssize(*chunk.tokens));
  if (!maps.ok()) {
    [[maybe_unused]] const Status ended = store(std::nullopt, {});
    return std::move(maps).error();
  }
  auto own_place = place == nullptr ? place_of(chunk, key) : Result<PrefillPlace>(*place);
  const auto open_at = [&](const PrefillPlace& at) {
    if (is_first && at.before.empty() && at.position == 0) {
      request.reuse = false;  // as the sequence is opened
      return open_plain(core_, chunk);
    }
    return compose_at(*chunk.tokens, chunk.format, at);
  };
  const Result<SeqId> sequence =
      own_place.ok() ? open_at(*own_place) : Result<SeqId>(std::move(own_place).error());
  if (!sequence.ok()) {
    [[maybe_unused]] const Status ended = store(std::nullopt, {});
    return sequence.error();
  }
  request.composed = engine::ComposedPrompt{.sequence = *sequence, .pieces = {chunk.tokens}};
  return start(std::move(request), {chunk.id, key}, store, *std::move(maps));
}

Result<const kv::Chunk*> ChunkPrefills::first_without_kv(std::string_view anchor,
                                                         const std::string& salt) const {
  for (const std::string_view id : anchor_ids(anchor)) {
    QUIRE_TRY(const kv::Chunk* chunk, core_.registry.get(id, salt));
    if (!chunk->variants.contains(kv::registered_key(*chunk))) {
      return chunk;
    }
  }
  return nullptr;
}

Result<PrefillPlace> ChunkPrefills::place_of(const kv::Chunk& chunk,
                                             const kv::VariantKey& key) const {
  PrefillPlace place;
  std::int64_t position = 0;
  if (key.before == kv::kBosVariant) {
    const auto bos = bos_.find(chunk.salt);
    QUIRE_CHECK(bos != bos_.end(), "the BOS token is computed first");
    place.before.push_back({.segment = bos->second});
    position = 1;
  } else {
    QUIRE_TRY(const kv::Chunk* lacking, first_without_kv(key.before, chunk.salt));
    if (lacking != nullptr) {
      return Error{.code = ErrorCode::kNotFound,
                   .message = base::str_cat("chunk ", lacking->id.substr(0, 12),
                                            "..., which the chunk stands behind, has no KV now; "
                                            "compose it once"),
                   .chunk_id = lacking->id};
    }
    for (const std::string_view id : anchor_ids(key.before)) {
      QUIRE_TRY(const kv::Chunk* before, core_.registry.get(id, chunk.salt));
      place.before.push_back({.segment = before->variants.at(kv::registered_key(*before)),
                              .position = static_cast<std::int32_t>(position),
                              .rank = {before->rank}});
      position += std::ssize(*before->tokens);
    }
  }
  place.position = static_cast<std::int32_t>(position + key.gap);
  return place;
}

Result<SeqId> ChunkPrefills::compose_at(std::span<const TokenId> tokens, kv::FormatId format,
                                        const PrefillPlace& place) {
  const kv::ComposeTail tail = {.tokens = tokens, .position = place.position};
  kv::Segments& segments = core_.ledger().segments();
  QUIRE_TRY(const SeqId sequence, format == kv::kOwnFormat
                                      ? segments.compose(place.before, tail)
                                      : segments.compose_in(format, place.before, tail));
  if (!core_.has_states()) {
    return sequence;
  }
  const Status held = segments.hold_maps(sequence, core_.map_blocks(std::ssize(tokens)));
  if (!held.ok()) {
    core_.ledger().sequences().close(sequence);
    return held.error();
  }
  return sequence;
}

// Returns whether files still fill blocks of a segment.
bool ChunkPrefills::is_being_read(kv::SegmentId segment) const {
  const tiers::BackgroundLoads& under_way = core_.tiers.background_loads();
  return !under_way.idle() &&
         !under_way.filling(kv::parts_of(core_.ledger().segments().find(segment)->blocks()))
              .empty();
}

Status ChunkPrefills::keep_hidden(const kv::Chunk& chunk, const kv::VariantKey& key) {
  const auto variant = chunk.variants.find(key);
  if (!chunk.keep_hidden || variant == chunk.variants.end() ||
      core_.hidden.find(variant->second, *chunk.keep_hidden) != nullptr) {
    return {};
  }
  QUIRE_TRY(PrefillPlace place, place_of(chunk, key));
  place.before.push_back({.segment = variant->second,
                          .position = place.position,
                          .rank = {chunk.rank, static_cast<std::uint32_t>(key.gap)}});
  if (std::ranges::any_of(
          place.before, [this](const kv::SegmentUse& use) { return is_being_read(use.segment); })) {
    return {};
  }
  engine::EngineCore& core = core_.engine.core();
  QUIRE_TRY(std::vector<float> rows,
            hidden_before({.ledger = core_.ledger(),
                           .paged_pool = core.paged_pool,
                           .decoder = core.decoder(),
                           .views = core.views,
                           .max_rows = core_.engine.options().max_batch_tokens,
                           .kernels = core_.engine.context(),
                           .states = &core.states},
                          place.before, *chunk.keep_hidden));
  core_.hidden.keep(variant->second,
                    HiddenRows(*chunk.keep_hidden, std::move(rows),
                               core.paged_pool.geometry().dtype == tensor::DType::kFloat32),
                    core_.ledger().segments());
  return {};
}

std::optional<PendingPrefill> ChunkPrefills::join(const kv::VariantName& name) {
  const auto known = pending_.find(name);
  if (known == pending_.end()) {
    return std::nullopt;
  }
  ++*known->second.waiters;
  return known->second;
}

void ChunkPrefills::leave(std::span<const PendingPrefill> pending) {
  for (const PendingPrefill& given_up : pending) {
    if (--*given_up.waiters == 0) {
      core_.engine.requests().abort(given_up.channel->id());
    }
  }
}

Status ChunkPrefills::wait(std::span<const PendingPrefill> pending, const Interrupt& interrupted) {
  Status first_failure;
  for (const PendingPrefill& prefill : pending) {
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

// Drops KV of a BOS token that no KV of the tenant's chunks stands behind.
void ChunkPrefills::drop_unused_bos(const std::string& salt) {
  const auto bos = bos_.find(salt);
  if (bos != bos_.end() && !core_.registry.variants().stands_behind(kv::kBosVariant, salt)) {
    core_.ledger().segments().drop(bos->second);
    bos_.erase(bos);
  }
}

bool ChunkPrefills::owns(kv::SegmentId segment) const {
  return std::ranges::any_of(bos_, [&](const auto& bos) { return bos.second == segment; });
}

void ChunkPrefills::drop_unused_bos() {
  for (auto next = bos_.begin(); next != bos_.end();) {
    const std::string salt = (next++)->first;
    drop_unused_bos(salt);
  }
}

Result<PendingPrefill> ChunkPrefills::start_bos(const std::string& salt, TokenId bos) {
  const auto place = std::make_shared<BosSegments>();  // made now: it is filled where none may be
  place->emplace(salt, kv::SegmentId{});
  const auto store = [this, place](std::optional<kv::SegmentId> segment,
                                   const kernels::KVErrorSums&) {
    if (segment) {
      place->begin()->second = *segment;
      bos_.erase(place->begin()->first);
      bos_.merge(*place);
    }
    return Status();
  };
  if (!core_.has_states()) {
    return start({.prompt = {bos}, .salt = salt}, bos_name(salt), store);
  }
  const auto tokens = std::make_shared<const std::vector<TokenId>>(1, bos);
  QUIRE_TRY(auto maps, make_maps(core_.engine, 1));
  engine::NewRequest request{.salt = salt};
  QUIRE_TRY(const SeqId sequence, compose_at(*tokens, kv::kOwnFormat, {}));
  request.composed = engine::ComposedPrompt{.sequence = sequence, .pieces = {tokens}};
  return start(std::move(request), bos_name(salt), store, std::move(maps));
}

}  // namespace quire::chunks
