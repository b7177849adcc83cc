#include "quire/kernels/cuda/coded_wide_rows.cuh"
#include "quire/kernels/cuda/coded_wide_rows.h"

namespace quire::kernels::cuda {

cudaError_t launch_wide_bf16(const WideProduct& wide, cudaStream_t stream) {
  return launch_for_rows<tensor::DType::kBFloat16>(wide, stream);
}

}  // namespace quire::kernels::cuda
