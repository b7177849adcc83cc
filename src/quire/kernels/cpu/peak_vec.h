// Measures the best of a vector trait: loads that feed nothing, and register-only multiply-adds
// with twelve independent accumulators. The compiler must take their operands for new each time.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/kernel_util.h"

namespace quire::kernels {
namespace {

constexpr int kPeakAccumulators = 12;

template <class V>
void read_bytes(const std::byte* data, std::int64_t bytes) {
  constexpr int kRound = 256;
  constexpr int kAhead = 4096;
  for (const std::byte* end = data + bytes; data != end; data += kRound) {
#pragma GCC unroll 4
    for (int i = 0; i < kRound; i += 64) {
      __builtin_prefetch(data + kAhead + i);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRound; i += V::kLanes * 4) {
      (void)unknown(V::load_bits(data + i));
    }
  }
}

template <class V>
void peak_f32(const PeakTask& t) {
  const auto* operands = reinterpret_cast<const float*>(t.operands);
  typename V::F a = V::load(operands);
  const typename V::F b = V::load(operands + 16);
  typename V::F acc[kPeakAccumulators];
  for (auto& sum : acc) {
    sum = V::zero();
  }
  for (std::int64_t i = 0; i < t.iterations; ++i) {
#pragma GCC unroll 12
    for (auto& sum : acc) {
      a = unknown(a);
      sum = V::fma(a, b, sum);
    }
  }
  for (int i = 1; i < kPeakAccumulators; ++i) {
    acc[0] = V::add(acc[0], acc[i]);
  }
  V::store(t.sink, acc[0]);
}

template <class V>
void peak_bf16(const PeakTask& t) {
  typename V::I a = V::load_bits(t.operands);
  const typename V::I b = V::load_bits(t.operands + 64);
  typename V::F acc[kPeakAccumulators];
  for (auto& sum : acc) {
    sum = V::zero();
  }
  for (std::int64_t i = 0; i < t.iterations; ++i) {
#pragma GCC unroll 12
    for (auto& sum : acc) {
      a = unknown(a);
      sum = V::dot_bf16(sum, a, b);
    }
  }
  for (int i = 1; i < kPeakAccumulators; ++i) {
    acc[0] = V::add(acc[0], acc[i]);
  }
  V::store(t.sink, acc[0]);
}

template <class V>
void peak_int8(const PeakTask& t) {
  typename V::I a = V::load_bits(t.operands);
  const typename V::I b = V::load_bits(t.operands + 64);
  typename V::I acc[kPeakAccumulators];
  for (auto& sum : acc) {
    sum = V::set_bits(0);
  }
  for (std::int64_t i = 0; i < t.iterations; ++i) {
#pragma GCC unroll 12
    for (auto& sum : acc) {
      a = unknown(a);
      sum = V::dot_bytes(sum, a, b);
    }
  }
  typename V::F total = V::zero();
  for (const auto& sum : acc) {
    total = V::add(total, V::to_float(sum));
  }
  V::store(t.sink, total);
}

}  // namespace
}  // namespace quire::kernels
