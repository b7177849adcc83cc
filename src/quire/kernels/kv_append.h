// Rotates the keys of new tokens and stores keys and values into their slots of the paged cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {

// One layer, T tokens. k and v point at token 0; token t starts `stride` floats later and holds
// kv_heads heads of head_dim. Head sizes below the view's are padded with zeros.
struct KVAppendParams {
  std::span<const float> k, v;
  std::ptrdiff_t k_stride = 0, v_stride = 0;
  int head_dim = 0;
  const RotaryTable* rotary = nullptr;    // row t belongs to token t
  std::span<const tensor::KVSlot> slots;  // [T], distinct
  // [T] or empty: rows of k, v and the rotary table that the tokens are, which may come twice.
  std::span<const std::int32_t> rows = {};
  // [T] or empty: a 0 becomes 1 for a token whose K or V the format cannot hold. Codes: kv_codes.h;
  // they are zeros then. Plain numbers: NaN, an infinity, or a number that the type rounds to one.
  std::span<std::uint8_t> refused = {};
  // [T] or empty: int8 adds what storing a token's codes has changed.
  std::span<KVErrorSums> errors = {};
  // [T] or empty: tokens whose number is not `format` are left out, as they belong to other views.
  std::span<const std::uint8_t> formats = {};
  std::uint8_t format = 0;
  // [T] or empty: tokens not 0 are there, and not written. Debug and sanitized builds compare them.
  std::span<const std::uint8_t> kept = {};

  [[nodiscard]] std::int64_t row_of(std::int64_t token) const {
    return rows.empty() ? token : rows[static_cast<std::size_t>(token)];
  }
  // Returns whether a token is of this call's view.
  [[nodiscard]] bool stores(std::size_t token) const {
    return formats.empty() || formats[token] == format;
  }
};

// Writes K and V of each token to its slot. Preconditions (QUIRE_CHECK): every slot lies inside the
// view, whose format is not written by block (kv_seal.h). Bytes written: T * kv_heads * 2 *
// head_dim * dtype; of int8, scales too.
void kv_append(const KernelContext& context, const KVAppendParams& params,
               const tensor::PagedKVView& view);

// Returns whether a token's slot has what kv_append would write.
[[nodiscard]] bool is_kept(const KernelContext& context, const KVAppendParams& params,
                           const tensor::PagedKVView& view, std::int64_t token);

}  // namespace quire::kernels
