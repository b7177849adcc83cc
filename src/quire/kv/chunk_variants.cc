#include "quire/kv/chunk_variants.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/no_memory.h"
#include "quire/chunk_types.h"
#include "quire/kv/chunk_room.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/registry_state.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

Status deleted() noexcept {
  try {
    return {ErrorCode::kNotFound, "the chunk was deleted while it was computed"};
  } catch (const std::bad_alloc&) {
    return base::no_memory("a chunk");
  }
}

}  // namespace

Status ChunkVariants::begin(std::span<const VariantName> variants, std::int64_t lacking) {
  std::vector<std::int64_t> bytes;
  std::vector<std::string_view> spared;
  std::string salt;
  for (const auto& [id, key] : variants) {
    const Chunk* chunk = state_->lookup(id);
    QUIRE_CHECK(chunk != nullptr, "a variant of a chunk that is not there");
    salt = chunk->salt;
    bytes.push_back(state_->bytes_for(*chunk));
    spared.push_back(id);
    std::ranges::copy(anchor_ids(key.before), std::back_inserter(spared));
  }
  const std::int64_t all = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  QUIRE_TRY_STATUS(ChunkRoom(*state_).make_room(
      {.salt = salt, .bytes = all, .spared = spared, .lacking = lacking}));
  std::size_t begun = 0;
  try {
    for (; begun < variants.size(); ++begun) {
      state_->lookup(variants[begun].first)->pending[variants[begun].second] = bytes[begun];
    }
  } catch (const std::bad_alloc&) {
    for (const auto& [id, key] : variants.first(begun)) {
      state_->lookup(id)->pending.erase(key);
    }
    throw;
  }
  if (all > 0) {
    state_->add_bytes(salt, all);
  }
  return {};
}

Status ChunkVariants::end(std::string_view id, const VariantKey& key,
                          std::optional<SegmentId> segment) noexcept {
  Chunk* chunk = state_->lookup(id);
  if (chunk == nullptr || !chunk->pending.contains(key)) {
    if (segment) {
      state_->ledger.segments().forget(*segment);
    }
    return deleted();
  }
  Status ended;
  if (segment) {
    try {
      chunk->variants[key] = *segment;
    } catch (const std::bad_alloc&) {  // as if it was not computed
      state_->ledger.segments().forget(*segment);
      segment.reset();
      ended = base::no_memory("the KV of a chunk");
    }
  }
  const auto aside = chunk->pending.find(key);
  state_->add_bytes(chunk->salt, -aside->second);
  chunk->pending.erase(aside);
  if (segment) {
    state_->add_bytes(chunk->salt, state_->ledger.segments().num_bytes(*segment));
  } else if (!chunk->listed && chunk->pending.empty() && chunk->variants.empty()) {
    state_->forget(*chunk);
  }
  return ended;
}

void ChunkVariants::drop(const VariantName& variant) {
  Chunk* chunk = state_->lookup(variant.first);
  if (chunk == nullptr || !chunk->variants.contains(variant.second)) {
    return;
  }
  const SegmentId segment = chunk->variants.extract(variant.second).mapped();
  state_->add_bytes(chunk->salt, -state_->ledger.segments().num_bytes(segment));
  state_->ledger.segments().forget(segment);
}

bool ChunkVariants::owns(SegmentId segment) const {
  return std::ranges::any_of(state_->chunks, [&](const auto& chunk) {
    return std::ranges::any_of(chunk.second.variants,
                               [&](const auto& variant) { return variant.second == segment; });
  });
}

bool ChunkVariants::stands_behind(std::string_view before, std::string_view salt) const {
  const auto is_behind = [&](const auto& variant) { return variant.first.before == before; };
  return std::ranges::any_of(state_->chunks, [&](const auto& entry) {
    const Chunk& chunk = entry.second;
    return chunk.salt == salt && (std::ranges::any_of(chunk.variants, is_behind) ||
                                  std::ranges::any_of(chunk.pending, is_behind));
  });
}

}  // namespace quire::kv
