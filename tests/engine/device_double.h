// DeviceDouble: the CPU's backend in the clothes of a device: it chooses tokens itself and lets a
// second step be launched before the first is awaited, whose logits are rubbish from then on. Work
// is done in launch, in the order of launches, as on a device's stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/kernels/choice.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::engine {

// Counts of a double's launches, and the faults that it makes. Launches count from 1; 0: none.
struct DoubleScript {
  int launches = 0, launched_ahead = 0, abandoned = 0;
  int leaves_to_host = 0;           // this launch gives its first row no token
  int refuses_launch = 0;           // kDevice
  int fails_in_await = 0;           // kDevice
  std::function<void()> in_launch;  // called by each
};

class DeviceDouble final : public model::DecoderBackend {
 public:
  // `script` is the engine thread's while the engine lives.
  DeviceDouble(std::unique_ptr<model::DecoderBackend> cpu, std::shared_ptr<DoubleScript> script);

  [[nodiscard]] Result<std::span<float>> forward(const model::ForwardBatch& batch,
                                                 std::span<const tensor::PagedKVView> kv,
                                                 model::ForwardProbe* probe) override;
  [[nodiscard]] bool chooses() const override { return true; }
  [[nodiscard]] Status launch(const model::ForwardBatch& batch,
                              std::span<const tensor::PagedKVView> kv) override;
  [[nodiscard]] Result<std::span<float>> await() override;
  void abandon() override;
  [[nodiscard]] std::span<const TokenId> last_chosen() const override { return result_.chosen; }
  [[nodiscard]] std::span<const kernels::TokenLogprob> last_logprobs(
      std::size_t row) const override {
    return result_.logprobs[row];
  }
  [[nodiscard]] model::ForwardTiming last_timing() const override { return cpu_->last_timing(); }
  [[nodiscard]] attention::PlanCounters last_counters() const override {
    return cpu_->last_counters();
  }

 private:
  struct Step {
    int number = 0;
    std::vector<float> logits;
    std::vector<TokenId> chosen;
    std::vector<std::vector<kernels::TokenLogprob>> logprobs;
  };
  std::unique_ptr<model::DecoderBackend> cpu_;
  std::shared_ptr<DoubleScript> script_;
  std::deque<Step> running_;
  std::vector<TokenId> chosen_last_;  // by the step launched last: what lies on the device
  Step result_;
};

}  // namespace quire::engine
