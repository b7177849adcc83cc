// Arguments of the attention kernels: pointers to device memory. Plain structs, passed by value.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "quire/attention/device_plan.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"

namespace quire::attention::cuda {

// One layer of KV on the device. Block b of KV head h begins at data + h * head_stride + b *
// block_stride and holds K [token][head_dim], and V [token][head_dim] from v_offset on. These are
// numbers of dtype or, of int8 and fp8, codes of one byte; kernels/cuda/int4_place.h says where
// those of int4 lie. Behind codes a block has scales from scale_offset on, as
// tensor/paged_kv_view.h says.
struct DeviceKV {
  std::uint16_t* data = nullptr;    // elements of dtype, or codes in pairs
  std::ptrdiff_t head_stride = 0;   // words of 16 bits
  std::ptrdiff_t block_stride = 0;  // words
  std::ptrdiff_t v_offset = 0;      // words
  std::int32_t block_tokens = 0;
  std::int32_t block_shift = -1;  // its logarithm where it is a power of two: no division then
  std::int32_t head_dim = 0;      // stored: a multiple of 32
  // Type of results, and of plain KV and its queries: kBFloat16 or kFloat16.
  tensor::DType dtype = tensor::DType::kBFloat16;
  tensor::KVFormat format = tensor::KVFormat::kPlain;
  std::ptrdiff_t scale_offset = 0;    // words, of codes only
  std::ptrdiff_t v_scale_offset = 0;  // words, int8 only: the scales of V
};

// In place of a type of results: DeviceKV::dtype says it. Kernels over codes compute in fp16
// whatever it is, and one instance serves both types.
inline constexpr tensor::DType kAnyResult = tensor::DType::kFloat32;

// Returns the type of rotated queries. It is fp16 over codes, which fp16 holds exactly.
constexpr tensor::DType query_dtype(tensor::DType dtype, tensor::KVFormat format) {
  return format == tensor::KVFormat::kPlain ? dtype : tensor::DType::kFloat16;
}

// Returns the DeviceKV::block_shift of a block size.
constexpr std::int32_t block_shift(std::int32_t block_tokens) {
  std::int32_t shift = 0;
  while ((1 << shift) < block_tokens) {
    ++shift;
  }
  return (1 << shift) == block_tokens ? shift : -1;
}

// A plan and its work space on the device.
struct DeviceWork {
  const DevicePlan::WorkItem* few = nullptr;
  const DevicePlan::WorkItem* many = nullptr;
  const DevicePlan::Row* rows = nullptr;
  const DevicePlan::PartialResults* partials = nullptr;
  const std::int32_t* blocks = nullptr;
  // Queues that Hopper's kernel reads in place of the numbers below.
  const DevicePlan::Queue* queues = nullptr;
  std::int32_t num_few = 0, num_many = 0;  // items beyond the plan's have no rows
  bool wide = false;                       // an item of few has more than 8 columns
  std::int32_t num_rows = 0;               // rows of the batch
  bool merges = true;         // true: partials of a row are merged; false: items write all rows
  bool merges_apart = false;  // launch_merge() merges, behind the items of several formats
  bool like_many = false;     // items of few have the bits of items of many
  // [partials, heads, stored head_dim]; not divided by the sum. Hopper's kernel writes fp16
  // numbers.
  float* partial_values = nullptr;
  float2* partial_stats = nullptr;  // [partials, heads] largest exponent (base 2) and sum
  // [rows, heads] partials that are there, for who merges in the same kernel; zero between kernels
  std::uint32_t* partials_there = nullptr;
};

struct AttentionArgs {
  DeviceKV kv;
  DeviceWork work;
  const std::uint16_t* q = nullptr;  // [queries, heads, stored head_dim], of query_dtype, rotated
  std::int32_t heads = 0, kv_heads = 0;
  std::int32_t head_dim = 0;     // head size of the model, at most the stored one
  float scale_log2 = 0;          // softmax scale times log2(e)
  float cap_log2 = 0;            // exponents x become cap * tanh(x / cap); 0: they stay
  std::uint16_t* out = nullptr;  // [rows, heads, head_dim]
  const float* sinks = nullptr;  // [heads] logits without values, or null
  float* lse = nullptr;          // [rows, heads] natural log, -inf if nothing is seen; may be null
};

}  // namespace quire::attention::cuda
