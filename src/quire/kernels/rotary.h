// Rotary position embedding (Su et al. 2021): tables for the positions of one step, angles in
// double. The rotated pair is (i, i + rotary_dim / 2), as in the Hugging Face models.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/kernels/kernel_context.h"

namespace quire::kernels {

// Frequencies of one model; a position's angle i is position * inverse_frequencies[i].
struct RotaryConfig {
  std::vector<double> inverse_frequencies;  // [rotary_dim / 2]; empty: no rotation
  double scale = 1.0;                       // factor on cos and sin (YaRN, longrope), for q and k
  [[nodiscard]] int rotary_dim() const { return static_cast<int>(inverse_frequencies.size()) * 2; }
};

// cos and sin of a list of positions: [positions, rotary_dim / 2] each, fp32.
struct RotaryTable {
  std::vector<float> cos, sin;
  int half = 0;  // rotary_dim / 2; 0: no rotation
  // Overwrites the table; cost ~20 ns per entry, spread over the pool.
  void fill(const KernelContext& context, const RotaryConfig& config,
            std::span<const std::int32_t> positions);
};

// Sets out to `head` rotated by row `row` of the table; elements from rotary_dim on are copied.
// head and out have the same size >= rotary_dim and may be the same memory. Products are rounded
// before they are added, as a framework's separate operations would do it.
void rotate_head(const KernelContext& context, const RotaryTable& table, std::int64_t row,
                 std::span<const float> head, std::span<float> out);

}  // namespace quire::kernels
