// Updates of states against double precision, token by token from their definition, and their bits
// against their own bits in other cuts.
#include "quire/kernels/state_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/test_util.h"

namespace quire::kernels {
namespace {

using test::random_floats;
using test::same_bits;

class StateOpsTest : public test::OnEveryIsa {
 protected:
  device::ThreadPool pool_{2};
  KernelContext context() { return on(pool_); }
};

double silu(double x) { return x / (1.0 + std::exp(-x)); }

TEST_P(StateOpsTest, ConvolutionsMatchDoublePrecisionBehindAnyTail) {
  for (const std::int64_t channels : {1, 5, 16, 40, 257}) {
    for (const std::int64_t taps : {2, 3, 4, 7}) {
      const std::int64_t rows = 9;
      std::vector<float> in = random_floats(rows, channels, 1);
      const std::vector<float> tail = random_floats(taps - 1, channels, 2);
      const std::vector<float> weights = random_floats(taps, channels, 3);
      const std::vector<float> bias = random_floats(channels, 4);
      std::vector<float> out(in.size());
      const ConvWeights conv{weights, bias, channels, true};
      convolve_rows(context(), conv, {{in.data(), channels}, rows, tail.data()},
                    {out.data(), channels});
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t c = 0; c < channels; ++c) {
          double sum = bias[static_cast<std::size_t>(c)];
          for (std::int64_t tap = 0; tap < taps; ++tap) {
            const std::int64_t at = row - (taps - 1) + tap;
            const float* input =
                at < 0 ? tail.data() + (taps - 1 + at) * channels : in.data() + at * channels;
            sum += double{weights[static_cast<std::size_t>(tap * channels + c)]} * input[c];
          }
          EXPECT_NEAR(out[static_cast<std::size_t>(row * channels + c)], silu(sum),
                      2e-6 * (1.0 + std::abs(sum)));
        }
      }
    }
  }
}

TEST_P(StateOpsTest, ConvolutionsCutAnywhereHaveTheSameBits) {
  const std::int64_t channels = 37, rows = 11, taps = 4;
  std::vector<float> in = random_floats(rows, channels, 1);
  const std::vector<float> weights = random_floats(taps, channels, 3);
  const ConvWeights conv{weights, {}, channels, false};
  std::vector<float> whole(in.size()), pieces(in.size());
  convolve_rows(context(), conv, {{in.data(), channels}, rows, nullptr}, {whole.data(), channels});
  for (std::int64_t cut = 1; cut < rows; ++cut) {
    std::vector<float> tail(static_cast<std::size_t>((taps - 1) * channels));
    const ConvRows first{{in.data(), channels}, cut, nullptr};
    convolve_rows(context(), conv, first, {pieces.data(), channels});
    copy_tail(conv.tail(), first, cut, tail.data());
    ConvRows rest{{in.data() + cut * channels, channels}, 1, tail.data()};
    for (std::int64_t row = cut; row < rows; ++row) {
      rest.in.data = in.data() + row * channels;
      convolve_rows(context(), conv, rest, {pieces.data() + row * channels, channels});
      copy_tail(conv.tail(), rest, 1, tail.data());  // in place
    }
    EXPECT_TRUE(same_bits(whole, pieces)) << cut;
  }
}

// The rule as it is defined, in double precision: S = decay S; r = S^T k; S += k (beta (v - r))^T.
std::vector<double> delta_rule(const DeltaTask& t, std::vector<double>& state) {
  std::vector<double> out;
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (std::int64_t j = 0; j < t.columns; ++j) {
      double read = 0, sum = 0;
      for (int k = 0; k < t.key_dim; ++k) {
        double& s = state[static_cast<std::size_t>(k * t.columns + j)];
        s *= t.decay[row * t.gate_stride];
        read += s * t.key[row * t.key_stride + k];
      }
      const double change =
          t.beta[row * t.gate_stride] * (t.value[row * t.value_stride + j] - read);
      for (int k = 0; k < t.key_dim; ++k) {
        double& s = state[static_cast<std::size_t>(k * t.columns + j)];
        s += change * t.key[row * t.key_stride + k];
        sum += s * t.query[row * t.query_stride + k];
      }
      out.push_back(sum);
    }
  }
  return out;
}

