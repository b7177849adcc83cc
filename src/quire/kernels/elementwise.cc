#include "quire/kernels/elementwise.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/base/check.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kernels/parallel.h"
#include "quire/types.h"

namespace quire::kernels {
namespace {

constexpr std::int64_t kGateCost = 4;  // elements of a norm that cost as much as one exponential

bool holds(std::size_t size, std::int64_t rows, std::int64_t width) {
  return static_cast<std::int64_t>(size) >= rows * width;
}

}  // namespace

void rms_norm(const KernelContext& context, std::span<const float> x, std::span<const float> weight,
              double epsilon, std::int64_t rows, std::span<float> out) {
  const auto width = static_cast<std::int64_t>(weight.size());
  QUIRE_CHECK(holds(x.size(), rows, width) && holds(out.size(), rows, width), "rows are short");
  parallel_ranges(context, rows, width, [&](std::int64_t first, std::int64_t last) {
    context.table->rms_norm({.x = x.data() + first * width,
                             .x_stride = width,
                             .weight = weight.data(),
                             .epsilon = epsilon,
                             .rows = last - first,
                             .width = width,
                             .out = out.data() + first * width,
                             .out_stride = width});
  });
}

void rms_norm_heads(const KernelContext& context, const HeadRows& x, std::span<const float> weight,
                    double epsilon) {
  const auto head_dim = static_cast<std::int64_t>(weight.size());
  const std::int64_t width = x.heads * head_dim;
  QUIRE_CHECK(x.rows == 0 || holds(x.values.size(), 1, (x.rows - 1) * x.stride + width),
              "rows are short");
  parallel_ranges(context, x.rows, width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      float* head = x.values.data() + row * x.stride;
      context.table->rms_norm({.x = head,
                               .x_stride = head_dim,
                               .weight = weight.data(),
                               .epsilon = epsilon,
                               .rows = x.heads,
                               .width = head_dim,
                               .out = head,
                               .out_stride = head_dim});
    }
  });
}

void silu_mul(const KernelContext& context, std::span<const float> gate_up, std::int64_t rows,
              std::int64_t width, std::span<float> out) {
  QUIRE_CHECK(holds(gate_up.size(), rows, 2 * width) && holds(out.size(), rows, width),
              "rows are short");
  parallel_ranges(context, rows, width * kGateCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const float* gate = gate_up.data() + row * 2 * width;
      context.table->silu_mul(
          {.gate = gate, .up = gate + width, .count = width, .out = out.data() + row * width});
    }
  });
}

void embed(const KernelContext& context, const PackedWeights& table,
           std::span<const TokenId> token_ids, std::span<float> out) {
  const auto tokens = static_cast<std::int64_t>(token_ids.size());
  const std::int64_t width = table.depth();
  QUIRE_CHECK(holds(out.size(), tokens, width), "out is short");
  parallel_ranges(context, tokens, width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      table.unpack_row(token_ids[static_cast<std::size_t>(t)],
                       out.subspan(static_cast<std::size_t>(t * width)));
    }
  });
}

}  // namespace quire::kernels
