// Sealed blocks against an oracle that is written out here: codes by plain arithmetic, group by
// group; places as the picture in paged_kv_view.h has them.
#include "quire/kernels/kv_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/kv_append.h"
#include "quire/kernels/kv_codes.h"
#include "quire/kernels/kv_read.h"
#include "quire/kernels/plain_slot.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/float8.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

using tensor::DType;
using tensor::KVFormat;

constexpr int kHeads = 2;
constexpr int kBlocks = 5;
constexpr std::byte kUnwritten{0xa5};

// One layer of KV in a format.
class Layer {
 public:
  Layer(KVFormat format, DType dtype, int head_dim, int block_tokens)
      : geometry_{.layers = 1,
                  .kv_heads = kHeads,
                  .head_dim = head_dim,
                  .dtype = dtype,
                  .block_tokens = block_tokens,
                  .window_tokens = {},
                  .format = format},
        bytes_(static_cast<std::size_t>(geometry_.block_bytes() * kBlocks), kUnwritten) {}

  [[nodiscard]] tensor::PagedKVView view() {
    return {.data = bytes_.data(),
            .head_stride = geometry_.head_block_bytes() * kBlocks,
            .block_stride = geometry_.head_block_bytes(),
            .v_offset = geometry_.v_offset(),
            .num_blocks = kBlocks,
            .kv_heads = kHeads,
            .head_dim = geometry_.stored_head_dim(),
            .block_tokens = geometry_.block_tokens,
            .dtype = geometry_.dtype,
            .format = geometry_.format,
            .scale_offset = geometry_.scale_offset()};
  }
  // Returns the bytes of one head of a block.
  [[nodiscard]] std::span<std::byte> head_block(int head, int block) {
    const auto size = static_cast<std::size_t>(geometry_.head_block_bytes());
    return std::span(bytes_).subspan(static_cast<std::size_t>(head * kBlocks + block) * size, size);
  }
  [[nodiscard]] bool is_unwritten(int head, int block) {
    return std::ranges::all_of(head_block(head, block),
                               [](std::byte byte) { return byte == kUnwritten; });
  }

 private:
  tensor::KVGeometry geometry_;
  std::vector<std::byte> bytes_;
};

struct Case {
  KVFormat format;
  int head_dim, block_tokens;
};

// Fills all blocks with random numbers, of channels and tokens of different sizes.
void fill(Layer& layer, int head_dim, std::uint32_t seed) {
  const tensor::PagedKVView view = layer.view();
  for (int block = 0; block < kBlocks; ++block) {
    for (int head = 0; head < kHeads; ++head) {
      for (int token = 0; token < view.block_tokens; ++token) {
        std::vector<float> k = test::random_floats(static_cast<std::size_t>(view.head_dim), ++seed);
        std::vector<float> v = test::random_floats(k.size(), ++seed);
        for (std::size_t d = 0; d < k.size(); ++d) {
          const bool real = static_cast<int>(d) < head_dim;
          k[d] = real ? k[d] * static_cast<float>(1 + d % 5) + static_cast<float>(d % 7) : 0;
          v[d] = real ? v[d] * (token % 3 == 0 ? 40.0f : 0.01f) : 0;
        }
        const tensor::KVSlot slot = {block, token};
        if (view.format == KVFormat::kInt8) {
          ASSERT_TRUE(store_int8(view, head, slot, k, v));
          continue;
        }
        for (std::ptrdiff_t d = 0; d < view.head_dim; ++d) {
          const auto at = static_cast<std::size_t>(d);
          if (view.dtype == DType::kFloat32) {
            plain_slot<float>(view, head, slot).key(d) = k[at];
            plain_slot<float>(view, head, slot).value(d) = v[at];
          } else {
            const auto round =
                view.dtype == DType::kBFloat16 ? tensor::float_to_bf16 : tensor::float_to_fp16;
            plain_slot<std::uint16_t>(view, head, slot).key(d) = round(k[at]);
            plain_slot<std::uint16_t>(view, head, slot).value(d) = round(v[at]);
          }
        }
      }
    }
  }
}

