// Prefix search over a fixed set of strings. Nodes lie in one array, the children of a node side by
// side and sorted by byte.
//
// Thread rule: immutable after building.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::text {

class ByteTrie {
 public:
  static constexpr std::uint32_t kNoNode = 0;  // the root is nobody's child

  ByteTrie() = default;
  // Builds a trie. The first of equal strings keeps its value. Values are >= 0.
  explicit ByteTrie(std::vector<std::pair<std::string, std::int32_t>> entries);

  [[nodiscard]] static constexpr std::uint32_t root() { return 0; }
  // Returns the child, or kNoNode when there is none. O(log of the number of children).
  [[nodiscard]] std::uint32_t child(std::uint32_t node, char byte) const;
  // Returns the value of the string that ends at `node`, or -1.
  [[nodiscard]] std::int32_t value(std::uint32_t node) const { return nodes_[node].value; }

  struct Match {
    std::size_t length = 0;
    std::int32_t value = -1;  // -1: no entry is a prefix
  };
  // Returns the longest non-empty entry that is a prefix of `text`.
  [[nodiscard]] Match longest_prefix(std::string_view text) const;

  [[nodiscard]] std::size_t depth() const { return depth_; }  // bytes of the longest entry
  [[nodiscard]] bool empty() const { return nodes_.size() == 1 && nodes_[0].value < 0; }

 private:
  struct Node {
    std::uint32_t first_child = 0;
    std::uint16_t num_children = 0;
    unsigned char byte = 0;
    std::int32_t value = -1;
  };

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::size_t depth_ = 0;
};

}  // namespace quire::text
