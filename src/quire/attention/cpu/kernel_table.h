// The seam between run.cc (compiled once, baseline) and the kernels (compiled per instruction set).
// Only plain structs and function pointers cross it; see quire/kernels/cpu/kernel_table.h for why.
//
// Everything is counted in words of 4 bytes: a word holds two bf16, one fp32, four codes of 8 bits
// or eight of 4. So all formats have one layout:
//                   K of a block  [head_dim / kPack][block slots] words
//                   V of a block  [block slots / kPack][head_dim] words
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/attention/tile.h"
#include "quire/device/cpu/isa.h"

namespace quire::attention {

inline constexpr int kChunkWords = 16;  // words of a query row that lie together: 64 bytes

// Softmax state of stacked rows. A row with max = -inf has seen nothing; its sum is 0.
struct SoftmaxState {
  float* max = nullptr;  // [rows], base-2 exponent
  float* sum = nullptr;  // [rows]
  float* acc = nullptr;  // [rows][padded_dim], not yet divided by sum
};

// A piece that the thread will probably read after the task's own.
struct NextPiece {
  const std::byte* kv = nullptr;  // KV of the task; null: none is known
  const std::int32_t* blocks = nullptr;
  int num_blocks = 0;
  int piece = 0;
};

// Units of a piece of codes that lie in `scratch` as they are multiplied.
struct WidenedUnits {
  int piece = -1;
  unsigned units = 0;  // bits
};

// Reduces canonical pieces [first_piece, last_piece) of one entry for up to kStripRows stacked rows
// over one KV head. Merges each into the state, in order. Blocks without a token that some row sees
// are not touched.
struct AttentionTask {
  // Rotated and scaled, [words of a row / kChunkWords][rows][kChunkWords].
  const std::byte* q = nullptr;
  const std::byte* kv = nullptr;         // the KV head of block 0
  std::ptrdiff_t block_stride = 0;       // bytes
  std::ptrdiff_t v_offset = 0;           // bytes
  const std::int32_t* blocks = nullptr;  // ids of the entry's blocks
  int num_blocks = 0;
  int block_tokens = 0;
  const TokenRange* visible = nullptr;  // [rows]
  int rows = 0;
  int padded_dim = 0;
  int first_piece = 0;
  int last_piece = 0;
  const float* q_scales = nullptr;  // int8: [rows], value of a unit of q
  std::ptrdiff_t scale_offset = 0;  // codes: bytes from a block's K to its scales
  float soft_cap = 0;               // scores s become cap * tanh(s / cap); 0: they stay
  std::byte* scratch = nullptr;     // scratch_bytes of the calling thread, 64-byte aligned
  WidenedUnits* widened = nullptr;  // units of the item's strips; null: nothing is kept
  SoftmaxState state;
  NextPiece next = {};  // a hint
};

// Returns the bytes of room for one piece of K and V in canonical order.
[[nodiscard]] constexpr std::size_t scratch_bytes(int padded_dim, int element_bytes) {
  return std::size_t{2} * kPieceTokens * static_cast<std::size_t>(padded_dim) *
         static_cast<std::size_t>(element_bytes);
}

// state = merge(state, piece), row by row, as the kernels do it between pieces.
struct MergeTask {
  SoftmaxState state;
  SoftmaxState piece;
  int rows = 0;
  int padded_dim = 0;
};

// Writes the query rows of a tile as AttentionTask::q wants them. Rotates each by its angles, as
// kernels::rotate_head does it, and scales it, so that scores are exponents of 2. Writes zeros
// behind head_dim.
struct QueryTask {
  const float* const* heads = nullptr;  // [rows] of [head_dim]
  const float* cos = nullptr;           // [rows / rows_per_angle][half]
  const float* sin = nullptr;           // sines, as for `cos`
  int rows = 0;
  int rows_per_angle = 1;  // neighbours that have the same angles
  int half = 0;
  int head_dim = 0;
  int padded_dim = 0;
  float scale = 0;           // log2(e) * softmax scale
  std::byte* out = nullptr;  // 64-byte aligned
  float* scales = nullptr;   // [rows], of int8
};

// A row's bits depend on that row and on what it sees only, in every function.
struct KernelTable {
  device::Isa isa = device::Isa::kPortable;
  bool bf16_queries = false;  // true: attend_bf16 takes bf16 queries; false: fp32
  // True: attend_int8 and attend_fp8 take bf16 queries. False: 16-bit integers, and fp32.
  bool bf16_code_queries = false;
  void (*load_queries_bf16)(const QueryTask&) = nullptr;
  void (*load_queries_fp32)(const QueryTask&) = nullptr;
  void (*load_queries_int8)(const QueryTask&) = nullptr;
  void (*attend_bf16)(const AttentionTask&) = nullptr;
  void (*attend_fp32)(const AttentionTask&) = nullptr;
  void (*attend_int8)(const AttentionTask&) = nullptr;
  void (*attend_fp8)(const AttentionTask&) = nullptr;
  void (*attend_int4)(const AttentionTask&) = nullptr;  // takes fp32 queries
  void (*merge)(const MergeTask&) = nullptr;
};

// Returns the kernels of an instruction set. Precondition: device::isa_supported(isa).
[[nodiscard]] const KernelTable& kernels_for(device::Isa isa);

const KernelTable& portable_kernels();
const KernelTable& avx2_kernels();
const KernelTable& avx512_vnni_kernels();
const KernelTable& avx512_kernels();
const KernelTable& amx_kernels();

}  // namespace quire::attention
