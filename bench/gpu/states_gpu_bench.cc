// The kernels of a layer with a state of Qwen3.6-27B's shape (48 value heads, 16 key heads, of 128)
// by the number of rows of one sequence: microseconds, and nanoseconds a row. Products are not
// among them.
//
//   states_gpu_bench [ROWS...]
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "quire/device/accelerator.h"
#include "quire/device/cuda/copy.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/state_ops.h"
#include "timing.h"

namespace quire::bench {
namespace {

using device::cuda::DeviceBuffer;
using kernels::cuda::StateRows;

constexpr std::int32_t kHeads = 48, kKeyHeads = 16, kDim = 128, kTaps = 4;
constexpr std::int32_t kKeys = kKeyHeads * kDim, kValues = kHeads * kDim;
constexpr std::int32_t kChannels = 2 * kKeys + kValues;
constexpr std::int64_t kTail = std::int64_t{kTaps - 1} * kChannels;
constexpr std::int64_t kState = kTail + std::int64_t{kHeads} * kDim * kDim;
constexpr std::int64_t kMostRows = 8192;

class Bench {
 public:
  Bench()
      : accelerator_(must(device::Accelerator::open("cuda"))),
        device_(accelerator_->context()),
        state_(make<float>(kState)),
        in_(make<float>(kMostRows * kChannels)),
        x_(make<float>(kMostRows * kChannels)),
        weights_(make<float>(std::int64_t{kTaps} * kChannels)),
        per_head_(make<float>(kHeads)),
        raw_(make<float>(kMostRows * 2 * kHeads)),
        gates_(make<float>(kMostRows * 2 * kHeads)),
        out_(make<float>(kMostRows * kValues)),
        runs_(make<StateRows>(1)),
        run_of_(make<std::int32_t>(kMostRows)) {
    fill(state_, 0.1f);
    fill(in_, 1.0f);
    fill(weights_, 0.3f);
    fill(per_head_, 0.1f);
    fill(raw_, 1.0f);
    must(device::cuda::fill_async(run_of_.data(), 0, run_of_.bytes(), stream()));
    must(device_.compute_stream().synchronize());
  }

  void run(const std::vector<std::int64_t>& rows) {
    std::printf("%s\n%6s %10s %10s %10s %10s %10s %10s\n", accelerator_->name().c_str(), "rows",
                "convolve", "tails", "unit heads", "gates", "update", "ns a row");
    for (const std::int64_t count : rows) {
      const StateRows only{.num_rows = static_cast<std::int32_t>(count), .from = 0, .to = 0};
      must(device::cuda::copy_async(runs_.data(), &only, sizeof(only), stream()));
      must(device_.compute_stream().synchronize());
      double all = 0;
      std::printf("%6lld", static_cast<long long>(count));
      for (const auto& part : parts(count)) {
        part();
        const double us = microseconds(device_, 4, [&](int) { part(); });
        std::printf(" %10.1f", us);
        all += us;
      }
      std::printf(" %10.1f\n", all * 1e3 / static_cast<double>(count));
    }
  }

 private:
  template <class T>
  DeviceBuffer<T> make(std::int64_t size) {
    return must(DeviceBuffer<T>::make(device_.device_pool(), static_cast<std::size_t>(size)));
  }
  [[nodiscard]] CUstream_st* stream() const { return device_.compute_stream().get(); }

  void fill(const DeviceBuffer<float>& buffer, float most) {
    std::uniform_real_distribution<float> uniform(-most, most);
    std::vector<float> values(buffer.size());
    for (float& value : values) {
      value = uniform(random_);
    }
    must(device::cuda::copy_async(buffer.data(), values.data(), buffer.bytes(), stream()));
    must(device_.compute_stream().synchronize());
  }

  // Returns what queues each kernel, as model/cuda/state_layers.cc does.
  std::vector<std::function<void()>> parts(std::int64_t rows) {
    const kernels::cuda::LayerStates states{.data = reinterpret_cast<std::byte*>(state_.data()),
                                            .stride = kState * std::int64_t{sizeof(float)},
                                            .runs = runs_.data(),
                                            .num_runs = 1,
                                            .run_of = run_of_.data(),
                                            .rows = rows};
    const kernels::cuda::ConvParams conv{.states = states,
                                         .in = in_.data(),
                                         .stride = kChannels,
                                         .weights = weights_.data(),
                                         .taps = kTaps,
                                         .channels = kChannels,
                                         .has_silu = true,
                                         .out = x_.data()};
    return {[=, this] { must(kernels::cuda::convolve(conv, stream())); },
            [=, this] { must(kernels::cuda::keep_tails(conv, stream())); },
            [=, this] {
              must(kernels::cuda::make_unit_heads({.x = x_.data(),
                                                   .stride = kChannels,
                                                   .rows = rows,
                                                   .heads = 2 * kKeyHeads,
                                                   .head_dim = kDim,
                                                   .factor = 1},
                                                  stream()));
            },
            [=, this] {
              must(kernels::cuda::make_state_gates({.raw = raw_.data(),
                                                    .stride = 2 * kHeads,
                                                    .decay = per_head_.data(),
                                                    .shift = per_head_.data(),
                                                    .rows = rows,
                                                    .heads = kHeads,
                                                    .gates = gates_.data()},
                                                   stream()));
            },
            [=, this] {
              must(kernels::cuda::update_states({.states = states,
                                                 .x = x_.data(),
                                                 .channels = kChannels,
                                                 .query = 0,
                                                 .key = kKeys,
                                                 .value = 2 * kKeys,
                                                 .heads = kHeads,
                                                 .key_heads = kKeyHeads,
                                                 .key_dim = kDim,
                                                 .value_dim = kDim,
                                                 .matrix = kTail,
                                                 .gates = gates_.data(),
                                                 .out = out_.data()},
                                                stream()));
            }};
  }

  const std::unique_ptr<device::Accelerator> accelerator_;
  device::cuda::DeviceContext& device_;
  std::mt19937 random_{1};
  DeviceBuffer<float> state_, in_, x_, weights_, per_head_, raw_, gates_, out_;
  DeviceBuffer<StateRows> runs_;
  DeviceBuffer<std::int32_t> run_of_;
};

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  std::vector<std::int64_t> rows;
  for (int i = 1; i < argc; ++i) {
    rows.push_back(std::clamp<std::int64_t>(std::atoll(argv[i]), 1, 8192));
  }
  if (rows.empty()) {
    rows = {1, 16, 256, 2048, 8192};
  }
  quire::bench::Bench().run(rows);
  return 0;
}
