// LatentShape: sizes of attention whose keys and values are projections of one small vector of each
// token, its latent (MLA of DeepSeek). The cache holds latents, and a rotated key of all heads.
#pragma once

#include <cstdint>

#include "quire/result.h"

namespace quire::model {

struct LatentShape {
  std::int32_t rank = 0;        // size of a latent; 0: the model has none
  std::int32_t query_rank = 0;  // size of what queries are projections of; 0: of the hidden rows
  std::int32_t rope_dim = 0;    // values of a query head that are rotated, and of the shared key
  std::int32_t plain_dim = 0;   // those that are not
  std::int32_t value_dim = 0;   // size of a value head
  double norm_epsilon = 1e-6;   // of the norms of both small vectors
  // Rows of what is rotated stand for the rotation of neighbours in the files.
  bool interleaved = true;

  [[nodiscard]] bool is_there() const { return rank > 0; }
  // Returns the size of a query head.
  [[nodiscard]] std::int32_t query_dim() const { return rope_dim + plain_dim; }
  // Returns the size of the one KV head: the shared key, and the latent behind it.
  [[nodiscard]] std::int32_t kv_dim() const { return rope_dim + rank; }
  // Returns the width of what a row is projected to first: queries or what they are made of, the
  // latent, the shared key.
  [[nodiscard]] std::int64_t down_width(std::int32_t heads) const {
    return first_width(heads) + rank + rope_dim;
  }
  // Returns the width of its part for queries.
  [[nodiscard]] std::int64_t first_width(std::int32_t heads) const {
    return query_rank > 0 ? query_rank : queries_width(heads);
  }
  // Returns the width of all query heads.
  [[nodiscard]] std::int64_t queries_width(std::int32_t heads) const {
    return std::int64_t{heads} * query_dim();
  }

  // Returns kInvalidArgument that names the first number out of bounds.
  [[nodiscard]] Status validate() const;
  friend bool operator==(const LatentShape&, const LatentShape&) = default;
};

}  // namespace quire::model
