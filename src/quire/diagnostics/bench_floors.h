// Floors of bench: what this machine needs at least for a piece of work, from ceilings measured in
// the same run.
#pragma once

#include <cstdint>
#include <optional>

#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::diagnostics {

// Work of one step: `rows` tokens over `kv_tokens` tokens of KV in all (read once), of which each
// row attends to `attended_tokens` on average; `logit_rows` rows go through the head.
struct StepWork {
  double rows = 0;
  double attended_tokens = 0;
  double kv_tokens = 0;
  double logit_rows = 0;
};

class BenchFloors {
 public:
  // Measures; a second or two. The machine should be otherwise idle. `device`: of the accelerator
  // that the decoder is on.
  BenchFloors(const kernels::KernelContext& context, const model::Decoder& decoder,
              const tensor::KVGeometry& kv, const std::optional<kernels::DeviceCeilings>& device);

  // Seconds at the measured read bandwidth and compute peak, whichever is longer.
  [[nodiscard]] double floor_seconds(const StepWork& work) const;
  // Seconds that linear() alone needs for the step's matrices, at rates measured for this number of
  // rows; 0 on an accelerator.
  [[nodiscard]] double linear_seconds(const StepWork& work);
  // Bytes that the step cannot avoid reading: matrices once, KV once.
  [[nodiscard]] double bytes(const StepWork& work) const;
  // Return the bytes of the KV of so many tokens, and the seconds to read and write them once.
  [[nodiscard]] double kv_bytes(double tokens) const { return tokens * kv_token_bytes_; }
  [[nodiscard]] double kv_seconds(double tokens) const {
    return 2 * kv_bytes(tokens) / read_bandwidth_;
  }

 private:
  [[nodiscard]] double layer_flops(const StepWork& work) const;

  const kernels::KernelContext context_;
  const model::ModelConfig config_;
  const model::PackReport weights_;
  double kv_token_bytes_ = 0;
  double read_bandwidth_ = 0;  // bytes/s
  double peak_ = 0;            // FLOP/s of the format's multiply-adds
  bool on_device_ = false;
};

}  // namespace quire::diagnostics
