// Instantiates items_hopper.cuh for one head size over fp8.
#include <cuda_runtime.h>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/items_hopper.cuh"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

template cudaError_t launch_items_hopper<kAnyResult, tensor::KVFormat::kFp8, 128>(
    const AttentionArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
