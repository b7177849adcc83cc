// GuessTree: grows a guess by what a draft model thinks likely.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/drafts/guess.h"
#include "quire/types.h"

namespace quire::drafts {

// The sizes of a tree.
struct TreeSize {
  std::int32_t levels = 0;  // tokens one behind the other
  std::int32_t tokens = 0;  // in all; as many as levels: a chain
  std::int32_t width = 1;   // tokens behind one token
};

// Its stem is the chain of the likeliest tokens, which has all levels. The tokens beside it are
// those with the largest products of probabilities along their paths. Cost: O(vocabulary) for each
// token that is grown. Source of the idea of ranking paths: Li et al., EAGLE-2, arXiv 2406.16858.
class GuessTree {
 public:
  // Begins an empty tree.
  explicit GuessTree(const TreeSize& size) : size_(size) {}

  // Adds what is likely behind a token of the tree, or with -1 behind the last certain one.
  void grow(std::int32_t behind, std::span<const float> logits);
  // Returns tokens behind which the tree is to grow next, the stem's first. They were added since
  // the last call and are not on the last level. Unlikely ones are left out.
  [[nodiscard]] std::vector<std::int32_t> take_tips();
  [[nodiscard]] TokenId token(std::int32_t index) const {
    return nodes_[static_cast<std::size_t>(index)].token;
  }
  [[nodiscard]] std::int32_t parent(std::int32_t index) const {
    return nodes_[static_cast<std::size_t>(index)].parent;
  }
  // Sets `guess` to the tree.
  void write(Guess& guess) const;

 private:
  struct Node {
    TokenId token = 0;
    std::int32_t parent = -1;
    std::int32_t level = 0;  // tokens before it
    bool on_stem = false;
    double log_share = 0;  // of its path
  };

  [[nodiscard]] std::vector<char> kept() const;

  TreeSize size_;
  std::vector<Node> nodes_;  // parents first
  std::size_t seen_ = 0;     // those that take_tips() has seen
};

}  // namespace quire::drafts
