// Row operations between the matrix products: norms, gates, embedding look-up. fp32 in and out,
// sums in a fixed order, so that a row's bits depend on that row alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/types.h"

namespace quire::kernels {

// Sets out[r] = x[r] / sqrt(mean(x[r]^2) + epsilon) * weight. x, out: [rows, width] (may be the
// same); weight [width]. Zhang & Sennrich 2019. Bytes: 8 * rows * width.
void rms_norm(const KernelContext& context, std::span<const float> x, std::span<const float> weight,
              double epsilon, std::int64_t rows, std::span<float> out);

// Heads inside rows: row r begins at values[r * stride] with `heads` heads, one after the other.
struct HeadRows {
  std::span<float> values;
  std::ptrdiff_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t heads = 0;
};

// Normalises each head of each row so, in place (QK norm of Qwen3); weight [head_dim].
void rms_norm_heads(const KernelContext& context, const HeadRows& x, std::span<const float> weight,
                    double epsilon);

// Sets out[r][i] = activation(gate_up[r][i]) * gate_up[r][width + i]; gate_up [rows, 2 * width],
// and width = out.size() / rows.
void gate_mul(const KernelContext& context, Activation activation, std::span<const float> gate_up,
              std::int64_t rows, std::span<float> out);
// Sets out[i] = activation(x[i]) * x[i]; kRelu makes squares of what is above 0. `out` may be x.
void gate_self(const KernelContext& context, Activation activation, std::span<const float> x,
               std::span<float> out);
// Calls gate_mul with silu.
void silu_mul(const KernelContext& context, std::span<const float> gate_up, std::int64_t rows,
              std::int64_t width, std::span<float> out);

// Multiplies all values by `factor`.
void scale(const KernelContext& context, float factor, std::span<float> values);
// Adds from[i] * factor to to[i]. The product is rounded before it is added.
void add_scaled(const KernelContext& context, std::span<const float> from, float factor,
                std::span<float> to);
// Sets values[i] = cap * tanh(values[i] / cap), absolute error below 2e-7 * cap; cap above 0.
void soft_cap(const KernelContext& context, float cap, std::span<float> values);

// Sets out[t] to row token_ids[t] of `table` [vocab, width]. The caller has checked the ids.
void embed(const KernelContext& context, const PackedWeights& table,
           std::span<const TokenId> token_ids, std::span<float> out);

}  // namespace quire::kernels
