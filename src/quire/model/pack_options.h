// PackOptions and PackReport: how weights are packed, and what came of it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include "quire/kernels/packed_weights.h"
#include "quire/model/decoder_weights.h"

namespace quire::model {

struct PackOptions {
  kernels::WeightFormat format = kernels::WeightFormat::kBf16;  // format of all matrices
  // Computes matrices that the model files have quantised from their own codes (weight_packer.h).
  bool keep_codes = false;
  std::function<void(double share)> progress;  // called with 0..1 in the opening thread
  // Receives the weights instead of the result.
  WeightSink* sink = nullptr;
};

struct PackReport {
  std::int64_t bytes_read = 0;  // bytes read of the model files; 0 for random or mapped weights
  double seconds = 0;
  std::int64_t packed_bytes = 0;  // bytes of all packed weights
  std::int64_t mapped_bytes = 0;  // the part of those that lies in a mapped file
  std::int64_t layer_bytes = 0;   // matrices of the layers
  std::int64_t expert_bytes = 0;  // the part of those that is of experts; a step reads some of them
  // Bytes of the matrices of the layers, by WeightFormat.
  std::array<std::int64_t, kernels::kWeightFormats> layer_bytes_of = {};
  std::int64_t head_bytes = 0;
  kernels::WeightFormat head_format = kernels::WeightFormat::kBf16;
  // The format that most bytes of the layers' matrices have.
  kernels::WeightFormat main_format = kernels::WeightFormat::kBf16;
  [[nodiscard]] double gigabytes_per_second() const {
    return seconds > 0 ? static_cast<double>(bytes_read) / seconds * 1e-9 : 0.0;
  }
};

}  // namespace quire::model
