// Instantiates items_hopper.cuh for one dtype and head size.
#include <cuda_runtime.h>

#include "quire/attention/cuda/args.h"
#include "quire/attention/cuda/items_hopper.cuh"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

template cudaError_t launch_items_hopper<tensor::DType::kBFloat16, tensor::KVFormat::kPlain, 128>(
    const AttentionArgs& args, cudaStream_t stream);

}  // namespace quire::attention::cuda
