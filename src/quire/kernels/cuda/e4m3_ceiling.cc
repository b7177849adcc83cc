#include "quire/kernels/cuda/e4m3_ceiling.h"

#include <cublasLt.h>
#include <cublas_api.h>
#include <library_types.h>

#include <cstddef>
#include <cstdint>

#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/cuda/cublas_lt.h"
#include "quire/result.h"

namespace quire::kernels::cuda {
namespace {

Result<Owned<cublasLtMatrixLayout_t>> square(const CublasLt& lt, cudaDataType type,
                                             std::int64_t size) {
  cublasLtMatrixLayout_t made = nullptr;
  const auto side = static_cast<std::uint64_t>(size);
  QUIRE_TRY_STATUS(
      to_status(lt.layout_create(&made, type, side, side, size), "cublasLtMatrixLayoutCreate"));
  return Owned<cublasLtMatrixLayout_t>(made, lt.layout_destroy);
}

// Describes out = x^T x: the first factor of 8-bit floats must be transposed.
Result<Owned<cublasLtMatmulDesc_t>> describe(const CublasLt& lt) {
  cublasLtMatmulDesc_t made = nullptr;
  QUIRE_TRY_STATUS(
      to_status(lt.desc_create(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate"));
  Owned<cublasLtMatmulDesc_t> product(made, lt.desc_destroy);
  const cublasOperation_t transpose = CUBLAS_OP_T;
  const std::int8_t fast = 1;
  QUIRE_TRY_STATUS(
      to_status(lt.desc_set(made, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
                "cublasLtMatmulDescSetAttribute"));
  QUIRE_TRY_STATUS(to_status(lt.desc_set(made, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast),
                             "cublasLtMatmulDescSetAttribute"));
  return product;
}

}  // namespace

Result<E4m3Products> E4m3Products::make(device::cuda::DeviceContext& device, const std::uint8_t* x,
                                        void* out, std::int64_t size) {
  E4m3Products made;
  made.device_ = &device;
  made.x_ = x;
  made.out_ = out;
  QUIRE_TRY(made.lt_, CublasLt::load());
  const CublasLt& lt = *made.lt_;
  cublasLtHandle_t handle = nullptr;
  QUIRE_TRY_STATUS(to_status(lt.create(&handle), "cublasLtCreate"));
  made.handle_ = {handle, lt.destroy};
  QUIRE_TRY(made.product_, describe(lt));
  QUIRE_TRY(made.factor_, square(lt, CUDA_R_8F_E4M3, size));
  QUIRE_TRY(made.result_, square(lt, CUDA_R_16BF, size));
  QUIRE_TRY(made.workspace_,
            device::cuda::DeviceBuffer<std::byte>::make(device.device_pool(), kWorkspaceBytes));
  cublasLtMatmulPreference_t preference = nullptr;
  QUIRE_TRY_STATUS(to_status(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate"));
  const Owned<cublasLtMatmulPreference_t> owned(preference, lt.preference_destroy);
  QUIRE_TRY_STATUS(to_status(lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspaceBytes, sizeof kWorkspaceBytes),
                             "cublasLtMatmulPreferenceSetAttribute"));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  QUIRE_TRY_STATUS(to_status(
      lt.get_heuristic(handle, made.product_.get(), made.factor_.get(), made.factor_.get(),
                       made.result_.get(), made.result_.get(), preference, 1, &found, &count),
      "cublasLtMatmulAlgoGetHeuristic"));
  if (count == 0) {
    return {ErrorCode::kDevice, "cuBLASLt has no products of 8-bit floats for this device"};
  }
  made.algorithm_ = found.algo;
  return made;
}

Status E4m3Products::run() const {
  const float one = 1, zero = 0;
  return to_status(
      lt_->matmul(handle_.get(), product_.get(), &one, x_, factor_.get(), x_, factor_.get(), &zero,
                  out_, result_.get(), out_, result_.get(), &algorithm_, workspace_.data(),
                  kWorkspaceBytes, device_->compute_stream().get()),
      "cublasLtMatmul");
}

}  // namespace quire::kernels::cuda
