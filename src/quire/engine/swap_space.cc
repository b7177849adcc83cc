#include "quire/engine/swap_space.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/stopwatch.h"
#include "quire/device/host_buffer.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

bool can_swap(SeqId sequence, const kv::Ledger& ledger, bool on_device) {
  const kv::LedgerConfig& config = ledger.config();
  return ledger.sequences().is_plain(sequence) && !config.open_format() &&
         config.window_tokens == 0 &&
         (config.num_states == 0 || (!on_device && !ledger.points().lacks_tail(sequence))) &&
         ledger.sequences().format(sequence) == kv::kOwnFormat;
}

using StateBytes = std::span<const std::byte>;

// Returns the state at the length of a sequence in host memory; none in models without states.
Result<StateBytes> state_of(SeqId sequence, const kv::Ledger& ledger,
                            const kv_store::StatePool& states) {
  if (!ledger.points().exist()) {
    return StateBytes();
  }
  std::vector<std::byte> room;  // stays empty there
  return states.read(ledger.points().places(sequence).from, room);
}

std::int64_t blocks_of(std::int32_t tokens, const kv::Ledger& ledger) {
  const std::int64_t block_tokens = ledger.config().block_tokens;
  return (tokens + block_tokens - 1) / block_tokens;
}

// Bytes of what is kept.
struct Bytes {
  std::size_t at = 0;
  std::size_t size = 0;
};

// Returns the bytes of a run's blocks, of the first ones without their window part.
std::int64_t kv_bytes_of(const kv::RunView& run, const kv::Ledger& ledger,
                         const kv_store::PagedPool& pool) {
  using Parts = kv::BlockCopy::Parts;
  return run.without_part * pool.bytes_of(Parts::kFull) +
         (blocks_of(run.num_tokens, ledger) - run.without_part) * pool.bytes_of(Parts::kAll);
}

// Calls visit(index, parts, bytes) for blocks [first, last) of a run, until it fails. `bytes`:
// where these parts of the block are kept.
template <class Visit>
Status for_each_block(const kv_store::PagedPool& pool, std::int64_t first, std::int64_t last,
                      std::int64_t without_part, const Visit& visit) {
  using Parts = kv::BlockCopy::Parts;
  const std::int64_t whole = pool.bytes_of(Parts::kAll), full = pool.bytes_of(Parts::kFull);
  Status status;
  for (std::int64_t i = first; i < last && status.ok(); ++i) {
    const std::int64_t cut = std::min(i, without_part);
    const bool cuts = i < without_part;
    const Bytes bytes{.at = static_cast<std::size_t>(cut * full + (i - cut) * whole),
                      .size = static_cast<std::size_t>(cuts ? full : whole)};
    status = visit(i, cuts ? Parts::kFull : Parts::kAll, bytes);
  }
  return status;
}

}  // namespace

std::int64_t SwapSpace::bytes_of(SeqId sequence, const kv::Ledger& ledger,
                                 const kv_store::PagedPool& pool,
                                 const kv_store::StatePool& states) {
  return kv_bytes_of(ledger.sequences().runs(sequence).back(), ledger, pool) + states.view().stride;
}

std::int32_t SwapSpace::keep(RequestId id, SeqId sequence, const kv::Ledger& ledger,
                             const kv_store::PagedPool& pool, const kv_store::StatePool& states) {
  if (!can_swap(sequence, ledger, pool.on_device())) {
    return 0;
  }
  try {
    const Result<StateBytes> state = state_of(sequence, ledger, states);
    if (!state.ok()) {
      return 0;
    }
    const kv::RunView run = ledger.sequences().runs(sequence).back();
    const std::int64_t blocks = blocks_of(run.num_tokens, ledger);
    const std::int64_t kv_bytes = kv_bytes_of(run, ledger, pool);
    const std::int64_t size = kv_bytes + std::ssize(*state);
    if (blocks == 0 || bytes_ + size > ledger.config().budget_bytes()) {
      return 0;
    }
    Kept kept{.bytes = pool.host_buffer(static_cast<std::size_t>(size)),
              .tokens = run.num_tokens,
              .without_part = run.without_part,
              .state_bytes = std::ssize(*state),
              .size = size};
    if (kept.bytes.size() == 0) {
      return 0;
    }
    const auto start = std::chrono::steady_clock::now();
    const auto read = [&](std::int64_t i, kv::BlockCopy::Parts parts, Bytes place) {
      return pool.read_blocks(run.blocks.subspan(static_cast<std::size_t>(i), 1),
                              kept.bytes.span().subspan(place.at, place.size), {}, parts);
    };
    if (!for_each_block(pool, 0, blocks, run.without_part, read).ok()) {
      return 0;
    }
    block_seconds_ = base::seconds_since(start) *
                     static_cast<double>(pool.geometry().block_bytes()) /
                     static_cast<double>(kv_bytes);
    std::ranges::copy(*state, kept.bytes.span().last(state->size()).begin());
    const std::int32_t tokens = kept.tokens;
    forget(id);
    kept_[id.value] = std::move(kept);
    bytes_ += size;
    return tokens;
  } catch (const std::bad_alloc&) {
    return 0;  // it is computed again
  }
}

std::int32_t SwapSpace::kept(RequestId id) const {
  const auto found = kept_.find(id.value);
  return found == kept_.end() ? 0 : found->second.tokens;
}

std::int32_t SwapSpace::without_part(RequestId id) const {
  const auto found = kept_.find(id.value);
  return found == kept_.end() ? 0 : found->second.without_part;
}

Status SwapSpace::restore(RequestId id, SeqId sequence, std::int32_t first, kv::Ledger& ledger,
                          kv_store::PagedPool& pool, kv_store::StatePool& states) {
  const Kept& kept = kept_.find(id.value)->second;
  const kv::RunView run = ledger.sequences().runs(sequence).back();
  const auto write = [&](std::int64_t i, kv::BlockCopy::Parts parts, Bytes place) {
    return pool.write_blocks(run.blocks.subspan(static_cast<std::size_t>(i), 1),
                             kept.bytes.span().subspan(place.at, place.size), {}, parts);
  };
  Status status = for_each_block(pool, first / ledger.config().block_tokens,
                                 blocks_of(kept.tokens, ledger), kept.without_part, write);
  if (status.ok() && ledger.points().exist()) {
    (void)ledger.points().take_tail(sequence);  // its block was written as a whole
    status = states.write(ledger.points().places(sequence).to,
                          kept.bytes.span().last(static_cast<std::size_t>(kept.state_bytes)));
  }
  forget(id);
  return status;
}

void SwapSpace::forget(RequestId id) {
  const auto found = kept_.find(id.value);
  if (found != kept_.end()) {
    bytes_ -= found->second.size;
    kept_.erase(found);
  }
}

void SwapSpace::measure(const kv_store::PagedPool& pool) {
  constexpr int kTimes = 3;
  device::HostBuffer bytes =
      pool.host_buffer(static_cast<std::size_t>(pool.geometry().block_bytes()));
  if (bytes.size() == 0) {
    return;
  }
  const BlockId block{0};
  for (int i = 0; i < kTimes; ++i) {  // the last one, with warm memory
    const auto start = std::chrono::steady_clock::now();
    if (pool.read_blocks({&block, 1}, bytes.span()).ok()) {
      block_seconds_ = base::seconds_since(start);
    }
  }
}

}  // namespace quire::engine
