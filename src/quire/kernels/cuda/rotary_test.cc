// Codes that a GPU stores, bit by bit those that kernels/kv_codes.h defines, and what it rotates.
#include "quire/kernels/cuda/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/rotary.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::test::must;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Numbers of all sizes; some heads are zero, tiny or beyond what a scale holds.
std::vector<float> numbers(std::size_t count, std::size_t head_dim) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  constexpr float kSizes[] = {1.0f, 0.0f, 3e-6f, 5e-39f, 8e6f, 100.0f, 1e-3f, 9e6f};
  std::vector<float> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    made[i] = uniform(random) * kSizes[i / head_dim * 5 % 13 % std::size(kSizes)];
  }
  made[7] = kNan;
  made[count - 3] = -kInfinity;
  made[count / 2] = 65504.0f * 127;  // the largest number that a scale reaches
  return made;
}

// Codes and scale of one token and head.
struct Stored {
  std::vector<std::int8_t> codes;
  std::uint16_t scale = 0;
  bool held = false;
};

Stored encoded(std::vector<float> x, std::size_t stored_dim) {
  x.resize(stored_dim);
  Stored made{.codes = std::vector<std::int8_t>(stored_dim)};
  made.held = encode_int8(x, made.codes, made.scale);
  return made;
}

// Adds the errors of codes of x.
void add(const std::vector<float>& x, const Stored& stored, double& error, double& whole) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float number = static_cast<float>(stored.codes[i]) * tensor::fp16_to_float(stored.scale);
    error += (double{number} - double{x[i]}) * (double{number} - double{x[i]});
    whole += double{x[i]} * double{x[i]};
  }
}

class AppendCodes : public device::cuda::test::GpuTest {
 protected:
  void expect_bits_of_the_cpu(int head_dim, int rotary_dim, int block_tokens);
};

