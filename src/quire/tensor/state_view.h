// StateGeometry and StateView: the sizes of a model's state at one position, and where states lie.
// The model writes the first and computes on the second; kv_store owns the bytes. Neither knows who
// owns which state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::tensor {

// Sizes of a state: what all layers that carry one have at one position. All numbers are fp32.
struct StateGeometry {
  std::vector<std::int64_t> offsets;  // [layers with a state] bytes from the state's begin
  std::int64_t state_bytes = 0;       // a multiple of 64; 0: no layer carries a state
};

// Addresses states: state s begins at data + s * stride.
struct StateView {
  std::byte* data = nullptr;
  std::ptrdiff_t stride = 0;  // bytes
  std::int32_t num_states = 0;
};

}  // namespace quire::tensor
