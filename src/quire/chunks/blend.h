// Blend: computing a part of a composition's context tokens again, this time with everything before
// them in sight.
//
// The tokens' blocks become the request's own, in the pool's own format. Their rows run through the
// model with keys and values stored over the old ones, at the same places in their segments
// (recomputed_runs.h). Rows see by position:
// a row sees earlier segments whole, and its own segment up to itself. So it never sees the future,
// whichever tokens were chosen. With all tokens chosen the blend equals a full causal prefill.
// tests/chunks/causality_test.cc and blend_test.cc show both.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/chunk_types.h"
#include "quire/chunks/hidden_states.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kv/composition.h"
#include "quire/kv/ledger.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::chunks {

// Holds what blending works on. Borrows all of it.
struct BlendContext {
  kv::Ledger& ledger;
  kv_store::PagedPool& paged_pool;
  model::Decoder& decoder;
  std::span<const tensor::PagedKVView> views;  // [formats][layers]
  std::int32_t max_rows = 0;                   // most rows of one forward pass
  const kernels::KernelContext& kernels;
  kv_store::StatePool* states = nullptr;  // for Blend::layers and hidden states
  const HiddenStates* hidden = nullptr;   // for Blend::layers; has the parts' rows then
};

struct BlendResult {
  std::vector<kv::SegmentUse> uses;  // uses of the whole composition, with segments of its own
  std::vector<kv::SegmentId> own;    // segments to drop once they are composed
  // Tokens, [parts]. Tokens that run through a part of the layers count as that part of them.
  std::vector<std::int64_t> recomputed;
  std::int64_t recomputed_tokens = 0;  // recomputed tokens of all parts
  double share = 0;  // layers times rows that were computed, of those of all context tokens
};

// Chooses tokens and computes them again. Preconditions: nothing of the composition is missing; the
// spec's mode is kBlend (resolve has checked share and tokens). kOutOfBlocks when the copies do not
// fit. Cost: a forward pass of the chosen tokens; kQueryAttention and kValueDeviation another one
// of the query, or of all context tokens through one layer.
[[nodiscard]] Result<BlendResult> blend(const BlendContext& context, const Blend& how,
                                        const kv::ResolvedComposition& composition);

struct BlendCost {
  std::int64_t tokens = 0;  // tokens to compute again
  std::int64_t blocks = 0;  // blocks to copy for them. For kValueDeviation and kQueryAttention,
                            // which choose by the KV, the most that there can be
};
[[nodiscard]] BlendCost blend_cost(const Blend& how, const kv::ResolvedComposition& composition,
                                   std::int32_t block_tokens);

// Returns the indices of the ceil(share * scores.size()) largest scores, ties to the lower index,
// ascending.
[[nodiscard]] std::vector<std::int32_t> largest(std::span<const double> scores, double share);

}  // namespace quire::chunks
