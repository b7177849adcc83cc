// TensorPart: rows of one tensor that are a part of a weight.
#pragma once

#include <cstdint>

#include "quire/weights/model_files.h"

namespace quire::model {

// Every so many rows of a tensor: row i is row i % rows of group i / rows, and groups begin
// `stride` rows apart.
struct RowGroups {
  std::int64_t rows = 0;  // 0: all rows, in order
  std::int64_t stride = 0;
};

// Rows of one tensor from `first_row` on: all, those of an expert, or those of some groups. Where
// `interleaved_head_dim` is not 0 the file keeps the rows of each head of that size in the order 0,
// half, 1, half + 1, ... (llama.cpp's order for queries and keys, which rotates neighbours);
// reading puts them back.
struct TensorPart {
  const weights::TensorInfo* tensor = nullptr;
  std::int64_t rows = 0;  // values, for a vector
  std::int32_t interleaved_head_dim = 0;
  std::int64_t first_row = 0;
  RowGroups groups = {};
  // Not 0: rows are columns of so many rows of the tensor, from `first_line` on.
  std::int64_t lines = 0;
  std::int64_t first_line = 0;
};

}  // namespace quire::model
