// Updates of states as templates over a vector trait: convolutions of rows, gated delta rule, state
// spaces.
#pragma once

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cpu/row_ops_vec.h"

namespace quire::kernels {
namespace {

template <class V>
[[gnu::always_inline]] inline typename V::F convolved(const ConvTask& t, std::int64_t at) {
  typename V::F sum = t.bias == nullptr ? V::zero() : V::load(t.bias + at);
  for (int tap = 0; tap < t.taps; ++tap) {
    sum = V::fma(V::load(t.weights + tap * t.weight_stride + at), V::load(t.inputs[tap] + at), sum);
  }
  return t.silu ? gated<V>(sum, sum, V::set(1.0f)) : sum;
}

// Convolves one row. A last partial vector goes through padded copies: an element's bits never
// depend on its place.
template <class V>
void convolve(const ConvTask& t) {
  std::int64_t i = 0;
  for (; i + V::kLanes <= t.count; i += V::kLanes) {
    V::store(t.out + i, convolved<V>(t, i));
  }
  const std::int64_t rest = t.count - i;
  if (rest == 0) {
    return;
  }
  float inputs[kMaxConvTaps][V::kLanes] = {};
  float weights[kMaxConvTaps][V::kLanes] = {};
  float bias[V::kLanes] = {};
  float out[V::kLanes];
  const float* places[kMaxConvTaps];
  for (int tap = 0; tap < t.taps; ++tap) {
    places[tap] = inputs[tap];
    for (std::int64_t j = 0; j < rest; ++j) {
      inputs[tap][j] = t.inputs[tap][i + j];
      weights[tap][j] = t.weights[tap * t.weight_stride + i + j];
    }
  }
  for (std::int64_t j = 0; t.bias != nullptr && j < rest; ++j) {
    bias[j] = t.bias[i + j];
  }
  ConvTask padded = t;
  padded.inputs = places;
  padded.weights = weights[0];
  padded.weight_stride = V::kLanes;
  padded.bias = t.bias == nullptr ? nullptr : bias;
  V::store(out, convolved<V>(padded, 0));
  for (std::int64_t j = 0; j < rest; ++j) {
    t.out[i + j] = out[j];
  }
}

// Runs kVectors vectors of columns of a head through all rows: they stay in the first-level cache.
// The sum over the keys has one order, a chain in which only rows of the state follow each other.
template <class V, int kVectors>
void delta_columns(const DeltaTask& t, std::int64_t column) {
  using F = typename V::F;
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const float* key = t.key + row * t.key_stride;
    const float* query = t.query + row * t.query_stride;
    const float* value = t.value + row * t.value_stride + column;
    const F decay = V::set(t.decay[row * t.gate_stride]);
    const F beta = V::set(t.beta[row * t.gate_stride]);
    F read[kVectors], out[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      read[j] = out[j] = V::zero();
    }
    for (int k = 0; k < t.key_dim; ++k) {
      const F key_k = V::set(key[k]);
      const float* state = t.state + k * t.state_stride + column;
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        read[j] = V::fma(V::mul(V::load(state + j * V::kLanes), decay), key_k, read[j]);
      }
    }
    for (int j = 0; j < kVectors; ++j) {
      read[j] = V::mul(beta, V::sub(V::load(value + j * V::kLanes), read[j]));
    }
    for (int k = 0; k < t.key_dim; ++k) {
      const F key_k = V::set(key[k]), query_k = V::set(query[k]);
      float* state = t.state + k * t.state_stride + column;
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        const F kept = V::mul(V::load(state + j * V::kLanes), decay);  // the same bits again
        const F next = V::fma(read[j], key_k, kept);
        V::store(state + j * V::kLanes, next);
        out[j] = V::fma(next, query_k, out[j]);
      }
    }
    for (int j = 0; j < kVectors; ++j) {
      V::store(t.out + row * t.out_stride + column + j * V::kLanes, out[j]);
    }
  }
}

