// LatentWeights: what attention over latents needs beside its first and last projection.
#pragma once

#include <vector>

#include "quire/kernels/packed_weights.h"
#include "quire/model/state_weights.h"

namespace quire::model {

struct LatentWeights {
  std::vector<float> query_norm;  // [query rank] or empty
  std::vector<float> norm;        // [rank]
  // [all heads, query rank] or empty; rows: what is rotated of all heads, then the rest.
  LinearWeights queries;
  // Each head has both. `keys` [rank, plain size] make a query that meets latents instead of keys.
  // `values` [value size, rank] make the head's output of a sum of latents.
  std::vector<LinearWeights> keys, values;
};

}  // namespace quire::model
