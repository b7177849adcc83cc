// DecoderBackend: what runs the passes of a decoder. The CPU's is cpu_backend.cc, a GPU's
// cuda/cuda_backend.cc.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "quire/attention/plan.h"
#include "quire/device/accelerator.h"
#include "quire/kernels/choice.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {

// Time of one forward by part, for the profiler and bench; seconds.
struct ForwardTiming {
  double linear = 0, attention = 0, other = 0;  // on the CPU
  double host = 0;  // planning attention; with a device all but waiting for it
};

class DecoderBackend {
 public:
  virtual ~DecoderBackend() = default;
  // As Decoder::forward.
  [[nodiscard]] virtual Result<std::span<float>> forward(const ForwardBatch& batch,
                                                         std::span<const tensor::PagedKVView> kv,
                                                         ForwardProbe* probe) = 0;
  // As those of Decoder.
  [[nodiscard]] virtual bool chooses() const = 0;
  [[nodiscard]] virtual Status launch(const ForwardBatch& batch,
                                      std::span<const tensor::PagedKVView> kv) = 0;
  [[nodiscard]] virtual Result<std::span<float>> await() = 0;
  virtual void abandon() = 0;
  // As Decoder::last_chosen.
  [[nodiscard]] virtual std::span<const TokenId> last_chosen() const = 0;
  // As Decoder::last_logprobs.
  [[nodiscard]] virtual std::span<const kernels::TokenLogprob> last_logprobs(
      std::size_t row) const = 0;
  [[nodiscard]] virtual ForwardTiming last_timing() const = 0;
  [[nodiscard]] virtual attention::PlanCounters last_counters() const = 0;
};

// Takes the weights to a device.
class DeviceUpload : public WeightSink {
 public:
  // What computes with them, once all have been taken.
  [[nodiscard]] virtual Result<std::unique_ptr<DecoderBackend>> finish() = 0;
};

// To `accelerator`, which outlives the backend; `config` does too. `deterministic`: a row's bits do
// not depend on its batch. kUnsupported naming what there is no kernel for, here or when it is
// taken; kOutOfBlocks when the device has no room, kDevice.
[[nodiscard]] Result<std::unique_ptr<DeviceUpload>> make_device_upload(
    device::Accelerator& accelerator, const ModelConfig& config, bool deterministic);

}  // namespace quire::model
