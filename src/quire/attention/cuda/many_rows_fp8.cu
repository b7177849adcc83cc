// Instantiates many_rows.cuh over fp8.
#include <cuda_runtime.h>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/many_rows.cuh"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kFp8, 32>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kFp8, 64>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kFp8, 96>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kFp8, 128>(
    const AttentionArgs& args, cudaStream_t stream);
template cudaError_t launch_many_rows<kAnyResult, tensor::KVFormat::kFp8, 256>(
    const AttentionArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
