// Any bytes as a safetensors file, and as the header of one: an error, or tensors that can be read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/weights/safetensors.h"
#include "quire/weights/tensor_info.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  using namespace quire::weights;                                                    // NOLINT
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto table = parse_safetensors(bytes, "fuzz");
  if (table.ok()) {
    for (const TensorInfo& tensor : table.value().tensors) {
      std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
      read_rows(tensor, 0, tensor.rows(), values);
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);  // NOLINT: bytes as text
  static_cast<void>(parse_safetensors_header(text, "fuzz"));
  return 0;
}
