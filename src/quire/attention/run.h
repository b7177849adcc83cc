// Attention over paged KV, CPU backend. Each canonical piece of 256 tokens from a run's first token
// is reduced to (max, sum, values) in fp32. Pieces are merged left to right, entry after entry. So
// the bits of a row's output depend on its query and on the tokens that it sees. They never depend
// on the split of a prefill, the batch, the block size or the number of threads.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "quire/attention/attention_plan.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::attention {

struct RunParams {
  AttentionShape shape;
  std::span<const Entry> entries;
  const AttentionPlan* plan = nullptr;           // plan made of these entries
  std::int32_t window_tokens = 0;                // window of this layer, as given to PlanMaker
  std::span<const float> q;                      // row r at q[r * q_stride], heads x head_dim, not
  std::ptrdiff_t q_stride = 0;                   // rotated: rotation per entry happens here
  const kernels::RotaryTable* rotary = nullptr;  // rows as plan->query_positions
  std::span<float> out;  // [rows, heads, head_dim]; zeros if nothing is seen
  std::span<float> lse;  // [rows, heads] natural log, -inf if nothing is
                         // seen; may be empty
  // [heads] or empty: a logit of each head that joins the softmax of its rows and has no value. It
  // enters once, behind all entries, and counts in lse.
  std::span<const float> sinks = {};
  // [formats] or empty: the views that entries name by Entry::format, the first one being run()'s.
  // They differ in blocks and formats only. Empty: all entries have the one view.
  std::span<const tensor::PagedKVView> views = {};
};

// Scratch kept between calls.
class AttentionScratch {
 public:
  AttentionScratch();
  ~AttentionScratch();
  AttentionScratch(AttentionScratch&&) noexcept;
  AttentionScratch& operator=(AttentionScratch&&) noexcept;
  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Computes attention of one layer. fp32 KV: everything in fp32. bf16 KV: the query is rounded to
// bf16 after rotation, probabilities before they meet V; sums are fp32. int8: cpu/codes.h says what
// is rounded; sums of products are exact. Softmax is exact up to rounding of exp2 (fp32: 1.1e-7).
// A row may see runs of several formats. Each run is reduced by the kernels of its own.
// Tokens that a row does not see never reach it, whatever their slots hold. Preconditions
// (QUIRE_CHECK): plan made of these entries, view.head_dim = head_dim rounded up to 32, sizes of q,
// out, lse and rotary table fit. Runs on all threads of the pool; one call at a time per scratch.
// Allocates nothing once the scratch has grown. Bytes read:
// plan.counters.blocks_read * head_block_bytes.
void run(const kernels::KernelContext& context, const RunParams& params,
         const tensor::PagedKVView& view, AttentionScratch& scratch);

}  // namespace quire::attention
