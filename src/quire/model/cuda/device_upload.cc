// Weights on their way to a GPU.
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "quire/attention/cuda/kernels.h"
#include "quire/attention/cuda/wide_rows.h"
#include "quire/attention/device_plan.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/cuda/cuda_backend.h"
#include "quire/model/cuda/device_weights.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/decoder_weights.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::model {
namespace {

using device::cuda::DeviceContext;

Status check_supported(const ModelConfig& config) {
  const int stored = config.kv_geometry(tensor::DType::kBFloat16, 32).stored_head_dim();
  if (std::ranges::find(attention::cuda::kHeadDims, stored) ==
          std::end(attention::cuda::kHeadDims) &&
      !attention::cuda::is_wide_head_dim(stored)) {
    return {ErrorCode::kUnsupported,
            base::str_cat("head_dim ", config.head_dim,
                          " has no kernel for a GPU yet; there are 32, 64, 96, 128, 256, 512 and "
                          "576, and what is below each by less than 32")};
  }
  const int group = config.heads / config.kv_heads;
  if (group > attention::kManyColumns) {
    return {ErrorCode::kUnsupported,
            base::str_cat(group, " query heads to a KV head have no kernel for a GPU yet; at most ",
                          attention::kManyColumns)};
  }
  return {};
}

class CudaUpload final : public DeviceUpload {
 public:
  CudaUpload(DeviceContext& device, const ModelConfig& config, bool deterministic,
             tensor::DType dtype)
      : device_(device),
        config_(config),
        deterministic_(deterministic),
        uploader_(device, config, dtype) {}

  [[nodiscard]] Status take(const WeightId& id, const kernels::PackedWeights& weights) override {
    return uploader_.take(id, weights);
  }
  [[nodiscard]] Status take(const WeightId& id, const std::vector<float>& values) override {
    return uploader_.take(id, values);
  }
  [[nodiscard]] Result<std::unique_ptr<DecoderBackend>> finish() override {
    QUIRE_TRY(auto weights, uploader_.finish());
    return cuda::make_backend(device_, config_, std::move(weights), deterministic_);
  }

 private:
  DeviceContext& device_;
  const ModelConfig& config_;
  const bool deterministic_;
  cuda::WeightUploader uploader_;
};

}  // namespace

Result<std::unique_ptr<DeviceUpload>> make_device_upload(device::Accelerator& accelerator,
                                                         const ModelConfig& config,
                                                         bool deterministic, tensor::DType dtype) {
  QUIRE_TRY_STATUS(check_supported(config));
  QUIRE_TRY_STATUS(accelerator.context().make_current());
  return std::unique_ptr<DeviceUpload>(
      std::make_unique<CudaUpload>(accelerator.context(), config, deterministic, dtype));
}

}  // namespace quire::model