// K and V of one head of a block, [token][channel].
struct Numbers {
  std::vector<std::vector<float>> k, v;
};

Numbers read(Layer& layer, int head, int block, int head_dim) {
  Numbers numbers;
  for (int token = 0; token < layer.view().block_tokens; ++token) {
    std::vector<float> k(static_cast<std::size_t>(head_dim)), v(k.size());
    read_key(layer.view(), head, {block, token}, k);
    read_value(layer.view(), head, {block, token}, v);
    numbers.k.push_back(k);
    numbers.v.push_back(v);
  }
  return numbers;
}

// A group's codes, and their scale and minimum. The minimum of fp8 is 0.
struct Group {
  std::vector<int> codes;
  float scale = 0, minimum = 0;
};

Group int4_group(const std::vector<float>& x) {
  Group group;
  const float least = *std::ranges::min_element(x), largest = *std::ranges::max_element(x);
  // fp16 numbers of a sign are in the order of their bits.
  int below = 0;
  if (least >= 0) {
    while (below < 0x7bff &&
           tensor::fp16_to_float(static_cast<std::uint16_t>(below + 1)) <= least) {
      ++below;
    }
  } else {
    below = 0x8000;
    while (tensor::fp16_to_float(static_cast<std::uint16_t>(below)) > least) {
      ++below;
    }
  }
  group.minimum = tensor::fp16_to_float(static_cast<std::uint16_t>(below));
  int above = 0;
  while (tensor::fp16_to_float(static_cast<std::uint16_t>(above)) <
         (largest - group.minimum) / 15.0f) {
    ++above;
  }
  group.scale = tensor::fp16_to_float(static_cast<std::uint16_t>(above));
  for (const float value : x) {
    group.codes.push_back(
        above == 0 ? 0 : static_cast<int>(std::nearbyint((value - group.minimum) / group.scale)));
  }
  return group;
}

// Returns the e4m3 code whose number is the nearest to x, an even one of two.
int nearest_e4m3(float x) {
  int best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double of = std::abs(double{tensor::e4m3_to_float(static_cast<std::uint8_t>(code))} -
                               std::abs(double{x}));
    if (of < distance || (of == distance && code % 2 == 0)) {
      best = code;
      distance = of;
    }
  }
  return std::signbit(x) ? best + 0x80 : best;
}

Group fp8_group(const std::vector<float>& x) {
  Group group;
  for (const float value : x) {
    group.scale = std::max(group.scale, std::abs(value) / 448.0f);
  }
  for (const float value : x) {
    group.codes.push_back(nearest_e4m3(value / group.scale));
  }
  return group;
}

class SealedBlocks : public ::testing::TestWithParam<std::tuple<Case, std::pair<KVFormat, DType>>> {
 protected:
  [[nodiscard]] static Case to() { return std::get<0>(GetParam()); }
  [[nodiscard]] static std::pair<KVFormat, DType> from() { return std::get<1>(GetParam()); }

  // Compares codes and scales of one head of a block with those of groups, in the order of the
  // layout. Returns the numbers that they stand for.
  Numbers expect_groups(const Numbers& x, std::span<const std::byte> block) const {
    const auto dim = static_cast<std::size_t>(to().head_dim);
    const auto tokens = static_cast<std::size_t>(to().block_tokens);
    const bool fp8 = to().format == KVFormat::kFp8;
    Numbers stored = x;
    for (const bool value : {false, true}) {
      const std::size_t rows = fp8 ? tokens : value ? 1 : 32, columns = fp8 ? dim : value ? 32 : 1;
      const std::vector<std::vector<float>>& in = value ? x.v : x.k;
      std::vector<std::vector<float>>& out = value ? stored.v : stored.k;
      for (std::size_t t = 0; t < tokens; t += rows) {
        for (std::size_t d = 0; d < dim; d += columns) {
          const std::size_t width = std::min(columns, dim - d);
          std::vector<float> group;
          for (std::size_t i = 0; i < rows * width; ++i) {
            group.push_back(in[t + i / width][d + i % width]);
          }
          const Group want = fp8 ? fp8_group(group) : int4_group(group);
          expect_scales(block, value, t, d, want);
          for (std::size_t i = 0; i < rows * width; ++i) {
            const std::size_t token = t + i / width, channel = d + i % width;
            EXPECT_EQ(code_at(block, value, token, channel), want.codes[i])
                << value << " " << token << " " << channel;
            out[token][channel] =
                (fp8 ? tensor::e4m3_to_float(static_cast<std::uint8_t>(want.codes[i]))
                     : static_cast<float>(want.codes[i])) *
                    want.scale +
                want.minimum;
          }
        }
      }
    }
    return stored;
  }

