// A stable sort whose comparison may fail, and whose result is defined for any comparison.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/meter.h"

namespace quire::text::jinja {

// Merges the sorted [begin, middle) and [middle, end) of `items` into the same places of `merged`.
template <class T, class Less>
Status merge_runs(std::vector<T>& items, std::size_t begin, std::size_t middle, std::size_t end,
                  std::vector<T>& merged, Less& less) {
  std::size_t left = begin;
  std::size_t right = middle;
  for (std::size_t out = begin; out < end; ++out) {
    bool take_right = left == middle;
    if (left < middle && right < end) {
      QUIRE_TRY(take_right, less(items[right], items[left]));
    }
    merged[out] = std::move(items[take_right ? right++ : left++]);
  }
  return {};
}

// Merge sort by less(a, b) -> Result<bool>; returns its first error. O(n log n) comparisons.
template <class T, class Less>
Status stable_sort(Meter& meter, std::vector<T>& items, Less less) {
  std::vector<T> merged(items.size());
  for (std::size_t width = 1; width < items.size(); width *= 2) {
    for (std::size_t begin = 0; begin < items.size(); begin += 2 * width) {
      const std::size_t middle = std::min(begin + width, items.size());
      const std::size_t end = std::min(begin + (2 * width), items.size());
      if (Status status = merge_runs(items, begin, middle, end, merged, less); !status.ok()) {
        return status;
      }
    }
    std::swap(items, merged);
    if (meter.failed()) {
      return meter.error();
    }
  }
  return {};
}

}  // namespace quire::text::jinja
