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

// Returns gate / (1 + e^-x) * up.
template <class V>
typename V::F gated(typename V::F gate, typename V::F x, typename V::F up) {
  const typename V::F decay = exp<V>(V::sub(V::zero(), x));
  return V::mul(V::div(gate, V::add(V::set(1.0f), decay)), up);
}

template <class V>
struct Silu {
  static typename V::F apply(typename V::F gate, typename V::F up) {
    return gated<V>(gate, gate, up);
  }
};

template <class V>
struct GeluTanh {
  static typename V::F apply(typename V::F gate, typename V::F up) {
    const typename V::F cubic = V::mul(V::mul(gate, gate), V::set(0.044715f));
    const typename V::F inner = V::mul(gate, V::add(V::set(1.0f), cubic));
    return gated<V>(gate, V::mul(inner, V::set(1.5957691216f)), up);  // 2 * sqrt(2 / pi)
  }
};

template <class V>
struct Sigmoid {
  static typename V::F apply(typename V::F gate, typename V::F up) {
    return gated<V>(up, gate, V::set(1.0f));
  }
};

// Returns the lesser of both; NaN where x is NaN.
template <class V>
typename V::F least(typename V::F bound, typename V::F x) {
  const typename V::F zero = V::zero();
  return V::sub(zero, V::max(V::sub(zero, bound), V::sub(zero, x)));
}

template <class V>
struct ClampedSwiglu {
  static typename V::F apply(typename V::F gate, typename V::F up) {
    const typename V::F limit = V::set(7.0f);
    const typename V::F g = least<V>(limit, gate);
    const typename V::F u = V::max(V::set(-7.0f), least<V>(limit, up));
    return gated<V>(g, V::mul(g, V::set(1.702f)), V::add(u, V::set(1.0f)));
  }
};

template <class V>
struct Relu {
  static typename V::F apply(typename V::F gate, typename V::F up) {
    return V::mul(V::max(V::zero(), gate), up);
  }
};

// Computes activation(gate) * up. A last partial vector goes through padded copies: an element's
// bits never depend on its place.
template <class V, class A>
void gate_mul(const GateMulTask& t) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= t.count; i += V::kLanes) {
    V::store(t.out + i, A::apply(V::load(t.gate + i), V::load(t.up + i)));
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
  V::store(gate, A::apply(V::load(gate), V::load(up)));
  for (std::int64_t j = 0; j < rest; ++j) {
    t.out[i + j] = gate[j];
  }
}

// Returns cap * tanh(x / cap), as cap * (1 - e) / (1 + e) with e = e^(-2x / cap). Infinities become
// NaN.
template <class V>
typename V::F soft_capped(typename V::F x, typename V::F cap, typename V::F step) {
  const typename V::F decay = exp<V>(V::mul(x, step));  // step = -2 / cap
  const typename V::F one = V::set(1.0f);
  const typename V::F tanh = V::div(V::sub(one, decay), V::add(one, decay));
  return V::add(V::mul(cap, tanh), V::sub(x, x));
}

template <class V>
void soft_cap(const SoftCapTask& t) {
  const typename V::F cap = V::set(t.cap), step = V::set(-2.0f / t.cap);
  std::int64_t i = 0;
  for (; i + V::kLanes <= t.count; i += V::kLanes) {
    V::store(t.values + i, soft_capped<V>(V::load(t.values + i), cap, step));
  }
  float rest[V::kLanes] = {};
  for (std::int64_t j = i; j < t.count; ++j) {
    rest[j - i] = t.values[j];
  }
  V::store(rest, soft_capped<V>(V::load(rest), cap, step));
  for (std::int64_t j = i; j < t.count; ++j) {
    t.values[j] = rest[j - i];
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
