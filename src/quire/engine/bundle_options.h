// How a model is opened, and the formats of weights and KV that follow from it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::engine {

struct BundleOptions {
  std::string dtype = "auto";  // dtype of LLMOptions, validated
  std::string quantize;
  std::string kv_dtype = "auto";
  std::uint64_t seed = 0;     // seed of random presets
  std::string chat_template;  // chat template of LLMOptions
  std::function<void(double)> progress;
  std::string weights_store;  // folder of packed weights; "": none. On the CPU
  model::Placement placement;
};

struct Formats {
  kernels::WeightFormat weights;
  tensor::DType kv;  // type that KV is computed in
  tensor::KVFormat stored;
  tensor::DType compute;
};

// Returns the format of codes that a kv_dtype names; nullopt for the others.
[[nodiscard]] std::optional<tensor::KVFormat> coded_kv_format(std::string_view kv_dtype);

// Returns kUnsupported, with the way out, where the model does not compute over KV of this format.
[[nodiscard]] Status check_kv_format(const model::ModelConfig& config, tensor::KVFormat format,
                                     bool on_gpu);

// Returns the formats of a model. kUnsupported where the device, or the model, does not compute in
// them.
[[nodiscard]] Result<Formats> choose_formats(const BundleOptions& options,
                                             const model::ModelConfig& config);

// Returns where a model of those formats computes.
[[nodiscard]] model::Placement placement_of(const BundleOptions& options, const Formats& formats);

}  // namespace quire::engine
