// Any bytes as a GGUF file: an error, or keys and tensors that can be read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/weights/gguf.h"
#include "quire/weights/tensor_info.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  using namespace quire::weights;                                                    // NOLINT
  const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) {
    return 0;
  }
  for (const std::string& key : file.value().keys()) {
    static_cast<void>(file.value().get_int(key, 0));
    static_cast<void>(file.value().get_string(key, ""));
  }
  for (const TensorInfo& tensor : file.value().tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.num_values()));
    read_rows(tensor, 0, tensor.rows(), values);
  }
  return 0;
}
