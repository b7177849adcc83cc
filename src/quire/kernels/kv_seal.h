// Sealing: full blocks are stored in a format that is written block by block (fp8, int4), and
// opened again as plain numbers.
#pragma once

#include <cstdint>
#include <span>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {

// A block of one view whose tokens go to a block of another.
struct BlockPair {
  std::int32_t from = 0, to = 0;
};

// Blocks of one layer, with all their heads.
struct SealParams {
  std::span<const BlockPair> blocks;  // distinct `to`
  int head_dim = 0;                   // of the model: the last group of int4's V ends there
  // [blocks] or empty: set to refusal_of() a token whose values the format cannot hold. Those of
  // other blocks are left as they are.
  std::span<std::uint8_t> refused = {};
  // [blocks] or empty: sealing adds what storing a block's codes has changed. A refused block adds
  // nothing.
  std::span<KVErrorSums> errors = {};
};

// Returns what `refused` says of a token that stands so many tokens before the end of its block:
// one more. One more than 254 is 255, too.
[[nodiscard]] constexpr std::uint8_t refusal_of(int tokens_before_end) {
  return static_cast<std::uint8_t>(tokens_before_end < 254 ? tokens_before_end + 1 : 255);
}

// Seals blocks of `from`, of plain numbers or int8, in `to`, a view of fp8 or int4. Returns whether
// all were held. A block whose numbers encode_fp8 or encode_int4 refuses is not: NaN, infinities,
// scales out of range. No byte of its target is written then, for any head. Every token of a block
// has been stored. Runs on all threads of the pool. Allocates O(block) for each thread. Throws
// std::bad_alloc. Preconditions (QUIRE_CHECK): both views are the CPU's, with heads and blocks of
// one size. The blocks lie inside of them. int4 has blocks of whole runs of 32 tokens.
[[nodiscard]] bool seal_blocks(const KernelContext& context, const SealParams& params,
                               const tensor::PagedKVView& from, const tensor::PagedKVView& to);

// Opens blocks: writes what blocks of `from` hold to blocks of `to`, which is plain. `from` has
// codes, or numbers of another type. Numbers are rounded to the type of `to`, ties to even; in
// fp16, those beyond 65504 become 65504. Zeros stand behind `head_dim`. Preconditions as for
// seal_blocks.
void open_blocks(const KernelContext& context, std::span<const BlockPair> blocks, int head_dim,
                 const tensor::PagedKVView& from, const tensor::PagedKVView& to);

}  // namespace quire::kernels
