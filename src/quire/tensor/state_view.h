// StateGeometry and StateView: the sizes of a model's state at one position, and where states lie.
// The model writes the first and computes on the second; kv_store owns the bytes. Neither knows who
// owns which state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire::tensor {

// The numbers of a part of a state, and the arithmetic that updates them. All are fp32, and updated
// row after row. The codes are those of KV files (docs/store-format.md).
enum class StateForm : std::uint32_t {  // NOLINT(performance-enum-size): as wide as in files
  kConvTail = 1,                        // last inputs of a convolution
  kDeltaMatrix = 2,                     // matrices of a gated delta rule
  kScanMatrix = 3,                      // matrices of a selective scan
};

// Returns the name of a form for messages: "convolution tail".
[[nodiscard]] constexpr const char* state_form_name(StateForm form) {
  switch (form) {
    case StateForm::kConvTail:
      return "convolution tail";
    case StateForm::kDeltaMatrix:
      return "gated delta state";
    case StateForm::kScanMatrix:
      return "scan state";
  }
  return "part of an unknown form";
}

// The numbers that one layer carries in one form.
struct StatePart {
  std::int32_t layer = 0;  // of the model
  StateForm form = StateForm::kConvTail;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  // bytes from the state's begin in memory
};

// Sizes of a state: what all layers that carry one have at one position. All numbers are fp32.
struct StateGeometry {
  std::vector<std::int64_t> offsets;  // [layers with a state] bytes from the state's begin
  std::int64_t state_bytes = 0;       // a multiple of 64; 0: no layer carries a state
  std::vector<StatePart> parts;       // in order of layers, then forms
};

// Addresses states: state s begins at data + s * stride.
struct StateView {
  std::byte* data = nullptr;
  std::ptrdiff_t stride = 0;  // bytes
  std::int32_t num_states = 0;
};

}  // namespace quire::tensor
