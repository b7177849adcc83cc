#include "quire/drafts/guess.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quire::drafts {
namespace {

std::int32_t parent_of(const Guess& guess, std::int32_t token) {
  return guess.parents.empty() ? token - 1 : guess.parents[static_cast<std::size_t>(token)];
}

// Returns how many tokens stand in depth-first order: each behind one on the path to the token
// before it.
std::size_t depth_first_part(std::span<const std::int32_t> parents) {
  std::vector<std::int32_t> path;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    while (!path.empty() && path.back() != parents[i]) {
      path.pop_back();
    }
    if (path.empty() && parents[i] != -1) {
      return i;
    }
    path.push_back(static_cast<std::int32_t>(i));
  }
  return parents.size();
}

}  // namespace

void clear(Guess& guess) {
  guess.tokens.clear();
  guess.parents.clear();
}

void cut(Guess& guess, std::size_t count) {
  count = std::min(count, guess.tokens.size());
  if (!guess.parents.empty()) {
    count = std::min({count, guess.parents.size(), depth_first_part(guess.parents)});
    guess.parents.resize(count);
  }
  guess.tokens.resize(count);
}

std::vector<Branch> branches_of(const Guess& guess) {
  std::vector<Branch> branches;
  std::vector<std::int32_t> depths(guess.tokens.size());  // tokens before each
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(depths.size()); ++i) {
    const std::int32_t parent = parent_of(guess, i);
    std::int32_t& depth = depths[static_cast<std::size_t>(i)];
    depth = parent < 0 ? 0 : depths[static_cast<std::size_t>(parent)] + 1;
    if (i == 0 || parent != i - 1) {
      branches.push_back({.parent = parent, .first = i, .count = 0, .depth = depth});
    }
    ++branches.back().count;
  }
  return branches;
}

std::vector<std::int32_t> path_to(const Guess& guess, std::int32_t last) {
  std::vector<std::int32_t> path;
  for (std::int32_t at = last; at >= 0; at = parent_of(guess, at)) {
    path.push_back(at);
  }
  std::ranges::reverse(path);
  return path;
}

}  // namespace quire::drafts
