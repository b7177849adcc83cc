#include "quire/kernels/kv_append.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/sanitized.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/parallel.h"
#include "quire/kernels/plain_slot.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

constexpr std::int32_t kFp32Infinity = 0x7f800000;
constexpr std::int16_t kBf16Infinity = 0x7f80;
constexpr std::int64_t kScatterCost = 4;  // one scattered value, in units of kElementsPerTask
#ifdef NDEBUG
constexpr bool kComparesKept = base::kSanitized;
#else
constexpr bool kComparesKept = true;
#endif

// One head of one token in fp32; values beyond the model's head size stay zero.
using Head = std::array<float, kMaxHeadDim>;

// Asks for the lines that a head's element type T will be written to. K is one word in each of
// them, and a store that misses would hold up those behind it.
template <class T>
void ask_for(const PlainSlot<T>& address, int head_dim) {
  constexpr int kPerWord = 4 / sizeof(T);
  for (int d = 0; d < head_dim; d += kPerWord) {
    __builtin_prefetch(address.k + d / kPerWord * address.k_step, 1);
  }
  constexpr int kPerLine = 64 / sizeof(T);
  for (std::ptrdiff_t at = 0; at < head_dim * address.v_step; at += kPerLine) {
    __builtin_prefetch(address.v + at, 1);
  }
}

// Returns max |x| as bits, of which an infinity and a NaN have more than every number. `count` is a
// multiple of 32. Lanes let the compiler take many numbers at a time.
template <class Bits, class Number>
Bits largest(const Number* x, int count) {
  constexpr int kLanes = 32 / sizeof(Bits);
  constexpr Bits kWithoutSign = std::numeric_limits<Bits>::max();
  std::array<Bits, kLanes> most{};
  for (int d = 0; d < count; d += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto i = static_cast<std::size_t>(lane);
      const auto bits = static_cast<Bits>(std::bit_cast<Bits>(x[d + lane]) & kWithoutSign);
      most[i] = most[i] < bits ? bits : most[i];
    }
  }
  return std::ranges::max(most);
}

// Stores a head. Returns whether all of it are numbers; so does the next function, as rounded.
bool store_f32(const PlainSlot<float>& address, const Head& k, const Head& v, int head_dim) {
  for (int d = 0; d < head_dim; ++d) {
    address.key(d) = k[static_cast<std::size_t>(d)];
    address.value(d) = v[static_cast<std::size_t>(d)];
  }
  return largest<std::int32_t>(k.data(), head_dim) < kFp32Infinity &&
         largest<std::int32_t>(v.data(), head_dim) < kFp32Infinity;
}

bool store_bf16(const KernelTable& table, const PlainSlot<std::uint16_t>& address, const Head& k,
                const Head& v, int head_dim) {
  std::array<std::uint16_t, kMaxHeadDim> rounded;  // NOLINT: filled by the next line
  table.round_bf16(k.data(), head_dim, rounded.data());
  for (int d = 0; d < head_dim; d += 2) {  // a pair is a word of K
    std::memcpy(&address.key(d), rounded.data() + d, 2 * sizeof(std::uint16_t));
  }
  const std::int16_t largest_key = largest<std::int16_t>(rounded.data(), head_dim);
  table.round_bf16(v.data(), head_dim, rounded.data());
  for (int d = 0; d < head_dim; ++d) {
    address.value(d) = rounded[static_cast<std::size_t>(d)];
  }
  return std::max(largest_key, largest<std::int16_t>(rounded.data(), head_dim)) < kBf16Infinity;
}

// Loads one head of one token from the caller's rows, and rotates its key.
void load_head(const KernelContext& context, const KVAppendParams& params, std::int64_t token,
               int head, Head& k, Head& v) {
  const auto head_dim = static_cast<std::size_t>(params.head_dim);
  const std::ptrdiff_t first = std::ptrdiff_t{head} * params.head_dim;
  const std::int64_t row = params.row_of(token);
  const float* from_k = params.k.data() + row * params.k_stride + first;
  const float* from_v = params.v.data() + row * params.v_stride + first;
  if (params.rotary != nullptr) {
    rotate_head(context, *params.rotary, row, {from_k, head_dim}, {k.data(), head_dim});
  } else {
    std::copy_n(from_k, head_dim, k.data());
  }
  std::copy_n(from_v, head_dim, v.data());
}

