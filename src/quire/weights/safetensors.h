// Safetensors container: 8 bytes of header length, a JSON header, the data. Format:
// github.com/huggingface/safetensors, README "Format".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/weights/tensor_info.h"

namespace quire::weights {

// Longest header accepted, as in the original library.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// One tensor of the header as written there; only its types and field names are checked.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;         // each >= 0, at most 16
  std::vector<std::int64_t> data_offsets;  // exactly two, each >= 0
};

// Parses the JSON header without building a document, so that memory stays near the header's size.
// kCorrupt, naming `file` and where possible the tensor, for bad syntax, unknown, missing or
// repeated fields, values of another type, and negative or non-integer numbers. Names are not yet
// compared with each other.
[[nodiscard]] Result<std::vector<SafetensorsEntry>> parse_safetensors_header(
    std::string_view header, std::string_view file);

// Parses the whole file: header, then every shape, size, offset, overlap and gap. Tensors borrow
// from `bytes`. kCorrupt with file and tensor for whatever does not add up.
[[nodiscard]] Result<TensorTable> parse_safetensors(std::span<const std::byte> bytes,
                                                    std::string_view file);

}  // namespace quire::weights
