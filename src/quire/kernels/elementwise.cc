#include "quire/kernels/elementwise.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
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

// Calls fn(first, last) for ranges of whole grains of `size` values.
template <class Fn>
void for_ranges(const KernelContext& context, std::size_t size, std::int64_t cost, Fn fn) {
  constexpr std::size_t kGrain = 256;
  const auto grains = static_cast<std::int64_t>((size + kGrain - 1) / kGrain);
  parallel_ranges(context, grains, static_cast<std::int64_t>(kGrain) * cost,
                  [&](std::int64_t first, std::int64_t last) {
                    fn(static_cast<std::size_t>(first) * kGrain,
                       std::min(static_cast<std::size_t>(last) * kGrain, size));
                  });
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

void gate_mul(const KernelContext& context, Activation activation, std::span<const float> gate_up,
              std::int64_t rows, std::span<float> out) {
  if (rows == 0) {
    return;
  }
  const std::int64_t width = std::ssize(out) / rows;
  QUIRE_CHECK(holds(gate_up.size(), rows, 2 * width), "rows are short");
  const auto gate_row = context.table->gate_mul[static_cast<std::uint8_t>(activation)];
  parallel_ranges(context, rows, width * kGateCost, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row) {
      const float* gate = gate_up.data() + row * 2 * width;
      gate_row({.gate = gate, .up = gate + width, .count = width, .out = out.data() + row * width});
    }
  });
}

void gate_self(const KernelContext& context, Activation activation, std::span<const float> x,
               std::span<float> out) {
  QUIRE_CHECK(x.size() == out.size(), "rows differ in size");
  constexpr std::int64_t kPiece = 1024;
  const auto gate = context.table->gate_mul[static_cast<std::uint8_t>(activation)];
  const std::int64_t pieces = (std::ssize(x) + kPiece - 1) / kPiece;
  parallel_ranges(context, pieces, kPiece * kGateCost, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t begin = first * kPiece;
    const std::int64_t count = std::min(last * kPiece, std::ssize(x)) - begin;
    gate({.gate = x.data() + begin,
          .up = x.data() + begin,
          .count = count,
          .out = out.data() + begin});
  });
}

void silu_mul(const KernelContext& context, std::span<const float> gate_up, std::int64_t rows,
              std::int64_t width, std::span<float> out) {
  QUIRE_CHECK(holds(out.size(), rows, width), "rows are short");
  gate_mul(context, Activation::kSilu, gate_up, rows,
           out.first(static_cast<std::size_t>(rows * width)));
}

void scale(const KernelContext& context, float factor, std::span<float> values) {
  for_ranges(context, values.size(), 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      values[i] *= factor;
    }
  });
}

void add_scaled(const KernelContext& context, std::span<const float> from, float factor,
                std::span<float> to) {
  QUIRE_CHECK(from.size() >= to.size(), "rows are short");
  for_ranges(context, to.size(), 1, [&](std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last; ++i) {
      const float product = from[i] * factor;
      to[i] += product;
    }
  });
}

void soft_cap(const KernelContext& context, float cap, std::span<float> values) {
  for_ranges(context, values.size(), kGateCost, [&](std::size_t first, std::size_t last) {
    context.table->soft_cap({.values = values.data() + first,
                             .count = static_cast<std::int64_t>(last - first),
                             .cap = cap});
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