// Does the same for one column that fills no vector, whose place in its head never changes.
inline void delta_column(const DeltaTask& t, std::int64_t column) {
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const float* key = t.key + row * t.key_stride;
    const float* query = t.query + row * t.query_stride;
    const float decay = t.decay[row * t.gate_stride];
    float read = 0, out = 0;
    for (int k = 0; k < t.key_dim; ++k) {
      float& state = t.state[k * t.state_stride + column];
      state *= decay;
      read += state * key[k];
    }
    const float change =
        t.beta[row * t.gate_stride] * (t.value[row * t.value_stride + column] - read);
    for (int k = 0; k < t.key_dim; ++k) {
      float& state = t.state[k * t.state_stride + column];
      state += change * key[k];
      out += state * query[k];
    }
    t.out[row * t.out_stride + column] = out;
  }
}

template <class V>
void gated_delta(const DeltaTask& t) {
  constexpr int kVectors = 4;
  std::int64_t column = 0;
  for (; column + kVectors * V::kLanes <= t.columns; column += kVectors * V::kLanes) {
    delta_columns<V, kVectors>(t, column);
  }
  for (; column + V::kLanes <= t.columns; column += V::kLanes) {
    delta_columns<V, 1>(t, column);
  }
  for (; column < t.columns; ++column) {
    delta_column(t, column);
  }
}

// Runs kVectors vectors of columns of a state space through all rows.
template <class V, int kVectors>
void scan_columns(const DeltaTask& t, std::int64_t column) {
  using F = typename V::F;
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const float* key = t.key + row * t.key_stride;
    const float* query = t.query + row * t.query_stride;
    const float* value = t.value + row * t.value_stride + column;
    const F decay = V::set(t.decay[row * t.gate_stride]);
    const F step = V::set(t.beta[row * t.gate_stride]);
    F input[kVectors], out[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      input[j] = V::mul(V::load(value + j * V::kLanes), step);
      out[j] = V::zero();
    }
    for (int k = 0; k < t.key_dim; ++k) {
      const F key_k = V::set(key[k]), query_k = V::set(query[k]);
      float* state = t.state + k * t.state_stride + column;
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        const F kept = V::mul(V::load(state + j * V::kLanes), decay);
        const F next = V::fma(input[j], key_k, kept);
        V::store(state + j * V::kLanes, next);
        out[j] = V::fma(next, query_k, out[j]);
      }
    }
    const F skip = V::set(t.skip);
    for (int j = 0; j < kVectors; ++j) {
      V::store(t.out + row * t.out_stride + column + j * V::kLanes,
               V::fma(V::load(value + j * V::kLanes), skip, out[j]));
    }
  }
}

// Does the same for one column that fills no vector, whose place in its head never changes.
inline void scan_column(const DeltaTask& t, std::int64_t column) {
  for (std::int64_t row = 0; row < t.rows; ++row) {
    const float* key = t.key + row * t.key_stride;
    const float* query = t.query + row * t.query_stride;
    const float value = t.value[row * t.value_stride + column];
    const float input = value * t.beta[row * t.gate_stride];
    float out = 0;
    for (int k = 0; k < t.key_dim; ++k) {
      float& state = t.state[k * t.state_stride + column];
      state = state * t.decay[row * t.gate_stride] + input * key[k];
      out += state * query[k];
    }
    t.out[row * t.out_stride + column] = out + t.skip * value;
  }
}

template <class V>
void state_scan(const DeltaTask& t) {
  constexpr int kVectors = 4;
  std::int64_t column = 0;
  for (; column + kVectors * V::kLanes <= t.columns; column += kVectors * V::kLanes) {
    scan_columns<V, kVectors>(t, column);
  }
  for (; column + V::kLanes <= t.columns; column += V::kLanes) {
    scan_columns<V, 1>(t, column);
  }
  for (; column < t.columns; ++column) {
    scan_column(t, column);
  }
}

}  // namespace
}  // namespace quire::kernels
