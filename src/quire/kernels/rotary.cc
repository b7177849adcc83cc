#include "quire/kernels/rotary.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/context.h"
#include "quire/kernels/parallel.h"

namespace quire::kernels {
namespace {

constexpr std::int64_t kEntryCost = 32;  // a sine and a cosine, in units of kElementsPerTask

}  // namespace

void RotaryTable::fill(const Context& context, const RotaryConfig& config,
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

void rotate_head(const RotaryTable& table, std::int64_t row, std::span<const float> head,
                 std::span<float> out) {
  const auto half = static_cast<std::size_t>(table.half);
  const auto at = static_cast<std::size_t>(row) * half;
  for (std::size_t i = 0; i < half; ++i) {
    const float first = head[i];
    const float second = head[half + i];
    const float cos = table.cos[at + i];
    const float sin = table.sin[at + i];
    out[i] = first * cos - second * sin;
    out[half + i] = second * cos + first * sin;
  }
  for (std::size_t i = 2 * half; i < head.size(); ++i) {
    out[i] = head[i];
  }
}

}  // namespace quire::kernels
