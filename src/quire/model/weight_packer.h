// Packs the weights of a decoder out of model files, or out of random numbers.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_part.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/pack_options.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"

namespace quire::model {

// Compares every name and shape with the config before anything is packed. Then packs straight from
// the mapped rows and gives their pages back, so that memory holds one packed copy. `report` gets
// the bytes; the caller times. Errors:
//   kCorrupt      a tensor is missing or has another shape than the config wants (both are named),
//                 or a head differs from the embedding that it is said to be tied to
//   kUnsupported  a file holds a tensor that this model does not use. Not counted are
//                 buffers that old files carry although they follow from the config:
//                 *.rotary_emb.inv_freq, and GGUF's rope_freqs and rope_factors, which the config
//                 has read
//   kOutOfBlocks  no memory for a matrix
[[nodiscard]] Result<DecoderWeights> pack_weights(const kernels::KernelContext& context,
                                                  const ModelConfig& config,
                                                  const weights::ModelFiles& model_files,
                                                  const PackOptions& options, PackReport& report);

// Tells what PackOptions::keep_codes does on the CPU with each quantised tensor, by name: the
// packed format of its matrix, and how near the numbers come. Errors of TensorMap::find.
[[nodiscard]] Result<std::map<std::string, std::string>> computed_as(
    const ModelConfig& config, const weights::ModelFiles& model_files);

// Returns the bytes that all weights take packed with PackOptions::keep_codes. `format` is that of
// weights that are not quantised. Errors of TensorMap::find.
[[nodiscard]] Result<std::int64_t> own_weight_bytes(const ModelConfig& config,
                                                    const weights::ModelFiles& model_files,
                                                    kernels::WeightFormat format);

// Returns weights that view what is packed elsewhere and outlives them. Vectors are small and
// copied. kCorrupt when `parts` are not what the config wants, in its order.
[[nodiscard]] Result<DecoderWeights> view_weights(const ModelConfig& config,
                                                  std::span<const kernels::PackedPart> parts,
                                                  PackReport& report);
// Returns all packed parts, as view_weights takes them; borrowed.
[[nodiscard]] std::vector<kernels::PackedPart> packed_parts_of(const ModelConfig& config,
                                                               const DecoderWeights& weights);

// Makes seeded weights of the right shapes: matrices near normal with deviation 1 / sqrt(inputs),
// norms of one, small biases. A seed gives the same weights on any machine. Reads format and sink
// count of the options.
[[nodiscard]] Result<DecoderWeights> random_weights(const kernels::KernelContext& context,
                                                    const ModelConfig& config,
                                                    const PackOptions& options, std::uint64_t seed,
                                                    PackReport& report);

}  // namespace quire::model
