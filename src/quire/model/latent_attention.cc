#include "quire/model/latent_attention.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/elementwise.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/latent_shape.h"
#include "quire/model/state_weights.h"
#include "quire/model/step_rows.h"

namespace quire::model {
namespace {

// Copies `width` values of each row.
void copy_rows(std::span<const float> from, std::int64_t from_stride, std::span<float> to,
               std::int64_t to_stride, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(from.begin() + row * from_stride, width, to.begin() + row * to_stride);
  }
}

std::span<float> from_value(std::span<float> rows, std::int64_t first) {
  return rows.subspan(static_cast<std::size_t>(first));
}

std::span<const float> from_value(std::span<const float> rows, std::int64_t first) {
  return rows.subspan(static_cast<std::size_t>(first));
}

}  // namespace

// Sets the queries of all heads: what is rotated, then what meets the latents. Row r of `from`
// begins at [r * its stride], with what is rotated of all heads.
void LatentAttention::make_queries(const LayerWeights& layer, std::span<const float> from,
                                   std::int64_t rows, const Rows& to,
                                   kernels::LinearScratch& scratch) {
  const LatentShape& shape = config_.latent;
  const std::int64_t stride = std::ssize(from) / rows;
  const std::int64_t all_rope = std::int64_t{config_.heads} * shape.rope_dim;
  for (std::int64_t head = 0; head < config_.heads; ++head) {
    const auto query = from_value(to.q, head * shape.kv_dim());
    copy_rows(from_value(from, head * shape.rope_dim), stride, query, to.stride, rows,
              shape.rope_dim);
    const kernels::PackedWeights& keys = layer.latent.keys[static_cast<std::size_t>(head)].weights;
    kernels::pack_rows(
        context_, keys.format(),
        {from_value(from, all_rope + head * shape.plain_dim), stride, rows, shape.plain_dim},
        packed_);
    kernels::linear(context_, keys, packed_, {from_value(query, shape.rope_dim), to.stride}, {},
                    scratch);
  }
}

void LatentAttention::project(const LayerWeights& layer, std::span<const float> x,
                              std::int64_t rows, const Rows& to, kernels::LinearScratch& scratch) {
  const LatentShape& shape = config_.latent;
  const kernels::PackedWeights& first = layer.qkv.weights;
  const std::int64_t width = first.columns();
  const std::int64_t latent_at = shape.first_width(config_.heads);
  const auto down = rows_in(down_, rows, width);
  kernels::pack_normed_rows(context_, first.format(),
                            {x, config_.hidden_size, rows, config_.hidden_size},
                            {layer.attention_norm, config_.norm_epsilon}, packed_);
  kernels::linear(context_, first, packed_, {down, width}, {}, scratch);

  const auto latents = from_value(down, latent_at);
  kernels::rms_norm_heads(context_, {latents, width, rows, 1}, layer.latent.norm,
                          shape.norm_epsilon);
  copy_rows(from_value(latents, shape.rank), width, to.k, to.stride, rows, shape.rope_dim);
  copy_rows(latents, width, from_value(to.k, shape.rope_dim), to.stride, rows, shape.rank);
  copy_rows(latents, width, to.v, to.stride, rows, shape.rank);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::fill_n(to.v.begin() + row * to.stride + shape.rank, shape.rope_dim, 0.0f);
  }

  if (shape.query_rank == 0) {
    make_queries(layer, down, rows, to, scratch);
    return;
  }
  const kernels::PackedWeights& up = layer.latent.queries.weights;
  const auto queries = rows_in(queries_, rows, up.columns());
  kernels::pack_normed_rows(context_, up.format(), {down, width, rows, shape.query_rank},
                            {layer.latent.query_norm, shape.norm_epsilon}, packed_);
  kernels::linear(context_, up, packed_, {queries, up.columns()}, {}, scratch);
  make_queries(layer, queries, rows, to, scratch);
}

std::span<float> LatentAttention::values_of(const LayerWeights& layer,
                                            std::span<const float> attended, std::int64_t rows,
                                            kernels::LinearScratch& scratch) {
  const LatentShape& shape = config_.latent;
  const std::int64_t stride = std::int64_t{config_.heads} * shape.kv_dim();
  const std::int64_t width = std::int64_t{config_.heads} * shape.value_dim;
  const auto out = rows_in(values_, rows, width);
  for (std::int64_t head = 0; head < config_.heads; ++head) {
    const kernels::PackedWeights& values =
        layer.latent.values[static_cast<std::size_t>(head)].weights;
    kernels::pack_rows(context_, values.format(),
                       {from_value(attended, head * shape.kv_dim()), stride, rows, shape.rank},
                       packed_);
    kernels::linear(context_, values, packed_, {from_value(out, head * shape.value_dim), width}, {},
                    scratch);
  }
  return out;
}

}  // namespace quire::model
