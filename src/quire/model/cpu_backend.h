// The decoder's passes on the CPU.
#pragma once

#include <memory>

#include "quire/kernels/kernel_context.h"
#include "quire/model/config.h"
#include "quire/model/decoder_backend.h"
#include "quire/model/decoder_weights.h"

namespace quire::model {

// Makes a backend for the CPU. `config` and `weights` outlive it.
[[nodiscard]] std::unique_ptr<DecoderBackend> make_cpu_backend(
    const kernels::KernelContext& context, const ModelConfig& config,
    const DecoderWeights& weights);

}  // namespace quire::model
