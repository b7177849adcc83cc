// Rotary embedding on the device: tables for the positions of a step (angles in double), keys
// rotated into the paged cache, queries rotated for attention. Su et al. 2021; pairs (i, i + half).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "quire/kernels/cuda/rows.h"
#include "quire/kernels/kv_codes.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels::cuda {

// cos and sin [positions, half] each.
struct RotaryTable {
  float* cos = nullptr;
  float* sin = nullptr;
  std::int32_t half = 0;  // 0: no rotation
};

// Fills the cosines and sines of `count` positions. inverse_frequencies: [half], on the device.
[[nodiscard]] cudaError_t fill_rotary(const double* inverse_frequencies, double scale,
                                      const std::int32_t* positions, std::int64_t count,
                                      const RotaryTable& table, cudaStream_t stream);

// Row r of q, k, v begins at qkv + r * stride; all offsets in floats.
struct QKVRows {
  const float* qkv = nullptr;
  std::int64_t stride = 0;
  std::int32_t heads = 0, kv_heads = 0, head_dim = 0;
};

// One layer of paged KV on the device (attention/cuda/args.h has the layout). Offsets in words of
// 16 bits.
struct KVLayer {
  tensor::DType dtype = tensor::DType::kBFloat16;
  Half* data = nullptr;
  std::ptrdiff_t head_stride = 0, block_stride = 0, v_offset = 0;
  std::int32_t stored_dim = 0;
  tensor::KVFormat format = tensor::KVFormat::kPlain;
  std::ptrdiff_t scale_offset = 0, v_scale_offset = 0;  // int8 only
  // Results of storing rows as codes, [count] each; null: not wanted. `refused` is set to 1 where
  // codes cannot hold a row (kernels/kv_codes.h). `errors` are increased by those of the row.
  std::uint8_t* refused = nullptr;
  KVErrorSums* errors = nullptr;
};

// The rows that append_kv() stores, the places, and how keys are rotated.
struct AppendedRows {
  RotaryTable table;
  const tensor::KVSlot* slots = nullptr;
  std::int64_t count = 0;
  // [count] or null: rows whose number is not `format` are left out, as they belong to other
  // layers.
  const std::uint8_t* formats = nullptr;
  std::uint8_t format = 0;
};

// Stores K, rotated by row t of the table, and V of rows t in [0, count) at slots[t]; what is
// behind head_dim becomes zero. Codes and scales have the bits of kernels/kv_codes.h. Slots are
// distinct and inside the cache: checked by the caller. A row whose slot has block -1 is not
// stored. The layer's format is not written by block (kv_seal.h).
[[nodiscard]] cudaError_t append_kv(const QKVRows& from, const AppendedRows& rows,
                                    const KVLayer& to, cudaStream_t stream);

// The queries to rotate, and the place to write them.
struct QueryRows {
  tensor::DType dtype = tensor::DType::kBFloat16;
  const std::int32_t* rows = nullptr;  // [count] row of qkv
  std::int64_t count = 0;
  std::int32_t stored_dim = 0;
  Half* out = nullptr;     // [count, heads, stored_dim]
  bool saturates = false;  // numbers that dtype does not reach become its largest
};

// Sets out[i] to the query of row rows[i], rotated by row i of `table`. Elements behind head_dim
// become zero.
[[nodiscard]] cudaError_t rotate_queries(const QKVRows& from, const RotaryTable& table,
                                         const QueryRows& to, cudaStream_t stream);

// Does what append_kv() and rotate_queries() do, as one kernel. The layer is of plain numbers, of
// the type of the queries.
[[nodiscard]] cudaError_t append_and_rotate(const QKVRows& from, const AppendedRows& rows,
                                            const KVLayer& to, const RotaryTable& table,
                                            const QueryRows& queries, cudaStream_t stream);

}  // namespace quire::kernels::cuda