struct DeltaCase {
  DeltaCase(int keys, std::int64_t columns, std::int64_t rows)
      : query(random_floats(rows, keys, 1)),
        key(random_floats(rows, keys, 2)),
        value(random_floats(rows, columns, 3)),
        gates(random_floats(rows, 2, 4)),
        state(random_floats(keys, columns, 5)),
        out(value.size()) {
    for (float& k : key) {
      k /= std::sqrt(static_cast<float>(keys));
    }
    for (float& gate : gates) {
      gate = 1.0f / (1.0f + std::exp(-gate));
    }
    task = {.query = query.data(),
            .key = key.data(),
            .value = value.data(),
            .decay = gates.data(),
            .beta = gates.data() + 1,
            .query_stride = keys,
            .key_stride = keys,
            .value_stride = columns,
            .gate_stride = 2,
            .state = state.data(),
            .state_stride = columns,
            .rows = rows,
            .key_dim = keys,
            .columns = columns,
            .out = out.data(),
            .out_stride = columns};
  }
  std::vector<float> query, key, value, gates, state, out;
  DeltaTask task;
};

TEST_P(StateOpsTest, TheGatedDeltaRuleMatchesDoublePrecision) {
  for (const int keys : {1, 16, 128}) {
    for (const std::int64_t columns : {1, 8, 24, 33, 128}) {
      DeltaCase delta(keys, columns, 20);
      std::vector<double> state(delta.state.begin(), delta.state.end());
      const std::vector<double> wanted = delta_rule(delta.task, state);
      context().table->gated_delta(delta.task);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_NEAR(delta.out[i], wanted[i], 3e-5 * (1.0 + std::abs(wanted[i]))) << keys;
      }
      for (std::size_t i = 0; i < state.size(); ++i) {
        ASSERT_NEAR(delta.state[i], state[i], 3e-5 * (1.0 + std::abs(state[i]))) << columns;
      }
    }
  }
}

// Does what the task's comment says, in double precision; `state` is updated.
std::vector<double> scanned(const DeltaTask& t, std::vector<double>& state) {
  std::vector<double> out;
  for (std::int64_t row = 0; row < t.rows; ++row) {
    for (std::int64_t column = 0; column < t.columns; ++column) {
      const double value = t.value[row * t.value_stride + column];
      double sum = t.skip * value;
      for (int k = 0; k < t.key_dim; ++k) {
        double& s = state[static_cast<std::size_t>(k * t.columns + column)];
        s = s * t.decay[row * t.gate_stride] +
            t.key[row * t.key_stride + k] * t.beta[row * t.gate_stride] * value;
        sum += s * t.query[row * t.query_stride + k];
      }
      out.push_back(sum);
    }
  }
  return out;
}

TEST_P(StateOpsTest, TheStateScanMatchesDoublePrecision) {
  for (const int keys : {1, 16, 128}) {
    for (const std::int64_t columns : {1, 8, 24, 33, 64}) {
      DeltaCase scan(keys, columns, 20);
      scan.task.skip = 0.7f;
      std::vector<double> state(scan.state.begin(), scan.state.end());
      const std::vector<double> wanted = scanned(scan.task, state);
      context().table->state_scan(scan.task);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        ASSERT_NEAR(scan.out[i], wanted[i], 3e-5 * (1.0 + std::abs(wanted[i]))) << keys;
      }
      for (std::size_t i = 0; i < state.size(); ++i) {
        ASSERT_NEAR(scan.state[i], state[i], 3e-5 * (1.0 + std::abs(state[i]))) << columns;
      }
    }
  }
}

