// fp32 rows to packed rows (packed_rows.h), as templates over a vector trait.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"

namespace quire::kernels {
namespace {

// Calls fn(32 inputs of row r at step s, index of the group r, s) for a whole block; inputs beyond
// the depth are zero.
template <class V, class Fn>
void for_each_group(const PackTask& t, Fn fn) {
  const bool normed = t.norm_weight != nullptr;
  for (int r = 0; r < t.rows; ++r) {
    const float* row = t.x + r * t.x_stride;
    const float factor = normed ? t.norm_factors[r] : 1.0f;
    for (int s = 0; s < t.steps; ++s) {
      const std::int64_t first = static_cast<std::int64_t>(s) * 32;
      const std::ptrdiff_t group = static_cast<std::ptrdiff_t>(s) * t.rows + r;
      const bool whole = t.depth - first >= 32;
      if (whole && !normed) {
        fn(row + first, group);
        continue;
      }
      alignas(64) float inputs[32] = {};
      if (whole) {
        const float* weight = t.norm_weight + first;
        for (int i = 0; i < 32; i += V::kLanes) {
          const typename V::F scaled = V::mul(V::load(row + first + i), V::set(factor));
          V::store(inputs + i, V::mul(scaled, V::load(weight + i)));
        }
      }
      for (std::int64_t k = first; !whole && k < t.depth; ++k) {
        inputs[k - first] = normed ? row[k] * factor * t.norm_weight[k] : row[k];
      }
      fn(inputs, group);
    }
  }
}

template <class V>
void pack_f32(const PackTask& t) {
  auto* values = reinterpret_cast<float*>(t.values);
  for_each_group<V>(t, [&](const float* x, std::ptrdiff_t group) {
    for (int i = 0; i < 32; i += V::kLanes) {
      V::store(values + group * 32 + i, V::load(x + i));
    }
  });
}

template <class V>
void pack_bf16(const PackTask& t) {
  auto* values = reinterpret_cast<std::uint16_t*>(t.values);
  for_each_group<V>(t, [&](const float* x, std::ptrdiff_t group) {
    for (int i = 0; i < 32; i += V::kLanes) {
      V::store_bf16(values + group * 32 + i, V::load(x + i));
    }
  });
}

// Groups whose values are all below it get zero codes.
constexpr float kNegligible = 0x1p-90f;

// Returns amax / 127, rounded up so that two bits are left behind the leading one.
inline float scale_for(float amax) {
  constexpr std::uint32_t kLow = (1u << 21) - 1;
  const float least = (amax > kNegligible ? amax : kNegligible) / 127.0f;
  std::uint32_t bits = 0;
  __builtin_memcpy(&bits, &least, sizeof bits);
  bits = (bits + kLow) & ~kLow;
  float scale = 0;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return scale;
}

// Packs each value as round(x / scale), with the same bits on every instruction set. NaN and
// infinity have no code: they make the scale NaN, so that the row's products are NaN too.
template <class V>
void pack_int8(const PackTask& t) {
  auto* values = reinterpret_cast<std::int8_t*>(t.values);
  for_each_group<V>(t, [&](const float* x, std::ptrdiff_t group) {
    typename V::F peak = V::zero();
    typename V::F broken = V::zero();  // x * 0 is zero only for finite x
    for (int i = 0; i < 32; i += V::kLanes) {
      const typename V::F value = V::load(x + i);
      peak = V::max(peak, V::abs(value));
      broken = V::fma(value, V::zero(), broken);
    }
    const float amax = V::reduce_max(peak);
    const float scale = scale_for(amax);
    const typename V::F inverse = V::set(amax > kNegligible ? 1.0f / scale : 0.0f);
    typename V::F codes = broken;  // their sum, which is exact in fp32
    typename V::F first_codes = broken;
    for (int i = 0; i < 32; i += V::kLanes) {
      // NaN, which max() drops, must not reach the conversion: sets disagree about it.
      const typename V::F scaled = V::max(V::mul(V::load(x + i), inverse), V::set(-127.0f));
      const typename V::I code = V::to_int(scaled);
      V::store_int8(values + group * 32 + i, code);
      codes = V::add(codes, V::to_float(code));
      first_codes = i < 16 ? codes : first_codes;
    }
    const float sum = V::reduce_add(codes);
    const bool finite = sum - sum == 0;
    t.scales[group] = finite ? scale : __builtin_nanf("");
    t.offsets[group] = finite ? -8 * static_cast<std::int32_t>(sum) : 0;
    t.first_offsets[group] =
        finite ? -8 * static_cast<std::int32_t>(V::reduce_add(first_codes)) : 0;
  });
}

}  // namespace
}  // namespace quire::kernels