  [[nodiscard]] static std::size_t stored_dim() {
    return static_cast<std::size_t>((to().head_dim + 31) / 32 * 32);
  }
  [[nodiscard]] static std::size_t slots() {
    const std::size_t pack = to().format == KVFormat::kFp8 ? 4 : 8;
    return (static_cast<std::size_t>(to().block_tokens) + pack - 1) / pack * pack;
  }

  static int code_at(std::span<const std::byte> block, bool value, std::size_t token,
                     std::size_t channel) {
    const bool fp8 = to().format == KVFormat::kFp8;
    const std::size_t pack = fp8 ? 4 : 8;
    constexpr std::size_t kFour[] = {0, 2, 1, 3}, kEight[] = {0, 4, 1, 5, 2, 6, 3, 7};
    const std::size_t index = value ? token : channel;
    const std::size_t word =
        value ? stored_dim() * slots() / pack + token / pack * stored_dim() + channel
              : channel / pack * slots() + token;
    std::uint32_t bits = 0;
    std::memcpy(&bits, &block[4 * word], 4);
    return static_cast<int>(fp8 ? bits >> (8 * kFour[index % 4]) & 255
                                : bits >> (4 * kEight[index % 8]) & 15);
  }

  static void expect_scales(std::span<const std::byte> block, bool value, std::size_t token,
                            std::size_t channel, const Group& want) {
    if (to().format == KVFormat::kFp8) {
      float scale = 0;
      std::memcpy(&scale, &block[2 * stored_dim() * slots() + (value ? 4 : 0)], 4);
      EXPECT_EQ(scale, want.scale);
      return;
    }
    const std::size_t run = stored_dim() * slots() + token / 32 * 8 * stored_dim();
    const std::size_t first =
        value ? run + 4 * stored_dim() + channel / 32 * 128 + 2 * (token % 32) : run + 2 * channel;
    std::uint16_t scale = 0, minimum = 0;
    std::memcpy(&scale, &block[first], 2);
    std::memcpy(&minimum, &block[first + (value ? 64 : 2 * stored_dim())], 2);
    EXPECT_EQ(tensor::fp16_to_float(scale), want.scale);
    EXPECT_EQ(tensor::fp16_to_float(minimum), want.minimum);
  }

  device::ThreadPool pool_{2};
  KernelContext context_{&kernels_for(device::Isa::kPortable), &pool_};
};

