// ExpertMlp: the experts of a layer, on the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "quire/device/aligned_buffer.h"
#include "quire/kernels/grouped_linear.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/linear.h"
#include "quire/kernels/packed_rows.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/layer_plan.h"
#include "quire/model/routing.h"

namespace quire::model {

// Holds the scratch of one decoder. Rows are grouped by expert, experts run in order of ids, and
// the weights of an expert are read once. A row's bits depend on that row and the weights only.
class ExpertMlp {
 public:
  struct Call {
    const LayerWeights& layer;
    const LayerPlan& plan;
    std::span<const float> x;  // [rows, hidden], before the layer's norm
    std::int64_t rows = 0;
    std::span<float> out;  // [rows, hidden]
    bool accumulate = false;
  };

  // Sets out to the weighted sum of what each row's experts make of it, or adds the sum.
  void run(const kernels::KernelContext& context, const ModelConfig& config, const Call& call,
           kernels::LinearScratch& scratch);

 private:
  void route(const kernels::KernelContext& context, const ModelConfig& config, const Call& call,
             kernels::LinearScratch& scratch);
  void gather(const kernels::KernelContext& context, const ModelConfig& config, const Call& call);
  void gate(const kernels::KernelContext& context, const ModelConfig& config, const Call& call,
            kernels::LinearScratch& scratch);
  void gate_each(const kernels::KernelContext& context, const ModelConfig& config, const Call& call,
                 kernels::LinearScratch& scratch);
  void add_products(const kernels::KernelContext& context, const ModelConfig& config,
                    const Call& call, kernels::LinearScratch& scratch);
  void sum_products(const kernels::KernelContext& context, const ModelConfig& config,
                    const Call& call, kernels::LinearScratch& scratch);
  void set_groups(const LayerWeights& layer, bool down);

  // T rows, P = T * chosen places, E experts, H hidden, I intermediate.
  device::AlignedBuffer<float> logits_;  // [T, E]
  std::vector<std::int32_t> ids_;        // [T, chosen]
  std::vector<float> weights_;           // [T, chosen]
  Routing routing_;
  std::vector<kernels::RowGroup> groups_;  // those of the product in hand
  kernels::PackedRows packed_;             // [T, H]
  kernels::PackedRows grouped_;            // [P, H]
  kernels::PackedRows gated_;              // [P, I]
  kernels::PackedRows one_;                // rows of one expert, where I has no whole panels
  device::AlignedBuffer<float> both_;      // [rows of one expert, 2 I], likewise
  device::AlignedBuffer<float> inner_;     // [P, I], likewise
  device::AlignedBuffer<float> products_;  // [P, H in whole panels], of few rows
  device::AlignedBuffer<float> sums_;      // [T, H], of many rows
};

}  // namespace quire::model