void refuse(const KVAppendParams& params, std::size_t token) {
  if (!params.refused.empty() && params.refused[token] == 0) {
    params.refused[token] = 1;
  }
}

// Stores one head of a token. Returns whether all of it could be held.
bool store_head(const KernelContext& context, const tensor::PagedKVView& view, int head,
                tensor::KVSlot slot, const Head& k, const Head& v) {
  const auto stored_dim = static_cast<std::size_t>(view.head_dim);
  if (view.format == tensor::KVFormat::kInt8) {
    return store_int8(view, head, slot, {k.data(), stored_dim}, {v.data(), stored_dim});
  }
  return view.dtype == tensor::DType::kFloat32
             ? store_f32(plain_slot<float>(view, head, slot), k, v, view.head_dim)
             : store_bf16(*context.table, plain_slot<std::uint16_t>(view, head, slot), k, v,
                          view.head_dim);
}

void append_int8_token(const KernelContext& context, const KVAppendParams& params,
                       const tensor::PagedKVView& view, std::int64_t token) {
  const auto stored_dim = static_cast<std::size_t>(view.head_dim);
  const auto at = static_cast<std::size_t>(token);
  Head k = {};
  Head v = {};
  for (int head = 0; head < view.kv_heads; ++head) {
    load_head(context, params, token, head, k, v);
    if (!store_head(context, view, head, params.slots[at], k, v)) {
      refuse(params, at);
    }
    if (!params.errors.empty()) {
      add_errors(view, head, params.slots[at], {k.data(), stored_dim}, {v.data(), stored_dim},
                 params.errors[at]);
    }
  }
}

void append_token(const KernelContext& context, const KVAppendParams& params,
                  const tensor::PagedKVView& view, std::int64_t token) {
  const tensor::KVSlot slot = params.slots[static_cast<std::size_t>(token)];
  Head k = {};
  Head v = {};
  const bool fp32 = view.dtype == tensor::DType::kFloat32;
  bool held = true;
  for (int head = 0; head < view.kv_heads; ++head) {
    const int next = std::min(head + 1, view.kv_heads - 1);
    if (fp32) {
      ask_for(plain_slot<float>(view, next, slot), view.head_dim);
    } else {
      ask_for(plain_slot<std::uint16_t>(view, next, slot), view.head_dim);
    }
    load_head(context, params, token, head, k, v);
    held = store_head(context, view, head, slot, k, v) && held;
  }
  if (!held) {
    refuse(params, static_cast<std::size_t>(token));
  }
}

