// Updates of states on a GPU. Oracle: the CPU with AVX2, which fuses the same steps and sums
// convolutions in the same order. For the sums over keys it is the order of state_parts.h, written
// out.
#include "quire/kernels/cuda/state_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/state_ops.h"
#include "quire/kernels/state_parts.h"
#include "quire/kernels/test_util.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::DeviceBuffer;
using device::cuda::to_status;
using device::cuda::test::must;

constexpr std::int64_t kRows = 52;

// Three sequences, of which the second goes on in place and is kept behind two of its rows, and one
// row of no sequence.
const std::vector<StateRows> kRuns = {
    {0, 4, -1, 0, 0, 0}, {4, 46, 1, 1, 0, 2}, {50, 1, 2, 3, 2, 0}, {}};
const std::vector<CapturedState> kCaptures = {{4, 4}, {27, 5}};
// Returns the run of each row; the last row is of none.
std::vector<std::int32_t> run_of_rows() {
  std::vector<std::int32_t> runs(kRows, -1);
  for (std::size_t run = 0; run < kRuns.size(); ++run) {
    std::fill_n(runs.begin() + kRuns[run].first_row, kRuns[run].num_rows,
                static_cast<std::int32_t>(run));
  }
  return runs;
}
constexpr int kStates = 6;

class StateOps : public device::cuda::test::GpuTest {
 protected:
  // States of `size` numbers on the device.
  LayerStates place(const std::vector<float>& states) {
    states_ = upload(states);
    runs_ = upload(kRuns);
    captures_ = upload(kCaptures);
    run_of_ = upload(run_of_rows());
    return {.data = reinterpret_cast<std::byte*>(states_.data()),
            .stride = static_cast<std::ptrdiff_t>(states.size() / kStates * sizeof(float)),
            .runs = runs_.data(),
            .num_runs = static_cast<std::int32_t>(kRuns.size()),
            .captures = captures_.data(),
            .run_of = run_of_.data(),
            .rows = kRows};
  }

  device::ThreadPool pool_{1};
  KernelContext cpu_{&kernels_for(device::Isa::kAvx2), &pool_};
  DeviceBuffer<float> states_;
  DeviceBuffer<StateRows> runs_;
  DeviceBuffer<CapturedState> captures_;
  DeviceBuffer<std::int32_t> run_of_;
};

TEST_F(StateOps, ConvolutionsAndTheirTailsHaveTheCpusBits) {
  constexpr int kChannels = 300, kStride = 640;
  for (const int taps : {2, 4, 7}) {
    const std::int64_t size = std::int64_t{taps - 1} * kChannels;
    auto states = test::random_floats(kStates * size, 1);
    const auto in = test::random_floats(kRows * kStride, 2);
    const auto weights = test::random_floats(std::int64_t{taps} * kChannels, 3);
    const auto bias = test::random_floats(kChannels, 4);
    const LayerStates there = place(states);
    const auto in_there = upload(in), weights_there = upload(weights), bias_there = upload(bias);
    const auto out = upload(std::vector<float>(kRows * kChannels, 7));
    const ConvParams params{.states = there,
                            .in = in_there.data() + 5,
                            .stride = kStride,
                            .weights = weights_there.data(),
                            .bias = bias_there.data(),
                            .taps = taps,
                            .channels = kChannels,
                            .out = out.data()};
    must(to_status(convolve(params, stream()), "convolve"));
    must(to_status(keep_tails(params, stream()), "keep_tails"));
    std::vector<float> rows = in, want(kRows * kChannels);
    const ConvWeights conv{.weights = weights, .bias = bias, .channels = kChannels};
    for (const StateRows& run : kRuns) {
      const ConvRows own{{rows.data() + run.first_row * kStride + 5, kStride},
                         run.num_rows,
                         run.from < 0 ? nullptr : states.data() + run.from * size};
      if (run.num_rows == 0) {
        continue;
      }
      convolve_rows(cpu_, conv, own, {want.data() + run.first_row * kChannels, kChannels});
      for (int i = 0; i < run.num_captures; ++i) {
        const CapturedState& kept = kCaptures[static_cast<std::size_t>(run.first_capture + i)];
        copy_tail(conv.tail(), own, kept.row - run.first_row + 1, states.data() + kept.to * size);
      }
      copy_tail(conv.tail(), own, run.num_rows, states.data() + run.to * size);
    }
    EXPECT_EQ(download(out, want.size()), want) << taps << " taps";
    EXPECT_EQ(download(states_, states.size()), states) << taps << " taps";
  }
}

