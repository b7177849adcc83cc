// Equal pieces: how long those that tiles are cut into should be, so that all who compute them end
// together, by estimate. No device.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace quire::attention {

// Tokens that take as long as all that an item costs beside them.
inline constexpr std::int64_t kItemTokens = 256;

// Equal pieces of about `share` tokens, whole token tiles.
struct Cut {
  double share = 1;
  bool up = false;  // rather one piece more than one less
  std::int64_t token_tile = 1;

  // Returns the length of the pieces of a tile of `tokens` tokens.
  [[nodiscard]] std::int64_t piece(std::int64_t tokens) const;
};

// Tiles of one family by how many tokens they read.
class Lengths {
 public:
  // Adds `count` tiles.
  void add(std::int64_t tokens, std::int64_t count);
  // Returns the tokens of all tiles.
  [[nodiscard]] std::int64_t total() const { return total_; }

  // Items of a cut, and the tokens of the longest and of the shortest.
  struct Items {
    std::int64_t count = 0, longest = 0;
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  };
  [[nodiscard]] Items items(const Cut& cut) const;

  // Returns the tokens before which no cut ends: a tile is at least one item.
  [[nodiscard]] double least(std::int64_t workers, std::int64_t item_tokens) const;

  // Returns the cut that ends first, and the tokens after which the last of the workers is done.
  [[nodiscard]] std::pair<Cut, double> best(std::int64_t token_tile, std::int64_t workers,
                                            std::int64_t item_tokens = kItemTokens) const;

 private:
  struct Count {
    std::int64_t tokens = 0;
    std::int64_t count = 0;
  };

  [[nodiscard]] double estimate(const Cut& cut, std::int64_t workers,
                                std::int64_t item_tokens) const;

  std::vector<Count> counts_;  // by length
  std::int64_t total_ = 0;
  std::int64_t tiles_ = 0;
};

}  // namespace quire::attention
