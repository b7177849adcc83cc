// Blocks that a GPU seals, byte by byte those that the CPU seals, and their way to the host and
// back.
#include "quire/kernels/cuda/kv_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/gpu_test_util.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/cuda/blocks.h"
#include "quire/kernels/cuda/int4_place.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_seal.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels::cuda {
namespace {

using device::cuda::test::must;
using tensor::DType;
using tensor::KVFormat;

constexpr int kBlocks = 9, kKvHeads = 2;

// A pool of one layer as both sides know it.
tensor::PagedKVView view_of(const tensor::KVGeometry& geometry, std::byte* data) {
  const auto bytes = static_cast<std::ptrdiff_t>(geometry.head_block_bytes());
  return {.data = data,
          .head_stride = bytes * kBlocks,
          .block_stride = bytes,
          .v_offset = static_cast<std::ptrdiff_t>(geometry.v_offset()),
          .num_blocks = kBlocks,
          .kv_heads = geometry.kv_heads,
          .head_dim = geometry.stored_head_dim(),
          .block_tokens = geometry.block_tokens,
          .dtype = geometry.dtype,
          .format = geometry.format,
          .scale_offset = static_cast<std::ptrdiff_t>(geometry.scale_offset())};
}

KVLayer layer_of(const tensor::KVGeometry& geometry, void* data) {
  const auto words = static_cast<std::ptrdiff_t>(geometry.head_block_bytes() / 2);
  return {.dtype = geometry.dtype,
          .data = static_cast<Half*>(data),
          .head_stride = words * kBlocks,
          .block_stride = words,
          .v_offset = static_cast<std::ptrdiff_t>(geometry.v_offset() / 2),
          .stored_dim = geometry.stored_head_dim(),
          .format = geometry.format,
          .scale_offset = static_cast<std::ptrdiff_t>(geometry.scale_offset() / 2)};
}

KVPool pool_of(const tensor::KVGeometry& geometry, void* data) {
  return {.data = static_cast<Half*>(data),
          .heads = kKvHeads,
          .head_words = geometry.head_block_bytes() / 2 * kBlocks,
          .slots = geometry.stored_block_tokens(),
          .head_dim = geometry.stored_head_dim(),
          .format = geometry.format};
}

// Numbers of one token and head in block `block`; channels have sizes and offsets of their own.
float number(std::mt19937& random, int block, int token, int channel) {
  const float x = std::normal_distribution<float>()(random);
  switch (block) {
    case 0:
      return channel % 16 == 3 ? 40 + x : x;  // outlier channels
    case 1:
      return channel % 3 == 0 ? 0.0f : channel % 3 == 1 ? -2.5f : x * 1e-4f;
    case 2:
      return x * std::exp2(static_cast<float>(channel % 24 - 18));
    case 3:
      return token % 2 == 0 ? -0.0f : 0.0f;
    case 4:
      return x * 1e-30f;  // below fp16, and scales that count as 0
    case 5:
      return channel == 5 && token == 7 ? std::numeric_limits<float>::quiet_NaN() : x;
    case 6:
      return channel == 2 && token == 1 ? -std::numeric_limits<float>::infinity() : x;
    default:
      return x * 3e4f;
  }
}

class SealOnGpu : public device::cuda::test::GpuTest {
 protected:
  void expect_bits_of_the_cpu(DType dtype, KVFormat format, int head_dim, int block_tokens);

