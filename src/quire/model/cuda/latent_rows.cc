#include "quire/model/cuda/latent_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/device/cuda/cuda_error.h"
#include "quire/kernels/cuda/copy_heads.h"
#include "quire/kernels/cuda/rows.h"
#include "quire/model/config.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/model/latent_shape.h"
#include "quire/result.h"

namespace quire::model::cuda {

using device::cuda::to_status;
using kernels::cuda::Half;
using kernels::cuda::HeadCopy;

namespace {

// Returns from where to where the rows of a head lie behind each other, as products want them.
std::int64_t head_stride(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kAlignment = 128;  // numbers: cuBLASLt takes 256 bytes for granted
  return (rows * width + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Status LatentRows::reserve(std::int64_t rows, RecordedSteps& recorded) {
  const LatentShape& shape = config_.latent;
  const std::int64_t heads = config_.heads;
  const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
  QUIRE_TRY_STATUS(recorded.reserve(down_, size(rows * shape.down_width(config_.heads))));
  if (shape.query_rank > 0) {
    QUIRE_TRY_STATUS(recorded.reserve(queries_, size(rows * shape.queries_width(config_.heads))));
    QUIRE_TRY_STATUS(recorded.reserve(rounded_, size(rows * shape.query_rank)));
  }
  QUIRE_TRY_STATUS(recorded.reserve(
      head_in_, size(heads * head_stride(rows, std::max(shape.plain_dim, shape.rank)))));
  QUIRE_TRY_STATUS(recorded.reserve(
      head_out_, size(heads * head_stride(rows, std::max(shape.rank, shape.value_dim)))));
  return recorded.reserve(values_, size(rows * heads * shape.value_dim));
}

// Norms the first `width` numbers of rows.
Status LatentRows::norm(float* x, const float* weight, std::int32_t width, std::int64_t rows,
                        std::int64_t stride) {
  return to_status(
      kernels::cuda::rms_norm_heads({.x = x,
                                     .stride = stride,
                                     .rows = rows,
                                     .heads = 1,
                                     .head_dim = width,
                                     .weight = weight,
                                     .epsilon = static_cast<float>(config_.latent.norm_epsilon)},
                                    stream()),
      "rms_norm_heads");
}

// Sets the key, which is the shared key and the latent, and the value behind it, which is the
// latent and zeros. The shared key stands behind the latent in `latents`.
Status LatentRows::store_latents(const float* latents, std::int64_t from_stride, std::int64_t rows,
                                 float* key, std::int64_t stride) {
  const LatentShape& shape = config_.latent;
  const auto copy = [&](const float* from, float* to, std::int32_t width) {
    return to_status(kernels::cuda::copy_heads(HeadCopy<float, float>{.from = from,
                                                                      .from_row = from_stride,
                                                                      .to = to,
                                                                      .to_row = stride,
                                                                      .rows = rows,
                                                                      .width = width},
                                               stream()),
                     "copy_heads");
  };
  float* const value = key + shape.kv_dim();
  QUIRE_TRY_STATUS(copy(latents + shape.rank, key, shape.rope_dim));
  QUIRE_TRY_STATUS(copy(latents, key + shape.rope_dim, shape.rank));
  QUIRE_TRY_STATUS(copy(latents, value, shape.rank));
  return copy(nullptr, value + shape.rank, shape.rope_dim);
}

// Multiplies head_in_ of each head by a matrix of its own, to head_out_.
Status LatentRows::multiply_heads(const std::vector<DeviceMatrix>& matrices, std::int64_t rows) {
  const std::int64_t in = head_stride(rows, matrices.front().inputs);
  const std::int64_t out = head_stride(rows, matrices.front().outputs);
  for (std::size_t head = 0; head < matrices.size(); ++head) {
    const auto at = static_cast<std::int64_t>(head);
    QUIRE_TRY_STATUS(products_.linear(matrices[head], head_in_.data() + at * in, rows,
                                      head_out_.data() + at * out, false));
  }
  return {};
}

// Sets the queries of all heads: what is rotated, then what meets the latents. Row r of `from` has
// what is rotated of all heads, then the rest of all.
Status LatentRows::make_queries(const DeviceLayer& layer, const float* from,
                                std::int64_t from_stride, std::int64_t rows, float* qkv,
                                std::int64_t stride) {
  const LatentShape& shape = config_.latent;
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::copy_heads(HeadCopy<float, float>{.from = from,
                                                                 .from_row = from_stride,
                                                                 .from_head = shape.rope_dim,
                                                                 .to = qkv,
                                                                 .to_row = stride,
                                                                 .to_head = shape.kv_dim(),
                                                                 .rows = rows,
                                                                 .heads = config_.heads,
                                                                 .width = shape.rope_dim},
                                          stream()),
                "copy_heads"));
  QUIRE_TRY_STATUS(to_status(
      kernels::cuda::copy_heads(
          HeadCopy<float, Half>{.dtype = dtype_,
                                .from = from + std::int64_t{config_.heads} * shape.rope_dim,
                                .from_row = from_stride,
                                .from_head = shape.plain_dim,
                                .to = head_in_.data(),
                                .to_row = shape.plain_dim,
                                .to_head = head_stride(rows, shape.plain_dim),
                                .rows = rows,
                                .heads = config_.heads,
                                .width = shape.plain_dim},
          stream()),
      "copy_heads"));
  QUIRE_TRY_STATUS(multiply_heads(layer.latent.keys, rows));
  return to_status(
      kernels::cuda::copy_heads(HeadCopy<float, float>{.from = head_out_.data(),
                                                       .from_row = shape.rank,
                                                       .from_head = head_stride(rows, shape.rank),
                                                       .to = qkv + shape.rope_dim,
                                                       .to_row = stride,
                                                       .to_head = shape.kv_dim(),
                                                       .rows = rows,
                                                       .heads = config_.heads,
                                                       .width = shape.rank},
                                stream()),
      "copy_heads");
}

Status LatentRows::project(const DeviceLayer& layer, const Half* normed, std::int64_t rows,
                           float* qkv, std::int64_t stride) {
  const LatentShape& shape = config_.latent;
  const std::int64_t width = shape.down_width(config_.heads);
  QUIRE_TRY_STATUS(products_.linear(layer.qkv, normed, rows, down_.data(), false));
  float* const latents = down_.data() + shape.first_width(config_.heads);
  QUIRE_TRY_STATUS(norm(latents, layer.latent.norm.data(), shape.rank, rows, width));
  QUIRE_TRY_STATUS(store_latents(latents, width, rows,
                                 qkv + std::int64_t{config_.heads} * shape.kv_dim(), stride));
  if (shape.query_rank == 0) {
    return make_queries(layer, down_.data(), width, rows, qkv, stride);
  }
  QUIRE_TRY_STATUS(
      norm(down_.data(), layer.latent.query_norm.data(), shape.query_rank, rows, width));
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::copy_heads(HeadCopy<float, Half>{.dtype = dtype_,
                                                                .from = down_.data(),
                                                                .from_row = width,
                                                                .to = rounded_.data(),
                                                                .to_row = shape.query_rank,
                                                                .rows = rows,
                                                                .width = shape.query_rank},
                                          stream()),
                "copy_heads"));
  QUIRE_TRY_STATUS(
      products_.linear(layer.latent.queries, rounded_.data(), rows, queries_.data(), false));
  return make_queries(layer, queries_.data(), shape.queries_width(config_.heads), rows, qkv,
                      stride);
}

