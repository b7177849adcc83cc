// A binary heap of block ids that finds its members. Any of them can be taken out or, when its rank
// has changed, put into its place again in O(log n). Allocates nothing after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "quire/base/check.h"

namespace quire::kv {

// `Before(a, b)`: whether block a stands before block b; a strict order over the members, whose
// ranks change only between `erase` and `insert`.
template <class Before>
class BlockHeap {
 public:
  BlockHeap(std::int32_t num_blocks, Before before)
      : before_(std::move(before)), places_(static_cast<std::size_t>(num_blocks), kNowhere) {
    heap_.reserve(places_.size());
  }

  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] std::size_t size() const { return heap_.size(); }
  [[nodiscard]] bool contains(std::int32_t block) const { return place(block) != kNowhere; }
  // Returns the block that goes first. Precondition: !empty().
  [[nodiscard]] std::int32_t first() const { return heap_.front(); }

  // Adds a block. Precondition: !contains(block).
  void insert(std::int32_t block) {
    QUIRE_DCHECK(!contains(block), "a block is in the heap twice");
    heap_.push_back(block);
    place(block) = heap_.size() - 1;
    rise(heap_.size() - 1);
  }

  // Removes a block. Precondition: contains(block), with the rank that it had when it was inserted.
  void erase(std::int32_t block) {
    QUIRE_DCHECK(contains(block), "a block that is not in the heap was taken out");
    const std::size_t hole = place(block);
    place(block) = kNowhere;
    const std::int32_t last = heap_.back();
    heap_.pop_back();
    if (last != block) {
      put(last, hole);
      sink(rise(hole));
    }
  }

 private:
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  [[nodiscard]] std::size_t& place(std::int32_t block) {
    return places_[static_cast<std::size_t>(block)];
  }
  [[nodiscard]] std::size_t place(std::int32_t block) const {
    return places_[static_cast<std::size_t>(block)];
  }

  void put(std::int32_t block, std::size_t at) {
    heap_[at] = block;
    place(block) = at;
  }

  std::size_t rise(std::size_t at) {
    const std::int32_t block = heap_[at];
    for (; at > 0 && before_(block, heap_[(at - 1) / 2]); at = (at - 1) / 2) {
      put(heap_[(at - 1) / 2], at);
    }
    put(block, at);
    return at;
  }

  void sink(std::size_t at) {
    const std::int32_t block = heap_[at];
    for (std::size_t child = 2 * at + 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && before_(heap_[child + 1], heap_[child])) {
        ++child;
      }
      if (!before_(heap_[child], block)) {
        break;
      }
      put(heap_[child], at);
      at = child;
    }
    put(block, at);
  }

  Before before_;
  std::vector<std::int32_t> heap_;   // ids
  std::vector<std::size_t> places_;  // [num_blocks] index into heap_
};

}  // namespace quire::kv