void AppendCodes::expect_bits_of_the_cpu(int head_dim, int rotary_dim, int block_tokens) {
  constexpr int kTokens = 61, kHeads = 3, kKvHeads = 2;
  const tensor::KVGeometry geometry{.layers = 1,
                                    .kv_heads = kKvHeads,
                                    .head_dim = head_dim,
                                    .block_tokens = block_tokens,
                                    .format = tensor::KVFormat::kInt8};
  const int blocks = kTokens / block_tokens + 2, width = (kHeads + 2 * kKvHeads) * head_dim;
  const auto size = static_cast<std::size_t>(head_dim);
  const auto stored_dim = static_cast<std::size_t>(geometry.stored_head_dim());
  const std::vector<float> qkv = numbers(static_cast<std::size_t>(kTokens * width), size);
  kernels::RotaryTable table;
  table.half = rotary_dim / 2;
  for (int i = 0; i < kTokens * table.half; ++i) {
    table.cos.push_back(static_cast<float>(std::cos(0.37 * i)));
    table.sin.push_back(static_cast<float>(std::sin(0.37 * i)));
  }
  std::vector<tensor::KVSlot> slots;
  for (int token = 0; token < kTokens; ++token) {
    slots.push_back({blocks - 1 - token / block_tokens, token % block_tokens});
  }
  slots[5].block = -1;
  const auto words = static_cast<std::size_t>(geometry.block_bytes() / 2);
  const auto head_words = static_cast<std::ptrdiff_t>(geometry.head_block_bytes() / 2);
  const auto kv = upload(std::vector<std::uint16_t>(words * blocks, 0x7fc0));
  const auto from = upload(qkv), cosines = upload(table.cos), sines = upload(table.sin);
  const auto where = upload(slots);
  const auto refused = upload(std::vector<std::uint8_t>(kTokens));
  const auto errors = upload(std::vector<KVErrorSums>(kTokens));
  const auto v_offset = static_cast<std::ptrdiff_t>(geometry.v_offset() / 2);
  const auto scale_offset = static_cast<std::ptrdiff_t>(geometry.scale_offset() / 2);
  const std::ptrdiff_t stored_tokens = geometry.stored_block_tokens();
  must(device::cuda::to_status(
      append_kv({.qkv = from.data(),
                 .stride = width,
                 .heads = kHeads,
                 .kv_heads = kKvHeads,
                 .head_dim = head_dim},
                {{cosines.data(), sines.data(), table.half}, where.data(), kTokens},
                {.data = kv.data(),
                 .head_stride = head_words * blocks,
                 .block_stride = head_words,
                 .v_offset = v_offset,
                 .stored_dim = geometry.stored_head_dim(),
                 .format = tensor::KVFormat::kInt8,
                 .scale_offset = scale_offset,
                 .v_scale_offset = scale_offset + stored_tokens,
                 .refused = refused.data(),
                 .errors = errors.data()},
                stream()),
      "append_kv"));
  const std::vector<std::uint16_t> got = download(kv, words * blocks);
  const std::vector<std::uint8_t> got_refused = download(refused, std::size_t{kTokens});
  const std::vector<KVErrorSums> got_errors = download(errors, std::size_t{kTokens});

  device::ThreadPool pool(1);
  const KernelContext context{&kernels_for(device::Isa::kPortable), &pool};
  for (int token = 0; token < kTokens; ++token) {
    const tensor::KVSlot slot = slots[static_cast<std::size_t>(token)];
    bool held = true;
    KVErrorSums sums;
    for (int head = 0; head < kKvHeads; ++head) {
      for (const bool is_value : {false, true}) {
        const auto in = std::span(qkv).subspan(
            static_cast<std::size_t>(token * width +
                                     (kHeads + head + (is_value ? kKvHeads : 0)) * head_dim),
            size);
        std::vector<float> x(in.begin(), in.end());
        if (!is_value && table.half > 0) {
          rotate_head(context, table, token, in, x);
        }
        const Stored want = encoded(x, stored_dim);
        held = held && want.held;
        if (slot.block < 0) {
          continue;
        }
        add(x, want, is_value ? sums.value_error : sums.key_error,
            is_value ? sums.value_whole : sums.key_whole);
        const std::ptrdiff_t block = head * head_words * blocks + slot.block * head_words;
        std::vector<std::int8_t> codes(stored_dim);
        std::memcpy(codes.data(),
                    got.data() + block + (is_value ? v_offset : 0) +
                        slot.offset * static_cast<std::ptrdiff_t>(stored_dim / 2),
                    stored_dim);
        SCOPED_TRACE("token " + std::to_string(token) + ", head " + std::to_string(head) +
                     (is_value ? ", V" : ", K"));
        ASSERT_EQ(codes, want.codes);
        ASSERT_EQ(got[static_cast<std::size_t>(block + scale_offset +
                                               (is_value ? stored_tokens : 0) + slot.offset)],
                  want.scale);
      }
    }
    EXPECT_EQ(got_refused[static_cast<std::size_t>(token)], slot.block >= 0 && !held ? 1 : 0)
        << token;
    if (const KVErrorSums& told = got_errors[static_cast<std::size_t>(token)]; held) {
      EXPECT_NEAR(told.key_error, sums.key_error, sums.key_error * 1e-12) << token;
      EXPECT_NEAR(told.key_whole, sums.key_whole, sums.key_whole * 1e-12) << token;
      EXPECT_NEAR(told.value_error, sums.value_error, sums.value_error * 1e-12) << token;
      EXPECT_NEAR(told.value_whole, sums.value_whole, sums.value_whole * 1e-12) << token;
    }
  }
}

TEST_F(AppendCodes, HaveTheBitsOfTheCpu) {
  expect_bits_of_the_cpu(128, 128, 32);
  expect_bits_of_the_cpu(80, 64, 7);
  expect_bits_of_the_cpu(256, 256, 16);
  expect_bits_of_the_cpu(64, 0, 1);
}

// Rows of q, k and v as the CPU rotates and rounds them.
class AppendAndRotate : public device::cuda::test::GpuTest {
 protected:
  static constexpr int kTokens = 37, kHeads = 6, kKvHeads = 2, kBlockTokens = 7;

  static std::uint16_t rounded(tensor::DType dtype, float x) {
    return dtype == tensor::DType::kFloat16 ? tensor::float_to_fp16(x) : tensor::float_to_bf16(x);
  }
  void expect_bits_of_the_cpu(tensor::DType dtype, int head_dim, int rotary_dim, int stored_dim);
};

