#include "quire/kv_store/saved_ranges.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/kv/format.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/kv_store/store_entry.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/state_view.h"
#include "quire/types.h"

namespace quire::kv_store {
namespace {

// A fork in the middle of a range writes up to so many blocks of it again.
constexpr std::int64_t kMaxRangeBlocks = 32;

std::string finished(base::FieldHasher& hasher) {
  const auto bytes = hasher.finish();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string follow(std::string_view before, std::span<const TokenId> tokens) {
  base::FieldHasher hasher;
  return finished(hasher.add(before).add_bytes(std::as_bytes(tokens)));
}

std::string seed_of(const LiveSequence& sequence, std::string_view tenant,
                    const tensor::KVGeometry& geometry) {
  base::FieldHasher hasher;
  hasher.add("quire piece")
      .add(tenant)
      .add_bytes(std::as_bytes(std::span(sequence.fingerprint.bytes)))
      .add(sequence.kernels)
      .add_int(sequence.follows_from_tokens ? 1 : 0)
      .add_int(geometry.layers)
      .add_int(geometry.kv_heads)
      .add_int(geometry.head_dim)
      .add_int(static_cast<std::int64_t>(geometry.dtype))
      .add_int(geometry.block_tokens);
  if (geometry.format != tensor::KVFormat::kPlain) {
    hasher.add(tensor::kv_format_name(geometry.format, geometry.dtype));
  }
  for (const int window : geometry.window_tokens) {
    hasher.add_int(window);
  }
  for (const tensor::KVLayerSize& size : geometry.layer_sizes) {
    hasher.add_int(size.kv_heads).add_int(size.head_dim);
  }
  return finished(hasher);
}

std::span<const TokenId> tokens_of(const LiveRun& run, std::int64_t begin, std::int64_t end) {
  return std::span(run.run.tokens)
      .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

std::int64_t length_of(const LiveRun& run) {
  return static_cast<std::int64_t>(run.run.tokens.size());
}

void add_kv(base::FieldHasher& hasher, const LiveRun& run, std::int64_t begin, std::int64_t end,
            const PagedPool& pool) {
  const tensor::KVGeometry& geometry = pool.geometry(run.format);
  std::vector<std::byte> block(static_cast<std::size_t>(geometry.head_block_bytes()));
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.stored_heads(layer); ++head) {
      for (std::int64_t at = begin; at < end; at += geometry.block_tokens) {
        const auto tokens = std::min<std::int64_t>(geometry.block_tokens, end - at);
        const auto index =
            static_cast<std::size_t>(at / geometry.block_tokens - run.run.lost_blocks);
        pool.read_slots(layer, head, run.blocks[index], static_cast<int>(tokens), block,
                        run.format);
        hasher.add_bytes(block);
      }
    }
  }
}

}  // namespace

SavedRangeNames::SavedRangeNames(const LiveSequence& sequence, std::string_view tenant,
                                 const PagedPool& pool)
    : sequence_(sequence), pool_(pool) {
  const std::int64_t block_tokens = pool.geometry().block_tokens;
  Digest digest = seed_of(sequence, tenant, pool.geometry());
  for (const LiveRun& run : sequence.runs) {
    base::FieldHasher begins;
    begins.add(digest).add_int(run.run.start_position);
    if (run.format != kv::kOwnFormat) {
      const tensor::KVGeometry& geometry = pool.geometry(run.format);
      begins.add(tensor::kv_format_name(geometry.format, geometry.dtype));
    }
    digest = finished(begins);
    std::vector<Digest>& before = before_.emplace_back();
    before.push_back(digest);
    for (std::int64_t at = 0; at < length_of(run); at += block_tokens) {
      digest = follow(digest, tokens_of(run, at, std::min(at + block_tokens, length_of(run))));
      before.push_back(digest);
    }
  }
}

std::string SavedRangeNames::name(std::size_t run, std::int64_t begin, std::int64_t end,
                                  std::int32_t lost_parts) const {
  const std::int64_t block_tokens = pool_.geometry().block_tokens;
  const auto blocks = static_cast<std::size_t>((end + block_tokens - 1) / block_tokens);
  base::FieldHasher hasher;
  hasher.add_int(static_cast<std::int64_t>(run)).add_int(begin).add(before_[run][blocks]);
  if (end <= sequence_.runs[run].run.lost_tokens(pool_.geometry().block_tokens)) {
    hasher.add("without kv");
  } else if (lost_parts > 0) {
    hasher.add("without window parts").add_int(lost_parts);
  } else if (!sequence_.follows_from_tokens) {
    add_kv(hasher, sequence_.runs[run], begin, end, pool_);
  }
  return base::to_hex(hasher.finish());
}

std::string name_of_state(const LiveSequence& sequence, std::size_t index, std::string_view tenant,
                          const PagedPool& pool) {
  base::FieldHasher hasher;
  hasher.add("quire state").add(seed_of(sequence, tenant, pool.geometry()));
  for (const tensor::StatePart& part : sequence.states.parts) {
    hasher.add_int(part.layer).add_int(static_cast<std::int64_t>(part.form)).add_int(part.bytes);
  }
  std::int64_t left = sequence.states.at[index].tokens;
  hasher.add_int(left).add_int(sequence.states.at[index].stays ? 1 : 0);
  for (const LiveRun& run : sequence.runs) {
    const std::int64_t taken = std::min(left, length_of(run));
    hasher.add_bytes(std::as_bytes(tokens_of(run, 0, taken)));
    left -= taken;
  }
  if (!sequence.follows_from_tokens) {
    for (const tensor::StatePart& part : sequence.states.parts) {
      hasher.add_bytes(part_of(part, sequence.state_bytes[index]));
    }
  }
  return base::to_hex(hasher.finish());
}

void RangeCutter::learn(std::span<const ObjectRange> parts) {
  std::int64_t first = 0;
  for (const ObjectRange& part : parts) {
    known_[first][part.tokens].insert(part.object);
    first += part.tokens;
  }
}

std::int32_t RangeCutter::RunBounds::lost_parts(std::int64_t begin, std::int64_t end) const {
  const std::int64_t blocks = (end - begin + block_tokens - 1) / block_tokens;
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>((without_part - begin) / block_tokens, 0, blocks));
}

