// Quantisation: what "quantization_config" of a Hugging Face folder says about its tensors.
#pragma once

#include <cstdint>
#include <optional>

#include "quire/base/json.h"
#include "quire/result.h"

namespace quire::weights {

// The ways in which a matrix is stored as several tensors. Names: transformers' "quant_method", and
// "format" of compressed-tensors.
enum class QuantMethod : std::uint8_t {
  kFp8,  // weight in e4m3, and scales of blocks, rows or the whole: weight_scale_inv, weight_scale
  kMxfp4,   // _blocks of E2M1 nibbles, and _scales in E8M0
  kPacked,  // compressed-tensors "pack-quantized": weight_packed, weight_scale, weight_zero_point
  kInt8,    // compressed-tensors "int-quantized": weight in int8, weight_scale
  kAwq,     // qweight, qzeros, scales; outputs packed in AWQ's order
  kGptq,    // qweight, qzeros, scales, g_idx; inputs packed
};

struct Quantisation {
  QuantMethod method = QuantMethod::kFp8;
  int bits = 8;                  // of an integer code: 4 or 8
  std::int64_t group_size = -1;  // inputs that share a scale; -1: all
  bool symmetric = true;         // zero points are half of the codes; checked where they are read
  int stored_zero_offset = 0;    // what is added to a stored zero point
  std::int64_t block_rows = 0;   // of a block of fp8; 0: scales are of rows or of the whole
  std::int64_t block_columns = 0;
};

// Reads "quantization_config". Nothing for a config without it. kUnsupported by method and field
// for what is not implemented.
[[nodiscard]] Result<std::optional<Quantisation>> parse_quantisation(base::JsonView config);

}  // namespace quire::weights
