// Row operations as templates over a vector trait: norm, gate, rotation, rounding.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/vec_math.h"

namespace quire::kernels {
namespace {

// Sums in four accumulators of whole vectors, then adds the tail one by one. Only `count` decides
// this order.
template <class V>
float sum_of_squares(const float* x, std::int64_t count) {
  constexpr int kLanes = V::kLanes;
  typename V::F acc[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const typename V::F value = V::load(x + i + j * kLanes);
      acc[j] = V::fma(value, value, acc[j]);
    }
  }
  for (; i + kLanes <= count; i += kLanes) {
    const typename V::F value = V::load(x + i);
    acc[0] = V::fma(value, value, acc[0]);
  }
  float sum = V::reduce_add(V::add(V::add(acc[0], acc[1]), V::add(acc[2], acc[3])));
  for (; i < count; ++i) {
    sum += x[i] * x[i];
  }
  return sum;
}

template <class V>
float rms_factor(const float* x, std::int64_t width, double epsilon) {
  const double mean = static_cast<double>(sum_of_squares<V>(x, width)) / static_cast<double>(width);
  return static_cast<float>(1.0 / __builtin_sqrt(mean + epsilon));
}

template <class V>
void rms_norm_rows(const RmsNormTask& t) {
  for (std::int64_t r = 0; r < t.rows; ++r) {
    const float* x = t.x + r * t.x_stride;
    float* out = t.out + r * t.out_stride;
    const float inverse = rms_factor<V>(x, t.width, t.epsilon);
    const typename V::F factor = V::set(inverse);
    std::int64_t i = 0;
    for (; i + V::kLanes <= t.width; i += V::kLanes) {
      V::store(out + i, V::mul(V::mul(V::load(x + i), factor), V::load(t.weight + i)));
    }
    for (; i < t.width; ++i) {
      out[i] = x[i] * inverse * t.weight[i];
    }
  }
}

template <class V>
typename V::F gated(typename V::F gate, typename V::F up) {
  const typename V::F decay = exp<V>(V::sub(V::zero(), gate));
  return V::mul(V::div(gate, V::add(V::set(1.0f), decay)), up);
}

// Computes silu(gate) * up. A last partial vector goes through padded copies: an element's bits
// never depend on its place.
template <class V>
void silu_mul(const SiluMulTask& t) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= t.count; i += V::kLanes) {
    V::store(t.out + i, gated<V>(V::load(t.gate + i), V::load(t.up + i)));
  }
  const std::int64_t rest = t.count - i;
  if (rest == 0) {
    return;
  }
  float gate[V::kLanes] = {};
  float up[V::kLanes] = {};
  for (std::int64_t j = 0; j < rest; ++j) {
    gate[j] = t.gate[i + j];
    up[j] = t.up[i + j];
  }
  V::store(gate, gated<V>(V::load(gate), V::load(up)));
  for (std::int64_t j = 0; j < rest; ++j) {
    t.out[i + j] = gate[j];
  }
}

// Rotates elements [i, i + kLanes) of a head and those half a head behind them. Products are
// rounded before they are added.
template <class V>
[[gnu::always_inline]] inline void rotate_lanes(const float* head, const float* angle_cos,
                                                const float* angle_sin, int half,
                                                typename V::F& first, typename V::F& second) {
  const typename V::F cos = V::load(angle_cos), sin = V::load(angle_sin);
  const typename V::F x = V::load(head), y = V::load(head + half);
  first = V::sub(V::mul(x, cos), V::mul(y, sin));
  second = V::add(V::mul(y, cos), V::mul(x, sin));
}

template <class V>
void rotate(const RotateTask& t) {
  const float* second_half = t.head + t.half;
  float* second_out = t.out + t.half;
  int i = 0;
  for (; i + V::kLanes <= t.half; i += V::kLanes) {
    typename V::F first, second;
    rotate_lanes<V>(t.head + i, t.cos + i, t.sin + i, t.half, first, second);
    V::store(t.out + i, first);
    V::store(second_out + i, second);
  }
  for (; i < t.half; ++i) {
    const float first = t.head[i], second = second_half[i];
    t.out[i] = first * t.cos[i] - second * t.sin[i];
    second_out[i] = second * t.cos[i] + first * t.sin[i];
  }
  for (i = 2 * t.half; i < t.size; ++i) {
    t.out[i] = t.head[i];
  }
}

template <class V>
void round_bf16(const float* x, std::int64_t count, std::uint16_t* out) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= count; i += V::kLanes) {
    V::store_bf16(out + i, V::load(x + i));
  }
  if (i == count) {
    return;
  }
  float rest[V::kLanes] = {};
  std::uint16_t rounded[V::kLanes];
  for (std::int64_t j = i; j < count; ++j) {
    rest[j - i] = x[j];
  }
  V::store_bf16(rounded, V::load(rest));
  for (std::int64_t j = i; j < count; ++j) {
    out[j] = rounded[j - i];
  }
}

}  // namespace
}  // namespace quire::kernels
