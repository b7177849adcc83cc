#include "quire/tensor/kv_geometry.h"

#include <algorithm>

namespace quire::tensor {

int KVGeometry::forget_after_tokens() const {
  int largest = 0;
  for (const int window : window_tokens) {
    if (window <= 0) {
      return 0;
    }
    largest = std::max(largest, window);
  }
  return largest;
}

}  // namespace quire::tensor
