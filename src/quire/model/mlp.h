// Mlp: what a layer does behind its mixer, on the CPU. It has one MLP for all rows, or experts and
// perhaps one MLP beside them.
#pragma once

#include <cstdint>
#include <span>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/expert_mlp.h"
#include "quire/model/state_weights.h"

namespace quire::model {

// Holds the scratch of one decoder. A row's bits depend on that row and the weights only.
class Mlp {
 public:
  using Call = ExpertMlp::Call;

  // Sets out to what the layer makes of x, or adds it.
  void run(const kernels::KernelContext& context, const ModelConfig& config, const Call& call,
           kernels::LinearScratch& scratch);

 private:
  // The two matrices of an MLP.
  struct Pair {
    const LinearWeights& first;  // rows: gate, up
    const LinearWeights& down;
  };
  void run_pair(const kernels::KernelContext& context, const ModelConfig& config, const Call& call,
                const Pair& pair, kernels::LinearScratch& scratch);
  void run_shared(const kernels::KernelContext& context, const ModelConfig& config,
                  const Call& call, kernels::LinearScratch& scratch);

  // T rows, H hidden, I intermediate.
  ExpertMlp experts_;
  kernels::PackedRows packed_;           // [T, H], or [T, I] of few rows
  kernels::PackedRows packed_gated_;     // [T, I], of many rows
  device::AlignedBuffer<float> both_;    // [T, 2 I], of few rows
  device::AlignedBuffer<float> inner_;   // [T, I], of few rows
  device::AlignedBuffer<float> shared_;  // [T, H], of the MLP beside experts
  device::AlignedBuffer<float> gates_;   // [T]
};

}  // namespace quire::model