Status LatentRows::make_values(const DeviceLayer& layer, const Half* attended, std::int64_t rows) {
  const LatentShape& shape = config_.latent;
  QUIRE_TRY_STATUS(
      to_status(kernels::cuda::copy_heads(
                    HeadCopy<Half, Half>{.from = attended,
                                         .from_row = std::int64_t{config_.heads} * shape.kv_dim(),
                                         .from_head = shape.kv_dim(),
                                         .to = head_in_.data(),
                                         .to_row = shape.rank,
                                         .to_head = head_stride(rows, shape.rank),
                                         .rows = rows,
                                         .heads = config_.heads,
                                         .width = shape.rank},
                    stream()),
                "copy_heads"));
  QUIRE_TRY_STATUS(multiply_heads(layer.latent.values, rows));
  return to_status(
      kernels::cuda::copy_heads(
          HeadCopy<float, Half>{.dtype = dtype_,
                                .from = head_out_.data(),
                                .from_row = shape.value_dim,
                                .from_head = head_stride(rows, shape.value_dim),
                                .to = values_.data(),
                                .to_row = std::int64_t{config_.heads} * shape.value_dim,
                                .to_head = shape.value_dim,
                                .rows = rows,
                                .heads = config_.heads,
                                .width = shape.value_dim},
          stream()),
      "copy_heads");
}

}  // namespace quire::model::cuda
