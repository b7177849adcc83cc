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
    if (code_kind(tensor.encoding) != CodeKind::kNone) {
      std::vector<std::uint8_t> codes(values.size());
      std::vector<std::uint16_t> scales(codes.size() / 32), minimums(scales);
      std::vector<float> wide_scales(scales.size());
      std::vector<std::int8_t> multiples(codes.size() / 16), minimum_multiples(multiples);
      read_codes(tensor, 0, tensor.rows(),
                 {codes, scales, minimums, wide_scales, multiples, minimum_multiples});
    }
  }
  return 0;
}