  // Returns blocks as the host lays them out.
  std::vector<std::byte> packed(const tensor::KVGeometry& geometry, void* data) {
    std::vector<std::int32_t> all(kBlocks);
    std::iota(all.begin(), all.end(), 0);
    const auto ids = upload(all);
    const auto size = static_cast<std::size_t>(geometry.block_bytes() * kBlocks);
    const auto host = upload(std::vector<std::byte>(size));
    must(device::cuda::to_status(
        pack_blocks(pool_of(geometry, data), {0, kKvHeads, ids.data(), kBlocks},
                    reinterpret_cast<Half*>(host.data()), stream()),
        "pack_blocks"));
    return download(host, size);
  }
  // Returns the bytes on the device that unpacking gives.
  std::vector<std::byte> unpacked(const tensor::KVGeometry& geometry,
                                  const std::vector<std::byte>& host) {
    std::vector<std::int32_t> all(kBlocks);
    std::iota(all.begin(), all.end(), 0);
    const auto ids = upload(all);
    const auto from = upload(host);
    const auto to = upload(std::vector<std::byte>(host.size()));
    must(device::cuda::to_status(
        unpack_blocks(pool_of(geometry, to.data()), {0, kKvHeads, ids.data(), kBlocks},
                      reinterpret_cast<const Half*>(from.data()), stream()),
        "unpack_blocks"));
    return download(to, host.size());
  }
};

void SealOnGpu::expect_bits_of_the_cpu(DType dtype, KVFormat format, int head_dim,
                                       int block_tokens) {
  const tensor::KVGeometry plain{.layers = 1,
                                 .kv_heads = kKvHeads,
                                 .head_dim = head_dim,
                                 .dtype = dtype,
                                 .block_tokens = block_tokens};
  tensor::KVGeometry coded = plain;
  coded.format = format;
  std::mt19937 random(static_cast<std::uint32_t>(head_dim + block_tokens));
  const int dim = plain.stored_head_dim();
  std::vector<std::uint16_t> numbers(static_cast<std::size_t>(plain.block_bytes() / 2 * kBlocks));
  for (int head = 0; head < kKvHeads; ++head) {
    for (int block = 0; block < kBlocks; ++block) {
      for (int part = 0; part < 2; ++part) {
        auto* const to = numbers.data() + (head * kBlocks + block) * plain.head_block_bytes() / 2 +
                         part * plain.v_offset() / 2;
        for (int token = 0; token < block_tokens; ++token) {
          for (int channel = 0; channel < head_dim; ++channel) {
            const float x = number(random, block, token, channel);
            to[token * dim + channel] =
                dtype == DType::kFloat16 ? tensor::float_to_fp16(x) : tensor::float_to_bf16(x);
          }
        }
      }
    }
  }
  const auto from = upload(numbers);
  const auto size = static_cast<std::size_t>(coded.block_bytes() * kBlocks);
  const auto to = upload(std::vector<std::byte>(size, std::byte{0x5a}));
  std::vector<SealedBlock> blocks;
  std::vector<BlockPair> pairs;
  for (int i = 0; i < kBlocks; ++i) {  // one of the list is left out
    blocks.push_back({.to_format = 1, .from = i == 8 ? -1 : i, .to = 8 - i, .last_row = 2 * i});
    if (i != 8) {
      pairs.push_back({i, 8 - i});
    }
  }
  const auto list = upload(blocks);
  const auto refused = upload(std::vector<std::uint8_t>(2 * kBlocks));
  const auto errors = upload(std::vector<KVErrorSums>(2 * kBlocks));
  SealViews views{.kv_heads = kKvHeads, .head_dim = head_dim, .block_tokens = block_tokens};
  views.of[0] = layer_of(plain, from.data());
  views.of[1] = layer_of(coded, to.data());
  must(device::cuda::to_status(
      seal_blocks(views, list.data(), kBlocks, {refused.data(), errors.data()}, stream()),
      "seal_blocks"));
  const std::vector<std::byte> got = packed(coded, to.data());
  const auto got_refused = download(refused, std::size_t{2 * kBlocks});
  const auto got_errors = download(errors, std::size_t{2 * kBlocks});

  std::vector<std::byte> host = packed(plain, from.data());
  std::vector<std::byte> want(size, std::byte{0x5a});
  std::vector<std::uint8_t> want_refused(pairs.size());
  std::vector<KVErrorSums> want_errors(pairs.size());
  device::ThreadPool pool(1);
  const KernelContext context{&kernels_for(device::Isa::kPortable), &pool};
  EXPECT_FALSE(kernels::seal_blocks(
      context,
      {.blocks = pairs, .head_dim = head_dim, .refused = want_refused, .errors = want_errors},
      view_of(plain, host.data()), view_of(coded, want.data())));
  const auto head_bytes = static_cast<std::size_t>(coded.head_block_bytes());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::string what = "block " + std::to_string(i);
    EXPECT_EQ(got_refused[2 * i] != 0, want_refused[i] != 0) << what;
    if (want_refused[i] != 0) {
      continue;
    }
    for (std::size_t head = 0; head < kKvHeads; ++head) {
      const std::size_t at = (head * kBlocks + static_cast<std::size_t>(pairs[i].to)) * head_bytes;
      const auto ours = std::span(got).subspan(at, head_bytes);
      const auto theirs = std::span(want).subspan(at, head_bytes);
      const auto [a, b] = std::ranges::mismatch(ours, theirs);
      ASSERT_TRUE(a == ours.end())
          << what << ", head " << head << ", byte " << a - ours.begin() << " of " << head_bytes
          << " (V from " << coded.v_offset() << ", scales from " << coded.scale_offset()
          << "): " << std::to_integer<int>(*a) << " instead of " << std::to_integer<int>(*b);
    }
    const KVErrorSums& told = got_errors[2 * i];
    const KVErrorSums& sums = want_errors[i];
    EXPECT_NEAR(told.key_error, sums.key_error, sums.key_error * 1e-12) << what;
    EXPECT_NEAR(told.key_whole, sums.key_whole, sums.key_whole * 1e-12) << what;
    EXPECT_NEAR(told.value_error, sums.value_error, sums.value_error * 1e-12) << what;
    EXPECT_NEAR(told.value_whole, sums.value_whole, sums.value_whole * 1e-12) << what;
  }
  const std::vector<std::byte> on_device = download(to, size);
  EXPECT_EQ(unpacked(coded, got), on_device) << "back on the device";
}

