#include "quire/drafts/guess_tree.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "quire/drafts/guess.h"
#include "quire/types.h"

namespace quire::drafts {
namespace {

// Returns the `count` tokens with the largest logits, the largest first and of equal ones the lower
// id.
std::vector<TokenId> largest(std::span<const float> logits, std::int32_t count) {
  const auto wanted = std::min(static_cast<std::size_t>(count), logits.size());
  std::vector<TokenId> best;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (best.size() == wanted && !(logits[id] > logits[static_cast<std::size_t>(best.back())])) {
      continue;
    }
    const auto at = std::ranges::find_if(
        best, [&](TokenId other) { return logits[id] > logits[static_cast<std::size_t>(other)]; });
    best.insert(at, static_cast<TokenId>(id));
    best.resize(std::min(best.size(), wanted));
  }
  return best;
}

// Returns ln of the sum of e^logit.
double log_sum(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(logit - most);
  }
  return most + std::log(sum);
}

}  // namespace

void GuessTree::grow(std::int32_t behind, std::span<const float> logits) {
  const Node* const parent = behind < 0 ? nullptr : &nodes_[static_cast<std::size_t>(behind)];
  const bool chain = size_.tokens <= size_.levels;
  const double all = chain ? 0 : log_sum(logits);
  Node node{.parent = behind,
            .level = parent == nullptr ? 0 : parent->level + 1,
            .on_stem = parent == nullptr || parent->on_stem};
  const double before = parent == nullptr ? 0 : parent->log_share;
  for (const TokenId token : largest(logits, chain ? 1 : size_.width)) {
    node.token = token;
    const double share = before + logits[static_cast<std::size_t>(token)] - all;
    node.log_share = std::isfinite(share) ? share : -std::numeric_limits<double>::infinity();
    nodes_.push_back(node);
    node.on_stem = false;
  }
}

// Returns for each token whether the tree has it: all of the stem, and the likeliest others. The
// parent of one is there, too, as it is no less likely and comes first.
std::vector<char> GuessTree::kept() const {
  std::vector<char> kept(nodes_.size(), 0);
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    kept[i] = nodes_[i].on_stem ? 1 : 0;
    if (!nodes_[i].on_stem) {
      others.push_back(i);
    }
  }
  std::ranges::stable_sort(others, [&](std::size_t a, std::size_t b) {
    return nodes_[a].log_share > nodes_[b].log_share;
  });
  const auto room = static_cast<std::size_t>(std::max(size_.tokens - size_.levels, 0));
  for (std::size_t i = 0; i < std::min(room, others.size()); ++i) {
    kept[others[i]] = 1;
  }
  return kept;
}

std::vector<std::int32_t> GuessTree::take_tips() {
  const std::vector<char> stays = kept();
  std::vector<std::int32_t> tips;
  for (; seen_ < nodes_.size(); ++seen_) {
    if (stays[seen_] != 0 && nodes_[seen_].level + 1 < size_.levels) {
      tips.push_back(static_cast<std::int32_t>(seen_));
    }
  }
  std::ranges::stable_partition(
      tips, [&](std::int32_t tip) { return nodes_[static_cast<std::size_t>(tip)].on_stem; });
  return tips;
}

void GuessTree::write(Guess& guess) const {
  clear(guess);
  const std::vector<char> stays = kept();
  // Tokens still to be written with their places' parents, the next one last. Nodes are pushed
  // backwards, so that the first child, which is the likeliest, follows its parent.
  std::vector<std::pair<std::int32_t, std::int32_t>> left;
  const auto push_children = [&](std::int32_t of, std::int32_t place) {
    for (auto i = static_cast<std::int32_t>(nodes_.size()) - 1; i >= 0; --i) {
      if (stays[static_cast<std::size_t>(i)] != 0 && parent(i) == of) {
        left.emplace_back(i, place);
      }
    }
  };
  push_children(-1, -1);
  while (!left.empty()) {
    const auto [node, parent_place] = left.back();
    left.pop_back();
    const auto place = static_cast<std::int32_t>(guess.tokens.size());
    guess.tokens.push_back(token(node));
    guess.parents.push_back(parent_place);
    push_children(node, place);
  }
}

}  // namespace quire::drafts
