// Floors of bench: what this machine needs at least for a piece of work, from peaks measured in the
// same run. Each is a lower bound. It counts the products and bytes that no order of the work can
// leave out, each kind of product at its own peak. It counts as many experts as rows that choose
// evenly read on average.
#pragma once

#include <cstdint>
#include <vector>

#include "quire/diagnostics/peaks.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/model/layer_plan.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::diagnostics {

// Work of one step: `sequences`, each with `rows` new tokens behind `own_tokens` of its own and
// `shared_tokens` that all see. `logit_rows` rows in all go through the head.
struct StepWork {
  double sequences = 1;
  double rows = 1;
  double own_tokens = 0;
  double shared_tokens = 0;
  double logit_rows = 0;

  [[nodiscard]] double all_rows() const { return sequences * rows; }
  // Returns the tokens that a row sees on average in a layer with that window (0: none). The row
  // itself counts.
  [[nodiscard]] double seen_tokens(std::int32_t window) const;
  // Returns the cached tokens that all rows see together in a layer with that window.
  [[nodiscard]] double read_tokens(std::int32_t window) const;
};

class BenchFloors {
 public:
  // Borrows `peaks`, which outlives it. `kv`: of the pool, with any number of tokens in a block.
  BenchFloors(Peaks& peaks, const model::Decoder& decoder, const tensor::KVGeometry& kv);

  // Returns the seconds at the measured read bandwidth or at the compute peaks, whichever is
  // longer.
  [[nodiscard]] double floor_seconds(const StepWork& work) const;
  // Returns the seconds that linear() alone needs for the step's matrices, at rates measured for
  // this number of rows; 0 on an accelerator.
  [[nodiscard]] double linear_seconds(const StepWork& work) const;
  // Returns the bytes that the step cannot avoid reading: matrices once, KV once.
  [[nodiscard]] double bytes(const StepWork& work) const;
  // Returns the bytes of the KV of so many tokens.
  [[nodiscard]] double kv_bytes(double tokens) const { return tokens * kv_layer_bytes_ * layers(); }

 private:
  // A matrix of one shape, multiplied with so many rows in all layers together.
  struct Matrix {
    double columns = 0;
    double depth = 0;
    double rows = 0;
    bool of_experts = false;
    [[nodiscard]] double flops() const { return 2 * columns * depth * rows; }
  };
  [[nodiscard]] std::vector<Matrix> layer_matrices(const StepWork& work) const;
  [[nodiscard]] Matrix head(const StepWork& work) const;
  // Returns the rows that the MLPs of a kind get in all layers together.
  [[nodiscard]] double mlp_rows(model::MlpKind kind, const StepWork& work) const;
  // Returns the share of a layer's experts that some of so many rows choose, on average.
  [[nodiscard]] double experts_read(double rows) const;
  [[nodiscard]] double expert_bytes(const StepWork& work) const;
  [[nodiscard]] double attention_flops(const StepWork& work) const;
  [[nodiscard]] double layers() const { return config_.layers; }

  Peaks& peaks_;
  const model::ModelConfig config_;
  const model::PackReport weights_;
  kernels::Product kv_product_;  // product that attention runs
  double kv_layer_bytes_ = 0;    // KV bytes of a token in one layer
};

}  // namespace quire::diagnostics