TEST_P(SealedBlocks, HaveTheCodesOfTheirDefinitionWhereTheLayoutSays) {
  Layer source(from().first, from().second, to().head_dim, to().block_tokens);
  Layer sealed(to().format, DType::kBFloat16, to().head_dim, to().block_tokens);
  fill(source, to().head_dim, 1);
  const std::vector<BlockPair> blocks = {{0, 3}, {4, 0}, {2, 2}};
  std::vector<std::uint8_t> refused(blocks.size());
  std::vector<KVErrorSums> errors(blocks.size());
  ASSERT_TRUE(seal_blocks(
      context_, {.blocks = blocks, .head_dim = to().head_dim, .refused = refused, .errors = errors},
      source.view(), sealed.view()));
  EXPECT_EQ(refused, std::vector<std::uint8_t>(3, 0));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    KVErrorSums want;
    for (int head = 0; head < kHeads; ++head) {
      const Numbers x = read(source, head, blocks[i].from, to().head_dim);
      const Numbers stored = expect_groups(x, sealed.head_block(head, blocks[i].to));
      const Numbers got = read(sealed, head, blocks[i].to, to().head_dim);
      EXPECT_EQ(got.k, stored.k);
      EXPECT_EQ(got.v, stored.v);
      for (std::size_t t = 0; t < x.k.size(); ++t) {
        for (std::size_t d = 0; d < x.k[t].size(); ++d) {
          want.key_error += std::pow(double{x.k[t][d]} - stored.k[t][d], 2);
          want.key_whole += std::pow(double{x.k[t][d]}, 2);
          want.value_error += std::pow(double{x.v[t][d]} - stored.v[t][d], 2);
          want.value_whole += std::pow(double{x.v[t][d]}, 2);
        }
      }
    }
    EXPECT_DOUBLE_EQ(errors[i].key_error, want.key_error);
    EXPECT_DOUBLE_EQ(errors[i].key_whole, want.key_whole);
    EXPECT_DOUBLE_EQ(errors[i].value_error, want.value_error);
    EXPECT_DOUBLE_EQ(errors[i].value_whole, want.value_whole);
  }
  for (int head = 0; head < kHeads; ++head) {
    EXPECT_TRUE(sealed.is_unwritten(head, 1));
    EXPECT_TRUE(sealed.is_unwritten(head, 4));
  }
}

TEST_P(SealedBlocks, OpenAsTheNumbersThatTheyStandFor) {
  Layer source(from().first, from().second, to().head_dim, to().block_tokens);
  Layer sealed(to().format, DType::kBFloat16, to().head_dim, to().block_tokens);
  fill(source, to().head_dim, 7);
  const std::vector<BlockPair> blocks = {{1, 2}, {3, 0}};
  ASSERT_TRUE(seal_blocks(context_, {.blocks = blocks, .head_dim = to().head_dim}, source.view(),
                          sealed.view()));
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Layer open(KVFormat::kPlain, dtype, to().head_dim, to().block_tokens);
    const std::vector<BlockPair> back = {{2, 4}, {0, 1}};
    open_blocks(context_, back, to().head_dim, sealed.view(), open.view());
    const auto rounded = [&](float x) {
      return dtype == DType::kFloat32    ? x
             : dtype == DType::kBFloat16 ? tensor::bf16_to_float(tensor::float_to_bf16(x))
                                         : tensor::fp16_to_float(tensor::float_to_fp16(x));
    };
    for (const BlockPair& pair : back) {
      for (int head = 0; head < kHeads; ++head) {
        const Numbers stored = read(sealed, head, pair.from, to().head_dim);
        const Numbers got = read(open, head, pair.to, static_cast<int>(stored_dim()));
        for (std::size_t t = 0; t < stored.k.size(); ++t) {
          for (std::size_t d = 0; d < stored_dim(); ++d) {
            const bool real = d < stored.k[t].size();
            ASSERT_EQ(got.k[t][d], real ? rounded(stored.k[t][d]) : 0.0f);
            ASSERT_EQ(got.v[t][d], real ? rounded(stored.v[t][d]) : 0.0f);
          }
        }
      }
    }
  }
}

