#include "quire/kernels/rotary.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/parallel.h"

namespace quire::kernels {
namespace {

constexpr std::int64_t kEntryCost = 32;  // a sine and a cosine, in units of kElementsPerTask

}  // namespace

void RotaryTable::fill(const KernelContext& context, const RotaryConfig& config,
                       std::span<const std::int32_t> positions) {
  half = config.rotary_dim() / 2;
  const std::size_t entries = positions.size() * static_cast<std::size_t>(half);
  cos.resize(entries);
  sin.resize(entries);
  parallel_ranges(context, static_cast<std::int64_t>(positions.size()), half * kEntryCost,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t row = first; row < last; ++row) {
                      const double position = positions[static_cast<std::size_t>(row)];
                      const auto at = static_cast<std::size_t>(row * half);
                      for (std::size_t i = 0; i < static_cast<std::size_t>(half); ++i) {
                        const double angle = position * config.inverse_frequencies[i];
                        cos[at + i] = static_cast<float>(std::cos(angle) * config.scale);
                        sin[at + i] = static_cast<float>(std::sin(angle) * config.scale);
                      }
                    }
                  });
}

void rotate_head(const KernelContext& context, const RotaryTable& table, std::int64_t row,
                 std::span<const float> head, std::span<float> out) {
  const std::ptrdiff_t at = row * table.half;
  context.table->rotate({.head = head.data(),
                         .cos = table.cos.data() + at,
                         .sin = table.sin.data() + at,
                         .half = table.half,
                         .size = static_cast<int>(head.size()),
                         .out = out.data()});
}

}  // namespace quire::kernels
