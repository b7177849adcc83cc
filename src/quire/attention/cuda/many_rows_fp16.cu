// Instantiates many_rows.cuh for one dtype.
#include <cuda_runtime.h>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/many_rows.cuh"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

template cudaError_t launch_many_rows<tensor::DType::kFloat16, tensor::KVFormat::kPlain, 32>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, tensor::KVFormat::kPlain, 64>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, tensor::KVFormat::kPlain, 96>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, tensor::KVFormat::kPlain, 128>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<tensor::DType::kFloat16, tensor::KVFormat::kPlain, 256>(
    const AttentionArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