// Returns the longest known range that begins at `begin` of a run of `length` tokens.
std::optional<SavedRange> RangeCutter::find_known(const SavedRangeNames& names, std::size_t run,
                                                  std::int64_t begin,
                                                  const RunBounds& bounds) const {
  const auto lengths = known_.find(bounds.run_start + begin);
  if (lengths == known_.end()) {
    return std::nullopt;
  }
  for (auto at = lengths->second.rbegin(); at != lengths->second.rend(); ++at) {
    const std::int64_t end = begin + at->first;
    const bool fits =
        end == bounds.length || (end < bounds.length && end % bounds.block_tokens == 0);
    const bool partly_lost = begin < bounds.lost && end > bounds.lost;
    if (at->first <= 0 || !fits || partly_lost) {
      continue;
    }
    SavedRange range{.run = run, .begin = begin, .end = end};
    range.object = names.name(run, begin, end);
    const std::int32_t lost_parts = bounds.lost_parts(begin, end);
    std::string held = lost_parts > 0 ? names.name(run, begin, end, lost_parts) : std::string();
    if (at->second.contains(range.object)) {
      range.instead = std::move(held);
      return range;
    }
    if (lost_parts > 0 && at->second.contains(held)) {
      range.object = std::move(held);
      range.lost_parts = lost_parts;
      return range;
    }
  }
  return std::nullopt;
}

// Returns where a new range that begins at `begin` of a run ends.
std::int64_t RangeCutter::end_of_new(std::int64_t begin, const RunBounds& bounds,
                                     std::span<const std::int64_t> cuts) const {
  const std::int64_t block = bounds.block_tokens;
  const std::int64_t full = bounds.length / block * block;
  if (begin == full) {
    return bounds.length;
  }
  const std::int64_t lost = std::max(bounds.lost, bounds.without_part);
  std::int64_t end = std::min(begin < lost ? lost : full, begin + kMaxRangeBlocks * block);
  const std::int64_t at = bounds.run_start + begin;
  const auto stop = [&](std::int64_t next) {
    end = std::min(end, begin + (next - at) / block * block);
  };
  const std::int64_t least = at + block - 1;
  if (const auto next = std::upper_bound(cuts.begin(), cuts.end(), least); next != cuts.end()) {
    stop(*next);
  }
  // The rest of a range that is partly lost now is written again, up to where known ones go on. The
  // sooner the window passes a range, the smaller it is, so that little is written next time.
  if (const auto next = known_.upper_bound(least);
      bounds.lost > 0 && begin >= bounds.lost && next != known_.end()) {
    const std::int64_t index = begin / block;
    stop(std::min(next->first, at + (index & -index) * block));
  }
  return end;
}

std::vector<SavedRange> RangeCutter::cut(const LiveSequence& sequence, const PagedPool& pool,
                                         std::span<const std::int64_t> cuts) {
  const SavedRangeNames names(sequence, tenant_, pool);
  std::vector<SavedRange> ranges;
  RunBounds bounds{.block_tokens = pool.geometry().block_tokens};
  for (std::size_t run = 0; run < sequence.runs.size(); ++run) {
    bounds.length = length_of(sequence.runs[run]);
    bounds.lost = sequence.runs[run].run.lost_tokens(pool.geometry().block_tokens);
    bounds.without_part = sequence.runs[run].run.lost_parts * bounds.block_tokens;
    for (std::int64_t begin = 0; begin < bounds.length;) {
      std::optional<SavedRange> range = find_known(names, run, begin, bounds);
      if (!range) {
        const std::int64_t end = end_of_new(begin, bounds, cuts);
        range = {.run = run, .begin = begin, .end = end};
        range->lost_parts = bounds.lost_parts(begin, end);
        range->object = names.name(run, begin, end, range->lost_parts);
        known_[bounds.run_start + begin][end - begin].insert(range->object);
      }
      begin = range->end;
      ranges.push_back(*std::move(range));
    }
    bounds.run_start += bounds.length;
  }
  return ranges;
}

std::vector<std::vector<std::int64_t>> common_cuts(std::span<const LiveSequence* const> sequences) {
  std::vector<std::vector<std::int64_t>> cuts(sequences.size());
  for (std::size_t a = 0; a < sequences.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (sequences[a]->runs.empty() || sequences[b]->runs.empty()) {
        continue;
      }
      const auto differ = std::ranges::mismatch(sequences[a]->runs.front().run.tokens,
                                                sequences[b]->runs.front().run.tokens);
      const auto common =
          static_cast<std::int64_t>(differ.in1 - sequences[a]->runs.front().run.tokens.begin());
      cuts[a].push_back(common);
      cuts[b].push_back(common);
    }
  }
  for (std::vector<std::int64_t>& of : cuts) {
    std::ranges::sort(of);
  }
  return cuts;
}

}  // namespace quire::kv_store
