// Arguments of the attention kernels: pointers to device memory. Plain structs, passed by value.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>

#include "quire/attention/device_plan.h"
#include "quire/tensor/dtype.h"

namespace quire::attention::cuda {

// One layer of KV on the device. Block b of KV head h begins at data + h * head_stride + b *
// block_stride (elements) and holds K [token][head_dim], and V [token][head_dim] from v_offset on.
struct DeviceKV {
  std::uint16_t* data = nullptr;    // elements of dtype
  std::ptrdiff_t head_stride = 0;   // elements
  std::ptrdiff_t block_stride = 0;  // elements
  std::ptrdiff_t v_offset = 0;      // elements
  std::int32_t block_tokens = 0;
  std::int32_t block_shift = -1;  // its logarithm where it is a power of two: no division then
  std::int32_t head_dim = 0;      // stored: a multiple of 32
  // Type of KV, queries and results: kBFloat16 or kFloat16.
  tensor::DType dtype = tensor::DType::kBFloat16;
};

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
  bool merges = true;      // true: partials of a row are merged; false: items write all rows
  bool like_many = false;  // items of few have the bits of items of many
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
  const std::uint16_t* q = nullptr;  // [queries, heads, stored head_dim], rotated
  std::int32_t heads = 0, kv_heads = 0;
  std::int32_t head_dim = 0;     // head size of the model, at most the stored one
  float scale_log2 = 0;          // softmax scale times log2(e)
  std::uint16_t* out = nullptr;  // [rows, heads, head_dim]
  float* lse = nullptr;          // [rows, heads] natural log, -inf if nothing is seen; may be null
};

}  // namespace quire::attention::cuda
