// Any bytes as a safetensors file, and as the header of one: an error, or tensors that can be read.
// The tensors are also combined by every method of quantised folders.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "quire/weights/quantisation.h"
#include "quire/weights/quantised_folder.h"
#include "quire/weights/safetensors.h"
#include "quire/weights/tensor_info.h"

namespace {

void read_all(const quire::weights::TensorTable& table) {
  for (const quire::weights::TensorInfo& tensor : table.tensors) {
    std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
    read_rows(tensor, 0, tensor.rows(), values);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  using namespace quire::weights;                                                    // NOLINT
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto table = parse_safetensors(bytes, "fuzz");
  if (table.ok()) {
    read_all(table.value());
  }
  for (int method = 0; table.ok() && method <= static_cast<int>(QuantMethod::kGptq); ++method) {
    const bool is_byte = static_cast<QuantMethod>(method) == QuantMethod::kInt8;
    const Quantisation how = {.method = static_cast<QuantMethod>(method),
                              .bits = is_byte ? 8 : 4,
                              .group_size = is_byte ? -1 : 32,
                              .block_rows = 2,
                              .block_columns = 32};
    QuantisedFolder folder;
    TensorTable combined = table.value();
    if (folder.combine(how, combined).ok()) {
      read_all(combined);
    }
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);  // NOLINT: bytes as text
  static_cast<void>(parse_safetensors_header(text, "fuzz"));
  return 0;
}
