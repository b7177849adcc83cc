// DecoderBackend: runs the passes of a decoder, on the CPU (cpu_backend.cc) or on a GPU
// (cuda/cuda_backend.cc).
//
// Thread rule: one pass at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/device/accelerator.h"
#include "quire/kernels/choice.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::model {

// Time of one forward by part, for the profiler and bench; seconds.
struct ForwardTiming {
  double linear = 0, attention = 0, other = 0;  // on the CPU
  double host = 0;  // planning attention; with a device everything but waiting for it
};

// Functions have the contracts of the functions of Decoder with their names.
class DecoderBackend {
 public:
  virtual ~DecoderBackend() = default;
  [[nodiscard]] virtual Result<std::span<float>> forward(const ForwardBatch& batch,
                                                         std::span<const tensor::PagedKVView> kv,
                                                         ForwardProbe* probe) = 0;
  [[nodiscard]] virtual bool chooses() const = 0;
  [[nodiscard]] virtual Status launch(const ForwardBatch& batch,
                                      std::span<const tensor::PagedKVView> kv) = 0;
  [[nodiscard]] virtual Result<std::span<float>> await() = 0;
  virtual void abandon() = 0;
  virtual void advance_states(std::span<const RightRows> /*right*/) {}  // devices have no states
  [[nodiscard]] virtual std::span<const TokenId> last_chosen() const = 0;
  [[nodiscard]] virtual std::span<const kernels::TokenLogprob> last_logprobs(
      std::size_t row) const = 0;
  [[nodiscard]] virtual std::span<const std::uint8_t> last_refused() const { return {}; }
  [[nodiscard]] virtual ForwardTiming last_timing() const = 0;
  [[nodiscard]] virtual attention::PlanCounters last_counters() const = 0;
};

// Takes the weights to a device.
class DeviceUpload : public WeightSink {
 public:
  // Returns the backend that computes with the weights. Precondition: all have been taken.
  [[nodiscard]] virtual Result<std::unique_ptr<DecoderBackend>> finish() = 0;
};

// Begins an upload to `accelerator`, which outlives the backend, as `config` does. With
// `deterministic` a row's bits do not depend on its batch. Activations are of `dtype`, bf16 or
// fp16, and so are weights that are not quantised. This call or take() fails with
// kUnsupported that names a size or format without a kernel, kOutOfBlocks when the device has no
// room, or kDevice.
[[nodiscard]] Result<std::unique_ptr<DeviceUpload>> make_device_upload(
    device::Accelerator& accelerator, const ModelConfig& config, bool deterministic,
    tensor::DType dtype);

}  // namespace quire::model