TEST_F(SealOnGpu, HasTheBytesOfTheCpu) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const KVFormat format : {KVFormat::kInt4, KVFormat::kFp8}) {
      for (const auto& [head_dim, block_tokens] :
           {std::pair{128, 32}, {64, 64}, {80, 32}, {256, 128}, {96, 256}, {18, 32}}) {
        SCOPED_TRACE(std::string(tensor::dtype_name(dtype)) + " to " +
                     tensor::kv_format_name(format, dtype) + ", heads of " +
                     std::to_string(head_dim) + ", blocks of " + std::to_string(block_tokens));
        expect_bits_of_the_cpu(dtype, format, head_dim, block_tokens);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
    for (const auto& [head_dim, block_tokens] : {std::pair{64, 16}, {80, 7}, {128, 9}}) {
      expect_bits_of_the_cpu(dtype, KVFormat::kFp8, head_dim, block_tokens);
    }
  }
}

// A word of the codes of a token lies in one place, and all places are taken.
TEST(Int4Place, EveryWordOfABlockHasAPlaceOfItsOwn) {
  for (const int head_dim : {32, 96, 128}) {
    constexpr int kTokens = 64;
    std::vector<bool> taken(static_cast<std::size_t>(kTokens * head_dim / 8));
    for (int slot = 0; slot < kTokens; ++slot) {
      EXPECT_EQ(int4_token(int4_place(slot % 32)), slot % 32);
      for (int word = 0; word < head_dim / 8; ++word) {
        const auto at = static_cast<std::size_t>(int4_word(head_dim, slot, word));
        ASSERT_LT(at, taken.size());
        EXPECT_FALSE(taken[at]);
        taken[at] = true;
      }
    }
  }
}

}  // namespace
}  // namespace quire::kernels::cuda
