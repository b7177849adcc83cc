// Instantiates many_rows.cuh for one dtype.
#include <cuda_runtime.h>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/many_rows.cuh"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {

template cudaError_t launch_many_rows<tensor::DType::kFloat16, 32>(const AttentionArgs& args,
                                                                   cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, 64>(const AttentionArgs& args,
                                                                   cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, 96>(const AttentionArgs& args,
                                                                   cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, 128>(const AttentionArgs& args,
                                                                    cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, 256>(const AttentionArgs& args,
                                                                    cudaStream_t stream);

}  // namespace quire::attention::cuda