void AppendAndRotate::expect_bits_of_the_cpu(tensor::DType dtype, int head_dim, int rotary_dim,
                                             int stored_dim) {
  const int width = (kHeads + 2 * kKvHeads) * head_dim, blocks = kTokens / kBlockTokens + 2;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> qkv(static_cast<std::size_t>(kTokens * width));
  for (float& number : qkv) {
    number = normal(random);
  }
  kernels::RotaryTable table;
  table.half = rotary_dim / 2;
  for (int i = 0; i < kTokens * table.half; ++i) {
    table.cos.push_back(static_cast<float>(std::cos(0.37 * i)));
    table.sin.push_back(static_cast<float>(std::sin(0.37 * i)));
  }
  std::vector<tensor::KVSlot> slots;
  std::vector<std::int32_t> rows;  // queries are the tokens backwards
  for (int token = 0; token < kTokens; ++token) {
    slots.push_back({blocks - 1 - token / kBlockTokens, token % kBlockTokens});
    rows.push_back(kTokens - 1 - token);
  }
  slots[5].block = -1;
  const int v_offset = kBlockTokens * stored_dim, block_words = 2 * v_offset;
  const int head_words = block_words * blocks;
  constexpr std::uint16_t kUntouched = 0x7fc1;
  const auto kv = upload(
      std::vector<std::uint16_t>(static_cast<std::size_t>(head_words * kKvHeads), kUntouched));
  const auto queries = upload(std::vector<std::uint16_t>(
      static_cast<std::size_t>(kTokens * kHeads * stored_dim), kUntouched));
  const auto from = upload(qkv), cosines = upload(table.cos), sines = upload(table.sin);
  const auto where = upload(slots);
  const auto from_rows = upload(rows);
  const RotaryTable on_device{cosines.data(), sines.data(), table.half};
  must(device::cuda::to_status(append_and_rotate({.qkv = from.data(),
                                                  .stride = width,
                                                  .heads = kHeads,
                                                  .kv_heads = kKvHeads,
                                                  .head_dim = head_dim},
                                                 {on_device, where.data(), kTokens},
                                                 {.dtype = dtype,
                                                  .data = kv.data(),
                                                  .head_stride = head_words,
                                                  .block_stride = block_words,
                                                  .v_offset = v_offset,
                                                  .stored_dim = stored_dim},
                                                 on_device,
                                                 {.dtype = dtype,
                                                  .rows = from_rows.data(),
                                                  .count = kTokens,
                                                  .stored_dim = stored_dim,
                                                  .out = queries.data()},
                                                 stream()),
                               "append_and_rotate"));
  const auto got = download(kv, static_cast<std::size_t>(head_words * kKvHeads));
  const auto got_queries =
      download(queries, static_cast<std::size_t>(kTokens * kHeads * stored_dim));

  device::ThreadPool pool(1);
  const KernelContext context{&kernels_for(device::Isa::kPortable), &pool};
  const auto expect_head = [&](int token, int head, bool rotates, int table_row,
                               const std::uint16_t* stored) {
    const auto in =
        std::span(qkv).subspan(static_cast<std::size_t>(token * width + head * head_dim),
                               static_cast<std::size_t>(head_dim));
    std::vector<float> x(in.begin(), in.end());
    if (rotates && table.half > 0) {
      rotate_head(context, table, table_row, in, x);
    }
    x.resize(static_cast<std::size_t>(stored_dim));
    for (int dim = 0; dim < stored_dim; ++dim) {
      ASSERT_EQ(stored[dim], rounded(dtype, x[static_cast<std::size_t>(dim)]))
          << "token " << token << ", head " << head << ", dim " << dim;
    }
  };
  for (int token = 0; token < kTokens; ++token) {
    for (int head = 0; head < kHeads; ++head) {
      expect_head(rows[static_cast<std::size_t>(token)], head, true, token,
                  got_queries.data() + (token * kHeads + head) * stored_dim);
    }
    const tensor::KVSlot slot = slots[static_cast<std::size_t>(token)];
    for (int head = 0; head < kKvHeads && slot.block >= 0; ++head) {
      const std::uint16_t* const k =
          got.data() + head * head_words + slot.block * block_words + slot.offset * stored_dim;
      expect_head(token, kHeads + head, true, token, k);
      expect_head(token, kHeads + kKvHeads + head, false, token, k + v_offset);
    }
  }
  EXPECT_EQ(got[0], kUntouched) << "no token has the first block";
}

TEST_F(AppendAndRotate, HaveTheBitsOfTheCpu) {
  for (const tensor::DType dtype : {tensor::DType::kBFloat16, tensor::DType::kFloat16}) {
    expect_bits_of_the_cpu(dtype, 128, 128, 128);
    expect_bits_of_the_cpu(dtype, 80, 64, 96);
    expect_bits_of_the_cpu(dtype, 64, 0, 64);
    expect_bits_of_the_cpu(dtype, 18, 12, 32);  // no multiple of four
    expect_bits_of_the_cpu(dtype, 256, 256, 256);
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