TEST_P(SealedBlocks, ThatCannotBeHeldAreNotWritten) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const bool value : {false, true}) {
      if (from().first == KVFormat::kInt8) {
        continue;  // holds finite numbers only
      }
      Layer source(from().first, from().second, to().head_dim, to().block_tokens);
      Layer sealed(to().format, DType::kBFloat16, to().head_dim, to().block_tokens);
      fill(source, to().head_dim, 9);
      const auto set = [&](auto place, auto x) { (value ? place.value(5) : place.key(5)) = x; };
      const tensor::KVSlot slot = {2, to().block_tokens - 4};
      if (from().second == DType::kFloat32) {
        set(plain_slot<float>(source.view(), 1, slot), bad);
      } else {
        set(plain_slot<std::uint16_t>(source.view(), 1, slot), from().second == DType::kBFloat16
                                                                   ? tensor::float_to_bf16(bad)
                                                                   : tensor::float_to_fp16(bad));
      }
      const std::vector<BlockPair> blocks = {{1, 1}, {2, 2}, {3, 3}};
      std::vector<std::uint8_t> refused(blocks.size());
      std::vector<KVErrorSums> errors(blocks.size());
      EXPECT_FALSE(seal_blocks(
          context_,
          {.blocks = blocks, .head_dim = to().head_dim, .refused = refused, .errors = errors},
          source.view(), sealed.view()));
      EXPECT_EQ(refused, (std::vector<std::uint8_t>{0, 4, 0})) << "the token's place is told";
      EXPECT_EQ(errors[1].key_whole, 0);
      EXPECT_GT(errors[2].key_whole, 0);
      for (int head = 0; head < kHeads; ++head) {
        EXPECT_FALSE(sealed.is_unwritten(head, 1));
        EXPECT_TRUE(sealed.is_unwritten(head, 2));
        EXPECT_FALSE(sealed.is_unwritten(head, 3));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SealedBlocks,
    ::testing::Combine(::testing::Values(Case{KVFormat::kFp8, 64, 32}, Case{KVFormat::kFp8, 40, 5},
                                         Case{KVFormat::kInt4, 64, 32},
                                         Case{KVFormat::kInt4, 80, 64}),
                       ::testing::Values(std::pair(KVFormat::kPlain, DType::kFloat32),
                                         std::pair(KVFormat::kPlain, DType::kBFloat16),
                                         std::pair(KVFormat::kPlain, DType::kFloat16),
                                         std::pair(KVFormat::kInt8, DType::kBFloat16))),
    [](const auto& info) {
      const Case& to = std::get<0>(info.param);
      const auto& from = std::get<1>(info.param);
      return std::string(tensor::kv_format_name(from.first, from.second)) + "_to_" +
             tensor::kv_format_name(to.format, DType::kBFloat16) + "_" +
             std::to_string(to.head_dim) + "_" + std::to_string(to.block_tokens);
    });

TEST(SealBlocks, RefusesPlansThatNoFormatHas) {
  device::ThreadPool pool(1);
  const KernelContext context = {&kernels_for(device::Isa::kPortable), &pool};
  Layer plain(KVFormat::kPlain, DType::kFloat32, 64, 16);
  Layer int4(KVFormat::kInt4, DType::kBFloat16, 64, 16),
      fp8(KVFormat::kFp8, DType::kBFloat16, 64, 16);
  const std::vector<BlockPair> blocks = {{0, 0}}, outside = {{0, kBlocks}};
  EXPECT_DEATH(
      (void)seal_blocks(context, {.blocks = blocks, .head_dim = 64}, plain.view(), int4.view()),
      "whole runs of 32");
  EXPECT_DEATH(
      (void)seal_blocks(context, {.blocks = outside, .head_dim = 64}, plain.view(), fp8.view()),
      "outside of the view");
  EXPECT_DEATH(
      (void)seal_blocks(context, {.blocks = blocks, .head_dim = 32}, plain.view(), fp8.view()),
      "not the views'");
  EXPECT_DEATH(
      (void)seal_blocks(context, {.blocks = blocks, .head_dim = 64}, fp8.view(), fp8.view()),
      "become fp8 or int4");
  const std::vector<float> x(64 * kHeads);
  const std::vector<tensor::KVSlot> slots = {{0, 0}};
  EXPECT_DEATH(
      kv_append(context,
                {.k = x, .v = x, .k_stride = 128, .v_stride = 128, .head_dim = 64, .slots = slots},
                fp8.view()),
      "written whole");
}

}  // namespace
}  // namespace quire::kernels