struct Heads {
  int heads, key_heads, key_dim, value_dim;
};

// Returns the largest difference, of numbers above 1 as a share.
float farthest(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]) / (1.0f + std::abs(b[i])));
  }
  return most;
}

// Adds the sums of parts as a tree of neighbours.
float add_parts(std::array<float, kKeyParts> parts) {
  for (std::size_t step = 1; step < kKeyParts; step *= 2) {
    for (std::size_t i = 0; i < kKeyParts; i += 2 * step) {
      parts[i] += parts[i + step];
    }
  }
  return parts[0];
}

// Updates the state of one row, whose rows are those of kernel_table.h.
void update_in_parts(bool of_scan, const DeltaTask& task) {
  for (int column = 0; column < task.columns; ++column) {
    const auto state = [&](int key) -> float& {
      return task.state[key * task.state_stride + column];
    };
    std::array<float, kKeyParts> reads{}, outs{};
    for (int key = 0; key < task.key_dim; ++key) {
      float& read = reads[static_cast<std::size_t>(key_part(key))];
      state(key) *= *task.decay;
      read = std::fma(state(key), task.key[key], read);
    }
    const float value = task.value[column];
    const float change = of_scan ? value * *task.beta : *task.beta * (value - add_parts(reads));
    for (int key = 0; key < task.key_dim; ++key) {
      float& out = outs[static_cast<std::size_t>(key_part(key))];
      state(key) = std::fma(change, task.key[key], state(key));
      out = std::fma(state(key), task.query[key], out);
    }
    task.out[column] = of_scan ? std::fma(value, task.skip, add_parts(outs)) : add_parts(outs);
  }
}

TEST_F(StateOps, DeltaRulesAndStateSpacesHaveTheBitsOfSumsInParts) {
  for (const bool of_scan : {false, true}) {
    for (const Heads& shape : {Heads{4, 2, 16, 24}, {3, 1, 48, 33}, {4, 4, 128, 64}}) {
      const std::int64_t matrix = std::int64_t{shape.key_dim} * shape.value_dim;
      constexpr std::int64_t kTail = 5;
      const std::int64_t size = kTail + shape.heads * matrix;
      const std::int64_t keys = std::int64_t{shape.key_heads} * shape.key_dim;
      const std::int64_t channels = 2 * keys + shape.heads * shape.value_dim;
      auto states = test::random_floats(kStates * size, 1);
      auto x = test::random_floats(kRows * channels, 2);
      for (float& value : x) {
        value *= 0.1f;  // states stay small
      }
      const auto skip = test::random_floats(shape.heads, 3);
      auto gates = test::random_floats(kRows * 2 * shape.heads, 4);
      for (float& gate : gates) {
        gate = 1.0f / (1.0f + std::exp(-gate));
      }
      const LayerStates there = place(states);
      const auto x_there = upload(x), gates_there = upload(gates), skip_there = upload(skip);
      const std::int64_t width = std::int64_t{shape.heads} * shape.value_dim;
      const auto out = upload(std::vector<float>(static_cast<std::size_t>(kRows * width)));
      must(to_status(update_states({.states = there,
                                    .of_scan = of_scan,
                                    .x = x_there.data(),
                                    .channels = static_cast<std::int32_t>(channels),
                                    .query = 0,
                                    .key = static_cast<std::int32_t>(keys),
                                    .value = static_cast<std::int32_t>(2 * keys),
                                    .heads = shape.heads,
                                    .key_heads = shape.key_heads,
                                    .key_dim = shape.key_dim,
                                    .value_dim = shape.value_dim,
                                    .matrix = kTail,
                                    .gates = gates_there.data(),
                                    .skip = skip_there.data(),
                                    .out = out.data()},
                                   stream()),
                     "update_states"));
      std::vector<float> want(static_cast<std::size_t>(kRows * width));
      for (const StateRows& run : kRuns) {
        for (int head = 0; head < shape.heads; ++head) {
          const std::int64_t at = kTail + head * matrix;
          std::vector<float> state(static_cast<std::size_t>(matrix));
          if (run.from >= 0) {
            std::copy_n(states.begin() + run.from * size + at, matrix, state.begin());
          }
          for (int row = run.first_row; row < run.first_row + run.num_rows; ++row) {
            const std::int64_t key =
                std::int64_t{head / (shape.heads / shape.key_heads)} * shape.key_dim;
            const float* const values = x.data() + row * channels;
            const float* const gate = gates.data() + row * 2 * shape.heads + head;
            const DeltaTask task{.query = values + key,
                                 .key = values + keys + key,
                                 .value = values + 2 * keys + head * shape.value_dim,
                                 .decay = gate + shape.heads,
                                 .beta = gate,
                                 .state = state.data(),
                                 .state_stride = shape.value_dim,
                                 .rows = 1,
                                 .key_dim = shape.key_dim,
                                 .columns = shape.value_dim,
                                 .out = want.data() + row * width + head * shape.value_dim,
                                 .skip = skip[static_cast<std::size_t>(head)]};
            auto near_state = state;
            std::vector<float> near_out(static_cast<std::size_t>(shape.value_dim));
            DeltaTask near_task = task;
            near_task.state = near_state.data();
            near_task.out = near_out.data();
            (of_scan ? cpu_.table->state_scan : cpu_.table->gated_delta)(near_task);
            update_in_parts(of_scan, task);
            ASSERT_LT(farthest(state, near_state), 1e-5f);
            ASSERT_LT(farthest({task.out, task.out + shape.value_dim}, near_out), 1e-4f);
            for (int i = 0; i < run.num_captures; ++i) {
              const CapturedState& kept =
                  kCaptures[static_cast<std::size_t>(run.first_capture + i)];
              if (kept.row == row) {
                std::ranges::copy(state, states.begin() + kept.to * size + at);
              }
            }
          }
          if (run.num_rows > 0) {
            std::ranges::copy(state, states.begin() + run.to * size + at);
          }
        }
      }
      auto got = download(out, want.size());
      got.resize(static_cast<std::size_t>((kRows - 1) * width));  // the last row is of nobody
      want.resize(got.size());
      EXPECT_EQ(got, want) << of_scan << ", keys of " << shape.key_dim;
      EXPECT_EQ(download(states_, states.size()), states) << of_scan;
    }
  }
}

