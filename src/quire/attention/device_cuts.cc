#include "quire/attention/device_cuts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "quire/attention/device_lengths.h"
#include "quire/attention/device_lists.h"
#include "quire/attention/device_plan.h"
#include "quire/attention/device_tiles.h"

namespace quire::attention {
namespace {

// Tokens that take as long as all that an item of few costs beside them, where others are of many.
// The next item is on its way meanwhile.
constexpr std::int64_t kFewItemTokens = 64;
// Microseconds of a multiprocessor for kTokenTile tokens of an item, where one kernel computes both
// families. Products take them for many columns, memory for few (H200, head size 128; their ratio
// counts).
constexpr double kManyTileUs = 1.9, kFewTileUs = 0.85;
constexpr std::size_t kMostListedTiles = 256;  // more even out by themselves, and would cost time

// Workers for the family of many columns, the cuts that suit them, and when all are done.
struct Share {
  int many_workers = 0;
  Cut few, many;
  double end = std::numeric_limits<double>::infinity();
};

// Returns when both families are done, where they end after so many tokens. Two items of few run
// side by side at half the speed each.
double end_of(double many, double few) {
  return std::max(many * kManyTileUs, 2 * few * kFewTileUs);
}

// Takes the share if it ends earlier than `chosen`, or as early with fewer workers.
void try_share(const DeviceTiles& tiles, int all_workers, int many_workers, Share& chosen) {
  const std::int64_t for_few = std::int64_t{2} * (all_workers - many_workers);
  const double least_few = tiles.few.least(for_few, kFewItemTokens);
  if (end_of(tiles.many.least(many_workers, kItemTokens), least_few) > chosen.end) {
    return;
  }
  const auto [many_cut, many_end] = tiles.many.best(kTokenTile, many_workers);
  if (end_of(many_end, least_few) > chosen.end) {
    return;
  }
  const auto [few_cut, few_end] = tiles.few.best(kTokenTile, for_few, kFewItemTokens);
  const double end = end_of(many_end, few_end);
  if (std::pair(end, many_workers) < std::pair(chosen.end, chosen.many_workers)) {
    chosen = {.many_workers = many_workers, .few = few_cut, .many = many_cut, .end = end};
  }
}

// Returns the best share of the workers. Shares near the estimated one may suit the numbers of
// items better. The search goes from there outwards, since most of the others can be seen not to.
Share choose_share(const DeviceTiles& tiles, int all, float estimate) {
  const int width = tiles.width;
  const int middle =
      std::clamp(static_cast<int>(std::lround(estimate * static_cast<float>(all))), 1, all - 1);
  const int step = std::max(1, all / (64 * width)) * width;
  const int lowest = std::max(1, (middle - all / 3) / width) * width;
  const int highest = std::min(all - 1, middle + all / 8);
  const int start = lowest + (middle - lowest) / step * step;
  Share chosen;
  for (int below = start, above = start + step; below >= lowest || above <= highest;
       below -= step, above += step) {
    if (below >= lowest) {
      try_share(tiles, all, below, chosen);
    }
    if (above <= highest) {
      try_share(tiles, all, above, chosen);
    }
  }
  return chosen;
}

// Takes lists if these end so much earlier than the `end` of equal pieces that it is no error of
// the estimate. They end at `least` at the earliest.
void try_lists(const DeviceTiles& tiles, std::int32_t kv_heads, int all_workers, double least,
               double end, DeviceCuts& cuts) {
  constexpr double kGain = 0.97;
  end *= kGain;
  const auto us = [](std::int64_t capacity) { return kManyTileUs * static_cast<double>(capacity); };
  auto capacity = std::max(static_cast<std::int64_t>(least / kManyTileUs / kTokenTile),
                           kItemTiles + kLeastTiles);
  for (; us(capacity) * kTokenTile < end; ++capacity) {
    const ListWorkers lists = measure_lists(tiles.many_token_tiles, kv_heads, capacity);
    const std::int64_t for_few = 2 * (all_workers - tiles.width * lists.workers);
    if (for_few <= 0) {
      continue;
    }
    const auto [few_cut, few_end] = tiles.few.best(kTokenTile, for_few, kFewItemTokens);
    const double all_end = std::max(us(capacity) * kTokenTile, 2 * few_end * kFewTileUs);
    if (all_end < end) {
      end = all_end;
      cuts.list_capacity = capacity;
      cuts.lists = lists;
      cuts.few = few_cut;
    }
  }
}

// Returns the cut for items of few that all run at once, one on a multiprocessor, if they end no
// later than those of `cut`. Two on a multiprocessor have half its speed each; half as many leave
// fewer partials.
Cut prefer_fewer(const Lengths& few, const Cut& cut, std::int64_t all_workers) {
  const Cut alone{static_cast<double>(few.total()) / static_cast<double>(all_workers), false,
                  kTokenTile};
  const Lengths::Items items = few.items(alone);
  const bool fewer = items.count <= all_workers && items.longest <= 2 * few.items(cut).longest;
  return fewer ? alone : cut;
}

}  // namespace

DeviceCuts choose_cuts(const DeviceTiles& tiles, std::int32_t kv_heads,
                       const DevicePlanOptions& options) {
  const int all = options.many_workers;
  const double many = kManyTileUs * static_cast<double>(tiles.many.total());
  const double few = kFewTileUs * static_cast<double>(tiles.few.total());
  DeviceCuts cuts{.many_share = many > 0 ? static_cast<float>(many / (many + few)) : 0};
  if (!options.one_kernel || many == 0 || few == 0) {
    const std::int64_t for_few = options.one_kernel ? 2 * all : options.few_workers;
    cuts.few = tiles.few.best(token_tile(options, true), for_few).first;
    cuts.many = tiles.many.best(token_tile(options, false), all).first;
    if (options.one_kernel && many == 0 && few > 0) {
      cuts.few = prefer_fewer(tiles.few, cuts.few, all);
    }
    return cuts;
  }
  const Share share = choose_share(tiles, all, cuts.many_share);
  cuts = {.few = share.few,
          .many = share.many,
          .many_share = static_cast<float>(share.many_workers) / static_cast<float>(all)};
  if (options.range_tokens == 0 && tiles.many_token_tiles.size() <= kMostListedTiles) {
    try_lists(tiles, kv_heads, all, (many + few) / all, share.end, cuts);
  }
  return cuts;
}

}  // namespace quire::attention
