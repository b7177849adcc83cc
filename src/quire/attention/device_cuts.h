// How tiles are cut into items so that those who compute them end together, by estimate: equal
// pieces, or lists. For device_plan.cc; no device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "quire/attention/device_plan.h"
#include "quire/base/divide.h"

namespace quire::attention {

inline constexpr std::int64_t kMostParts = 128;  // of one entry for one row
inline constexpr std::int64_t kItemTokens =
    256;  // that take as long as what an item costs beside them
// Steps that an item of many columns takes beside its own, in lists.
inline constexpr std::int64_t kItemSteps = kItemTokens / kStepTokens;
inline constexpr std::int64_t kLeastSteps = 2;  // of an item that begins in the middle of a list

// Equal pieces of about `share` tokens, whole steps.
struct Cut {
  double share = 1;
  bool up = false;  // rather one piece more than one less
  std::int64_t step = 1;

  [[nodiscard]] std::int64_t piece(std::int64_t tokens) const {
    const double wanted = static_cast<double>(tokens) / share;
    const auto pieces = static_cast<std::int64_t>(up ? std::ceil(wanted) : std::floor(wanted));
    return base::divide_up(base::divide_up(tokens, std::clamp<std::int64_t>(pieces, 1, kMostParts)),
                           step) *
           step;
  }
};

// Tiles of one family by how many tokens they read.
class Lengths {
 public:
  void add(std::int64_t tokens, std::int64_t count) {
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
  [[nodiscard]] std::int64_t total() const { return total_; }

  // Items of a cut, and the tokens of the longest and of the shortest.
  struct Items {
    std::int64_t count = 0, longest = 0;
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  };
  [[nodiscard]] Items items(const Cut& cut) const {
    Items items;
    for (const auto& [tokens, count] : counts_) {
      const std::int64_t piece = cut.piece(tokens), of_tile = base::divide_up(tokens, piece);
      items.count += of_tile * count;
      items.longest = std::max(items.longest, piece);
      items.shortest = std::min(items.shortest, tokens - (of_tile - 1) * piece);
    }
    return items;
  }

  // Tokens after which the last of the workers is done, by estimate. Items of many lengths even
  // out; of one length they do not.
  [[nodiscard]] double estimate(const Cut& cut, std::int64_t workers,
                                std::int64_t item_tokens) const {
    const Items items = this->items(cut);
    const std::int64_t rounds = base::divide_up(items.count, workers);
    const double even = static_cast<double>(total_) / static_cast<double>(workers) +
                        static_cast<double>(items.longest) / 2;
    return std::clamp(even, static_cast<double>(rounds * items.shortest),
                      static_cast<double>(rounds * items.longest)) +
           static_cast<double>(rounds * item_tokens);
  }

  // No cut ends before: a tile is at least one item.
  [[nodiscard]] double least(std::int64_t workers, std::int64_t item_tokens) const {
    return static_cast<double>(total_) / static_cast<double>(workers) +
           static_cast<double>(base::divide_up(tiles_, workers) * item_tokens);
  }

  // What ends first.
  [[nodiscard]] std::pair<Cut, double> best(std::int64_t step, std::int64_t workers,
                                            std::int64_t item_tokens = kItemTokens) const {
    constexpr int kMostRounds = 4;
    std::pair<Cut, double> best{{}, std::numeric_limits<double>::infinity()};
    for (int rounds = 1; rounds <= kMostRounds && total_ > 0; ++rounds) {
      for (const bool up : {false, true}) {
        const Cut cut{static_cast<double>(total_) / static_cast<double>(workers * rounds), up,
                      step};
        if (const double end = estimate(cut, workers, item_tokens); end < best.second) {
          best = {cut, end};
        }
      }
    }
    return total_ > 0 ? best : std::pair<Cut, double>{};
  }

 private:
  struct Count {
    std::int64_t tokens = 0;
    std::int64_t count = 0;
  };
  std::vector<Count> counts_;  // by length
  std::int64_t total_ = 0;
  std::int64_t tiles_ = 0;
};

// Lists of items of many columns that end together: each tile fills lists of its own as long as it
// can, and what is left of the tiles fills the others one after the other, cut where one is full.
// A list is for as many workers (CTAs or pairs of them) as there are KV heads, one each; the last
// one, if it is a single item, for fewer that take several heads each. Steps are kStepTokens
// tokens.
class Lists {
 public:
  struct Piece {
    std::size_t tile = 0;
    std::int64_t first = 0, steps = 0;  // of the tile
    std::int64_t list = 0;              // those of one tile's own before the others
  };

  explicit Lists(std::int64_t kv_heads) : kv_heads_(kv_heads) {}
  void add(std::int64_t steps) { tiles_.push_back(steps); }
  [[nodiscard]] std::size_t num_tiles() const { return tiles_.size(); }

  // Calls visit(Piece) tile by tile, first to last, for lists of so many steps with what items
  // cost. Sets what follows.
  template <class Visit>
  void cut(std::int64_t capacity, const Visit& visit) {
    const std::int64_t room = capacity - kItemSteps;
    std::int64_t own = 0, shared = 0, used = 0, items = 0;
    for (std::size_t tile = 0; tile < tiles_.size(); ++tile) {
      std::int64_t at = 0;
      for (; tiles_[tile] - at >= room; at += room) {
        visit(Piece{tile, at, room, own++});
      }
      while (at < tiles_[tile]) {
        if (room - used < kLeastSteps) {
          ++shared;
          used = items = 0;
        }
        const std::int64_t steps = std::min(room - used, tiles_[tile] - at);
        visit(Piece{tile, at, steps, kShared + shared});
        used += steps + kItemSteps;
        items += 1;
        at += steps;
      }
    }
    heads_of_last_ = 1;
    while (items == 1 && kv_heads_ % (2 * heads_of_last_) == 0 &&
           2 * heads_of_last_ * used <= capacity) {
      heads_of_last_ *= 2;
    }
    workers_ = (own + shared) * kv_heads_ + (used > 0 ? kv_heads_ / heads_of_last_ : 0);
  }
  // Workers of the last cut, and KV heads that one of the last list's takes.
  [[nodiscard]] std::int64_t workers() const { return workers_; }
  [[nodiscard]] std::int64_t heads_of_last() const { return heads_of_last_; }

 private:
  static constexpr std::int64_t kShared = std::int64_t{1} << 32;
  const std::int64_t kv_heads_;
  std::vector<std::int64_t> tiles_;
  std::int64_t workers_ = 0, heads_of_last_ = 1;
};

}  // namespace quire::attention