void check(const KVAppendParams& params, const tensor::PagedKVView& view) {
  const std::int64_t num_rows =
      params.rows.empty() ? std::ssize(params.slots) : std::ranges::max(params.rows) + 1;
  const std::int64_t width = std::int64_t{view.kv_heads} * params.head_dim;
  QUIRE_CHECK(params.refused.empty() || params.refused.size() == params.slots.size(),
              "a flag for every token, or none");
  QUIRE_CHECK(params.errors.empty() || params.errors.size() == params.slots.size(),
              "errors of every token, or of none");
  QUIRE_CHECK(!tensor::is_written_by_block(view.format),
              "blocks of fp8 and int4 are written whole, by seal_blocks");
  QUIRE_CHECK(view.format == tensor::KVFormat::kInt8 || view.dtype != tensor::DType::kFloat16,
              "the paged cache holds float32, bfloat16 or int8");
  QUIRE_CHECK(params.head_dim <= view.head_dim && view.head_dim <= kMaxHeadDim,
              "head larger than the cache's");
  QUIRE_CHECK(
      static_cast<std::int64_t>(params.k.size()) >= (num_rows - 1) * params.k_stride + width &&
          static_cast<std::int64_t>(params.v.size()) >= (num_rows - 1) * params.v_stride + width,
      "keys or values are short");
  if (params.rotary != nullptr) {
    const auto half = static_cast<std::size_t>(params.rotary->half);
    QUIRE_CHECK(2 * params.rotary->half <= params.head_dim, "rotation wider than the head");
    QUIRE_CHECK(params.rotary->cos.size() >= static_cast<std::size_t>(num_rows) * half,
                "one row of the rotary table per token");
  }
  QUIRE_CHECK(params.rows.empty() || params.rows.size() == params.slots.size(),
              "a row for every token, or none");
  QUIRE_CHECK(params.formats.empty() || params.formats.size() == params.slots.size(),
              "a format of every token, or of none");
  QUIRE_CHECK(params.kept.empty() || params.kept.size() == params.slots.size(),
              "a flag for every token, or none");
  for (std::size_t token = 0; token < params.slots.size(); ++token) {
    const tensor::KVSlot slot = params.slots[token];
    QUIRE_CHECK(!params.stores(token) || (slot.block >= 0 && slot.block < view.num_blocks &&
                                          slot.offset >= 0 && slot.offset < view.block_tokens),
                "slot outside the paged cache");
  }
}

// Returns whether a token is to be stored. Checks one that is there where builds compare.
bool is_written(const KernelContext& context, const KVAppendParams& params,
                const tensor::PagedKVView& view, std::int64_t token) {
  const auto index = static_cast<std::size_t>(token);
  if (!params.stores(index)) {
    return false;
  }
  const bool kept = !params.kept.empty() && params.kept[index] != 0;
  QUIRE_CHECK(!kept || !kComparesKept || is_kept(context, params, view, token),
              "KV that was there has other bits than computing it again");
  return !kept;
}

}  // namespace

bool is_kept(const KernelContext& context, const KVAppendParams& params,
             const tensor::PagedKVView& view, std::int64_t token) {
  const tensor::KVSlot slot = params.slots[static_cast<std::size_t>(token)];
  const tensor::KVSlot alone = {.block = 0, .offset = slot.offset};
  std::vector<std::byte> bytes(static_cast<std::size_t>(view.block_stride));
  tensor::PagedKVView block = view;
  block.data = bytes.data();
  block.num_blocks = 1;
  block.kv_heads = 1;
  const auto size = static_cast<std::size_t>(view.head_dim);
  std::array<float, kMaxHeadDim> there;  // NOLINT: filled by reading, as is the next one
  std::array<float, kMaxHeadDim> computed;
  const auto differ = [&] {
    return std::memcmp(there.data(), computed.data(), size * sizeof(float)) != 0;
  };
  Head k = {};
  Head v = {};
  for (int head = 0; head < view.kv_heads; ++head) {
    load_head(context, params, token, head, k, v);
    (void)store_head(context, block, 0, alone, k, v);
    read_key(view, head, slot, std::span(there).first(size));
    read_key(block, 0, alone, std::span(computed).first(size));
    if (differ()) {
      return false;
    }
    read_value(view, head, slot, std::span(there).first(size));
    read_value(block, 0, alone, std::span(computed).first(size));
    if (differ()) {
      return false;
    }
  }
  return true;
}

void kv_append(const KernelContext& context, const KVAppendParams& params,
               const tensor::PagedKVView& view) {
  if (params.slots.empty()) {
    return;
  }
  check(params, view);
  const std::int64_t cost = std::int64_t{view.kv_heads} * view.head_dim * kScatterCost;
  const bool int8 = view.format == tensor::KVFormat::kInt8;
  parallel_ranges(context, static_cast<std::int64_t>(params.slots.size()), cost,
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t token = first; token < last; ++token) {
                      if (is_written(context, params, view, token)) {
                        (int8 ? append_int8_token : append_token)(context, params, view, token);
                      }
                    }
                  });
}

}  // namespace quire::kernels