TEST_F(StateOps, GatesAndUnitHeadsAreNearTheCpus) {
  constexpr int kHeads = 5;
  const auto decay = test::random_floats(kHeads, 1);
  const auto shift = test::random_floats(kHeads, 2);
  const auto decay_there = upload(decay), shift_there = upload(shift);
  for (const bool of_scan : {false, true}) {
    auto want = test::random_floats(kRows * 2 * kHeads, 3);
    auto raw = want;
    const auto raw_there = upload(raw);
    const auto gates = upload(want);
    must(to_status(make_state_gates({.of_scan = of_scan,
                                     .raw = raw_there.data(),
                                     .stride = 2 * kHeads,
                                     .decay = decay_there.data(),
                                     .shift = shift_there.data(),
                                     .least = 0.3,
                                     .most = 1.2,
                                     .rows = kRows,
                                     .heads = kHeads,
                                     .gates = gates.data()},
                                    stream()),
                   "make_state_gates"));
    if (of_scan) {
      scan_gates(cpu_, {decay, shift, 0.3, 1.2}, {raw.data(), 2 * kHeads}, kRows, want);
    } else {
      delta_gates(cpu_, decay, shift, kRows, want);
    }
    const auto got = download(gates, want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-6 * (1 + std::abs(want[i]))) << of_scan << ", " << i;
    }
  }
  auto heads = test::random_floats(kRows * 200, 4);
  const auto there = upload(heads);
  must(to_status(make_unit_heads({.x = there.data(),
                                  .stride = 200,
                                  .rows = kRows,
                                  .heads = 3,
                                  .head_dim = 48,
                                  .factor = 0.25f},
                                 stream()),
                 "make_unit_heads"));
  l2_norm_heads(cpu_, {heads.data(), 200}, kRows, 3, 48, 0.25f);
  const auto got = download(there, heads.size());
  for (std::size_t i = 0; i < heads.size(); ++i) {
    EXPECT_NEAR(got[i], heads[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
