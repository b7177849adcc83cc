#include "quire/model/latent_tensors.h"

#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/base/str.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/family.h"
#include "quire/model/latent_shape.h"
#include "quire/model/tensor_part.h"
#include "quire/model/tensor_shape.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"

namespace quire::model {
namespace {

using weights::TensorInfo;
using Parts = std::vector<TensorPart>;

// Finds `stem` with ".weight" behind it, of that shape.
Result<const TensorInfo*> require(const LatentTensors& in, std::string_view stem,
                                  const std::vector<std::int64_t>& shape) {
  QUIRE_TRY(const TensorInfo* tensor, in.files.require(base::str_cat(in.prefix, stem, ".weight")));
  QUIRE_TRY_STATUS(check_shape(*tensor, shape));
  return tensor;
}

std::int32_t turned(const LatentShape& shape) { return shape.interleaved ? shape.rope_dim : 0; }

// Adds the rows of all query heads: what is rotated first. Files have head after head, and what is
// rotated behind the rest.
void add_queries(const ModelConfig& config, const TensorInfo& tensor, Parts& parts) {
  const LatentShape& shape = config.latent;
  parts.push_back({.tensor = &tensor,
                   .rows = std::int64_t{config.heads} * shape.rope_dim,
                   .interleaved_head_dim = turned(shape),
                   .first_row = shape.plain_dim,
                   .groups = {.rows = shape.rope_dim, .stride = shape.query_dim()}});
  parts.push_back({.tensor = &tensor,
                   .rows = std::int64_t{config.heads} * shape.plain_dim,
                   .groups = {.rows = shape.plain_dim, .stride = shape.query_dim()}});
}

// Finds queries or what they are made of, latents and shared keys.
Result<Parts> find_down(const LatentTensors& in) {
  const LatentShape& shape = in.config.latent;
  const std::int64_t hidden = in.config.hidden_size;
  const std::int64_t first = shape.first_width(in.config.heads);
  Parts parts;
  QUIRE_TRY(const TensorInfo* queries,
            require(in, in.names.qkv[shape.query_rank > 0 ? 1 : 0], {first, hidden}));
  if (shape.query_rank > 0) {
    parts.push_back({.tensor = queries, .rows = first});
  } else {
    add_queries(in.config, *queries, parts);
  }
  QUIRE_TRY(const TensorInfo* latents, require(in, in.names.qkv[2], {shape.kv_dim(), hidden}));
  parts.push_back({.tensor = latents, .rows = shape.rank});
  parts.push_back({.tensor = latents,
                   .rows = shape.rope_dim,
                   .interleaved_head_dim = turned(shape),
                   .first_row = shape.rank});
  return parts;
}

// Finds the projection of keys, transposed, or of values of one head.
Result<Parts> find_head(const LatentTensors& in, const WeightId& id) {
  const LatentShape& shape = in.config.latent;
  const bool of_keys = id.role == WeightRole::kLatentKeys;
  const std::int64_t rows = of_keys ? shape.rank : shape.value_dim;
  const std::int64_t depth = of_keys ? shape.plain_dim : shape.rank;
  const std::string_view stacked = of_keys ? in.names.latent_keys : in.names.latent_values;
  if (!stacked.empty() &&
      in.files.find(base::str_cat(in.prefix, in.names.latent_keys_values, ".weight")) == nullptr) {
    QUIRE_TRY(const TensorInfo* tensor, require(in, stacked, {in.config.heads, rows, depth}));
    return Parts{{.tensor = tensor, .rows = rows, .first_row = id.head * rows}};
  }
  const std::int64_t both = std::int64_t{shape.plain_dim} + shape.value_dim;
  QUIRE_TRY(const TensorInfo* tensor,
            require(in, in.names.latent_keys_values, {in.config.heads * both, shape.rank}));
  const std::int64_t first = id.head * both;
  if (of_keys) {
    return Parts{{.tensor = tensor, .rows = rows, .lines = depth, .first_line = first}};
  }
  return Parts{{.tensor = tensor, .rows = rows, .first_row = first + shape.plain_dim}};
}

}  // namespace

bool is_of_latents(const ModelConfig& config, WeightRole role) {
  return role >= WeightRole::kLatentQueryNorm ||
         (role == WeightRole::kQkv && config.latent.is_there());
}

Result<std::vector<TensorPart>> find_of_latents(const LatentTensors& in, const WeightId& id) {
  const LatentShape& shape = in.config.latent;
  if (id.role == WeightRole::kQkv) {
    return find_down(in);
  }
  if (id.role == WeightRole::kLatentKeys || id.role == WeightRole::kLatentValues) {
    return find_head(in, id);
  }
  if (id.role == WeightRole::kLatentQueries) {
    Parts parts;
    QUIRE_TRY(const TensorInfo* tensor,
              require(in, in.names.latent_queries,
                      {shape.queries_width(in.config.heads), shape.query_rank}));
    add_queries(in.config, *tensor, parts);
    return parts;
  }
  const bool of_queries = id.role == WeightRole::kLatentQueryNorm;
  const std::int64_t size = of_queries ? shape.query_rank : shape.rank;
  QUIRE_TRY(const TensorInfo* tensor,
            require(in, of_queries ? in.names.latent_query_norm : in.names.latent_norm, {size}));
  return Parts{{.tensor = tensor, .rows = size}};
}

}  // namespace quire::model