TEST_P(StateOpsTest, StepsOfAScanStayWithinTheirBounds) {
  const std::vector<float> decay = {-0.5f, -2.0f}, shift = {0.25f, -30.0f};
  std::vector<float> raw = {1.0f, 2.0f, 50.0f, 1.0f}, gates(8);
  scan_gates(context(), {decay, shift, 0.01, 3.0}, {raw.data(), 2}, 2, gates);
  const double step = std::log1p(std::exp(1.25));
  EXPECT_FLOAT_EQ(gates[0], static_cast<float>(step));
  EXPECT_FLOAT_EQ(gates[2], static_cast<float>(std::exp(-0.5 * step)));
  EXPECT_FLOAT_EQ(gates[1], 0.01f);
  EXPECT_FLOAT_EQ(gates[3], std::exp(-0.02f));
  EXPECT_FLOAT_EQ(gates[4], 3.0f);
}

using Update = void (*)(const DeltaTask&);

class StateCuts : public StateOpsTest {
 protected:
  void expect_the_same_bits(Update update);
};

void StateCuts::expect_the_same_bits(Update update) {
  const std::int64_t rows = 13, columns = 40;
  DeltaCase whole(32, columns, rows);
  update(whole.task);
  for (std::int64_t cut = 1; cut < rows; ++cut) {
    DeltaCase pieces(32, columns, rows);
    DeltaTask first = pieces.task;
    first.rows = cut;
    update(first);
    DeltaTask rest = pieces.task;
    rest.rows = rows - cut;
    rest.query += cut * rest.query_stride;
    rest.key += cut * rest.key_stride;
    rest.value += cut * rest.value_stride;
    rest.decay += cut * rest.gate_stride;
    rest.beta += cut * rest.gate_stride;
    rest.out += cut * rest.out_stride;
    update(rest);
    EXPECT_TRUE(same_bits(pieces.out, whole.out)) << cut;
    EXPECT_TRUE(same_bits(pieces.state, whole.state)) << cut;
  }
}

TEST_P(StateCuts, OfTheGatedDeltaRuleChangeNoBit) {
  expect_the_same_bits(context().table->gated_delta);
}
TEST_P(StateCuts, OfTheStateScanChangeNoBit) { expect_the_same_bits(context().table->state_scan); }

TEST_P(StateOpsTest, HeadsAreNormedToLengthOne) {
  const std::int64_t rows = 5, heads = 3, size = 24;
  std::vector<float> x = random_floats(rows, heads * size, 6);
  const std::vector<float> before = x;
  l2_norm_heads(context(), {x.data(), heads * size}, rows, heads, size, 0.5f);
  for (std::size_t head = 0; head < static_cast<std::size_t>(rows * heads); ++head) {
    const auto values = std::span(before).subspan(head * size, size);
    double squares = 1e-6;
    for (const float value : values) {
      squares += double{value} * value;
    }
    for (std::size_t i = 0; i < size; ++i) {
      EXPECT_NEAR(x[head * size + i], 0.5 * values[i] / std::sqrt(squares), 1e-6);
    }
  }
}

TEST_P(StateOpsTest, GatesFollowTheirFormulas) {
  const std::vector<float> decay = {-0.5f, -2.0f}, shift = {1.0f, -1.0f};
  std::vector<float> gates = {0.3f, -0.7f, 0.2f, 30.0f, -4.0f, 2.0f, -9.0f, 0.0f};
  const std::vector<float> before = gates;
  delta_gates(context(), decay, shift, 2, gates);
  for (std::size_t row = 0; row < 2; ++row) {
    for (std::size_t head = 0; head < 2; ++head) {
      const double b = before[row * 4 + head], a = before[row * 4 + 2 + head];
      EXPECT_NEAR(gates[row * 4 + head], 1.0 / (1.0 + std::exp(-b)), 1e-7);
      const double soft =
          std::log1p(std::exp(-std::abs(a + shift[head]))) + std::max(a + shift[head], 0.0);
      EXPECT_NEAR(gates[row * 4 + 2 + head], std::exp(decay[head] * soft), 1e-7);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, StateOpsTest, test::every_isa(), test::isa_test_name);
INSTANTIATE_TEST_SUITE_P(All, StateCuts, test::every_isa(), test::isa_test_name);

}  // namespace
}  // namespace quire::kernels
