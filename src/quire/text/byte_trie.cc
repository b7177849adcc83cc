#include "quire/text/byte_trie.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::text {
namespace {

// Entries [begin, end) that share their first `depth` bytes.
struct Group {
  std::size_t begin;
  std::size_t end;
  std::size_t depth;
  std::uint32_t node;
};

}  // namespace

ByteTrie::ByteTrie(std::vector<std::pair<std::string, std::int32_t>> entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Group> pending = {{.begin = 0, .end = entries.size(), .depth = 0, .node = root()}};
  // Breadth first, so that the children of a node are consecutive.
  for (std::size_t next = 0; next < pending.size(); ++next) {
    Group group = pending[next];
    depth_ = std::max(depth_, group.depth);
    if (group.begin < group.end && entries[group.begin].first.size() == group.depth) {
      nodes_[group.node].value = entries[group.begin].second;
    }
    while (group.begin < group.end && entries[group.begin].first.size() == group.depth) {
      ++group.begin;
    }
    nodes_[group.node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (group.begin < group.end) {
      const char byte = entries[group.begin].first[group.depth];
      std::size_t end = group.begin + 1;
      while (end < group.end && entries[end].first[group.depth] == byte) {
        ++end;
      }
      pending.push_back({.begin = group.begin,
                         .end = end,
                         .depth = group.depth + 1,
                         .node = static_cast<std::uint32_t>(nodes_.size())});
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      ++nodes_[group.node].num_children;
      group.begin = end;
    }
  }
}

std::uint32_t ByteTrie::child(std::uint32_t node, char byte) const {
  const Node& parent = nodes_[node];
  const auto wanted = static_cast<unsigned char>(byte);
  const auto begin = nodes_.begin() + parent.first_child;
  const auto end = begin + parent.num_children;
  const auto found = std::lower_bound(begin, end, wanted,
                                      [](const Node& n, unsigned char b) { return n.byte < b; });
  return found != end && found->byte == wanted ? static_cast<std::uint32_t>(found - nodes_.begin())
                                               : kNoNode;
}

ByteTrie::Match ByteTrie::longest_prefix(std::string_view text) const {
  Match best;
  std::uint32_t node = root();
  for (std::size_t i = 0; i < text.size(); ++i) {
    node = child(node, text[i]);
    if (node == kNoNode) {
      break;
    }
    if (value(node) >= 0) {
      best = {.length = i + 1, .value = value(node)};
    }
  }
  return best;
}

}  // namespace quire::text
