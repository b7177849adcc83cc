#include "quire/attention/device_lengths.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "quire/base/divide.h"

namespace quire::attention {
namespace {

constexpr std::int64_t kMostPartials = 128;  // most partials of one entry for one row

}  // namespace

std::int64_t Cut::piece(std::int64_t tokens) const {
  const double wanted = static_cast<double>(tokens) / share;
  const auto pieces = static_cast<std::int64_t>(up ? std::ceil(wanted) : std::floor(wanted));
  return base::divide_up(
             base::divide_up(tokens, std::clamp<std::int64_t>(pieces, 1, kMostPartials)),
             token_tile) *
         token_tile;
}

void Lengths::add(std::int64_t tokens, std::int64_t count) {
  auto found = std::lower_bound(
      counts_.begin(), counts_.end(), tokens,
      [](const Count& count, std::int64_t wanted) { return count.tokens < wanted; });
  if (found == counts_.end() || found->tokens != tokens) {
    found = counts_.insert(found, {.tokens = tokens});
  }
  found->count += count;
  total_ += tokens * count;
  tiles_ += count;
}

Lengths::Items Lengths::items(const Cut& cut) const {
  Items items;
  for (const auto& [tokens, count] : counts_) {
    const std::int64_t piece = cut.piece(tokens), of_tile = base::divide_up(tokens, piece);
    items.count += of_tile * count;
    items.longest = std::max(items.longest, piece);
    items.shortest = std::min(items.shortest, tokens - (of_tile - 1) * piece);
  }
  return items;
}

// Returns the tokens after which the last of the workers is done, by estimate. Items of many
// lengths even out; of one length they do not.
double Lengths::estimate(const Cut& cut, std::int64_t workers, std::int64_t item_tokens) const {
  const Items items = this->items(cut);
  const std::int64_t rounds = base::divide_up(items.count, workers);
  const double even = static_cast<double>(total_) / static_cast<double>(workers) +
                      static_cast<double>(items.longest) / 2;
  return std::clamp(even, static_cast<double>(rounds * items.shortest),
                    static_cast<double>(rounds * items.longest)) +
         static_cast<double>(rounds * item_tokens);
}

double Lengths::least(std::int64_t workers, std::int64_t item_tokens) const {
  return static_cast<double>(total_) / static_cast<double>(workers) +
         static_cast<double>(base::divide_up(tiles_, workers) * item_tokens);
}

std::pair<Cut, double> Lengths::best(std::int64_t token_tile, std::int64_t workers,
                                     std::int64_t item_tokens) const {
  constexpr int kMostRounds = 4;
  std::pair<Cut, double> best{{}, std::numeric_limits<double>::infinity()};
  for (int rounds = 1; rounds <= kMostRounds && total_ > 0; ++rounds) {
    for (const bool up : {false, true}) {
      const Cut cut{static_cast<double>(total_) / static_cast<double>(workers * rounds), up,
                    token_tile};
      if (const double end = estimate(cut, workers, item_tokens); end < best.second) {
        best = {cut, end};
      }
    }
  }
  return total_ > 0 ? best : std::pair<Cut, double>{};
}

}  // namespace quire::attention
