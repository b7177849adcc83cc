// Instantiates many_rows.cuh over int4.
#include <cuda_runtime.h>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/many_rows.cuh"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kInt4, 32>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kInt4, 64>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kInt4, 96>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kInt4, 128>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kInt4, 256>(
    const AttentionArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
