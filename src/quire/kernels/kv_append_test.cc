// Slots of the paged cache: every element at the place that paged_kv_view.h names, everything else
// untouched.
#include "quire/kernels/kv_append.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "quire/base/sanitized.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/rotary.h"
#include "quire/kernels/test_util.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kernels {
namespace {

using tensor::DType;

constexpr std::byte kCanary{0xa5};

// A cache of one layer with gaps between heads and before and behind everything.
class Cache {
 public:
  Cache(DType dtype, int block_tokens, int head_dim, int kv_heads, int num_blocks) {
    const std::ptrdiff_t half =
        std::ptrdiff_t{stored(block_tokens)} * head_dim * tensor::dtype_bytes(dtype);
    const std::ptrdiff_t head_stride = 2 * half * num_blocks + kGap;
    bytes_.assign(static_cast<std::size_t>(head_stride * kv_heads + 2 * kGap), kCanary);
    view_ = {.data = bytes_.data() + kGap,
             .head_stride = head_stride,
             .block_stride = 2 * half,
             .v_offset = half,
             .num_blocks = num_blocks,
             .kv_heads = kv_heads,
             .head_dim = head_dim,
             .block_tokens = block_tokens,
             .dtype = dtype};
  }

  [[nodiscard]] const tensor::PagedKVView& view() const { return view_; }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

  // Index of an element's first byte, straight from the picture in paged_kv_view.h.
  [[nodiscard]] std::size_t place(bool key, int head, tensor::KVSlot slot, int d) const {
    const int tokens = stored(view_.block_tokens);
    const int t = slot.offset;
    const bool f32 = view_.dtype == DType::kFloat32;
    const int k_index = f32 ? d * tokens + t : (d / 2 * tokens + t) * 2 + d % 2;
    const int v_index = f32 ? t * view_.head_dim + d : (t / 2 * view_.head_dim + d) * 2 + t % 2;
    const std::ptrdiff_t block = head * view_.head_stride + slot.block * view_.block_stride;
    const std::ptrdiff_t element =
        std::ptrdiff_t{key ? k_index : v_index} * tensor::dtype_bytes(view_.dtype);
    return static_cast<std::size_t>(kGap + block + (key ? 0 : view_.v_offset) + element);
  }

 private:
  static constexpr std::ptrdiff_t kGap = 64;
  static int stored(int block_tokens) { return (block_tokens + 1) / 2 * 2; }

  std::vector<std::byte> bytes_;
  tensor::PagedKVView view_;
};

void put(std::vector<std::byte>& bytes, std::size_t at, DType dtype, float value) {
  if (dtype == DType::kFloat32) {
    std::memcpy(&bytes[at], &value, 4);
  } else {
    const std::uint16_t half = tensor::float_to_bf16(value);
    std::memcpy(&bytes[at], &half, 2);
  }
}

class KVAppendTest : public test::OnEveryIsa {
 protected:
  device::ThreadPool pool_{2};
  KernelContext context() { return on(pool_); }

  // Appends `tokens` random tokens to random distinct slots and compares all bytes of the cache
  // with an image that was made element by element.
  void check(DType dtype, int block_tokens, int model_head_dim, int tokens) {
    const int kv_heads = 3;
    const int stored_dim = (model_head_dim + 31) / 32 * 32;
    const int num_blocks = (tokens + block_tokens - 1) / block_tokens + 2;
    Cache cache(dtype, block_tokens, stored_dim, kv_heads, num_blocks);
    std::vector<tensor::KVSlot> slots(static_cast<std::size_t>(num_blocks * block_tokens));
    for (int i = 0; i < num_blocks * block_tokens; ++i) {
      slots[static_cast<std::size_t>(i)] = {i / block_tokens, i % block_tokens};
    }
    std::shuffle(slots.begin(), slots.end(), std::mt19937(1));
    slots.resize(static_cast<std::size_t>(tokens));

    const std::ptrdiff_t stride = std::ptrdiff_t{kv_heads} * model_head_dim + 5;
    const std::vector<float> k = test::random_floats(tokens * stride, 2);
    const std::vector<float> v = test::random_floats(tokens * stride, 3);
    RotaryConfig config;
    for (int i = 0; i < model_head_dim / 4; ++i) {  // half of the head rotates
      config.inverse_frequencies.push_back(1.0 / (i + 1));
    }
    std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
    for (int t = 0; t < tokens; ++t) {
      positions[static_cast<std::size_t>(t)] = t * 3;
    }
    RotaryTable rotary;
    rotary.fill(context(), config, positions);

    std::vector<std::byte> expected = cache.bytes();
    std::vector<float> rotated(static_cast<std::size_t>(model_head_dim));
    for (int t = 0; t < tokens; ++t) {
      for (int head = 0; head < kv_heads; ++head) {
        const auto at =
            static_cast<std::size_t>(t * stride + std::ptrdiff_t{head} * model_head_dim);
        rotate_head(context(), rotary, t, std::span(k).subspan(at, rotated.size()), rotated);
        for (int d = 0; d < stored_dim; ++d) {
          const bool inside = d < model_head_dim;
          const auto i = static_cast<std::size_t>(d);
          const tensor::KVSlot slot = slots[static_cast<std::size_t>(t)];
          put(expected, cache.place(true, head, slot, d), dtype, inside ? rotated[i] : 0.0f);
          put(expected, cache.place(false, head, slot, d), dtype, inside ? v[at + i] : 0.0f);
        }
      }
    }
    kv_append(context(),
              {.k = k,
               .v = v,
               .k_stride = stride,
               .v_stride = stride,
               .head_dim = model_head_dim,
               .rotary = &rotary,
               .slots = slots},
              cache.view());
    EXPECT_EQ(std::memcmp(cache.bytes().data(), expected.data(), expected.size()), 0)
        << tensor::dtype_name(dtype) << " block " << block_tokens << " head " << model_head_dim
        << " tokens " << tokens;
  }
};

TEST_P(KVAppendTest, WritesEveryElementToItsPlaceAndNothingElse) {
  for (const int block_tokens : {1, 2, 3, 16, 31, 32, 33, 256}) {
    for (const int head_dim : {32, 80, 256}) {
      for (const int tokens : {1, 70}) {
        check(DType::kFloat32, block_tokens, head_dim, tokens);
        check(DType::kBFloat16, block_tokens, head_dim, tokens);
      }
    }
  }
}

TEST_P(KVAppendTest, NoTokensIsANoOp) {
  Cache cache(DType::kBFloat16, 4, 32, 1, 2);
  kv_append(context(), {.head_dim = 32}, cache.view());
  EXPECT_EQ(cache.bytes(), std::vector<std::byte>(cache.bytes().size(), kCanary));
}

TEST_P(KVAppendTest, NoRotaryTableMeansNoRotation) {
  Cache cache(DType::kFloat32, 4, 32, 1, 1);
  const std::vector<float> k = test::random_floats(32, 4);
  const tensor::KVSlot slot[] = {{0, 2}};
  kv_append(context(),
            {.k = k, .v = k, .k_stride = 32, .v_stride = 32, .head_dim = 32, .slots = slot},
            cache.view());
  for (int d = 0; d < 32; ++d) {
    float stored = 0;
    std::memcpy(&stored, &cache.bytes()[cache.place(true, 0, slot[0], d)], 4);
    EXPECT_EQ(stored, k[static_cast<std::size_t>(d)]);
  }
}

TEST_P(KVAppendTest, ARowIsStoredWhereverATokenNamesIt) {
  const std::vector<float> k = test::random_floats(3 * 32, 4);
  const std::vector<float> v = test::random_floats(3 * 32, 5);
  RotaryConfig config;
  config.inverse_frequencies.assign(8, 0.3);
  RotaryTable rotary;
  rotary.fill(context(), config, std::vector<std::int32_t>{4, 5, 6});
  KVAppendParams params{.k = k, .v = v, .k_stride = 32, .v_stride = 32, .head_dim = 32};
  params.rotary = &rotary;
  const std::vector<tensor::KVSlot> once = {{0, 0}, {0, 1}, {0, 2}};
  Cache wanted(DType::kFloat32, 4, 32, 1, 2);
  params.slots = once;
  kv_append(context(), params, wanted.view());
  const std::vector<tensor::KVSlot> slots = {{1, 3}, {0, 1}, {1, 0}};
  const std::vector<std::int32_t> rows = {2, 0, 2};
  params.slots = slots;
  params.rows = rows;
  Cache cache(DType::kFloat32, 4, 32, 1, 2);
  kv_append(context(), params, cache.view());
  for (std::size_t token = 0; token < rows.size(); ++token) {
    const auto from = static_cast<std::size_t>(rows[token]);
    for (const bool key : {true, false}) {
      for (int d = 0; d < 32; ++d) {
        ASSERT_EQ(std::memcmp(&cache.bytes()[cache.place(key, 0, slots[token], d)],
                              &wanted.bytes()[wanted.place(key, 0, once[from], d)], 4),
                  0)
            << token << " " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, KVAppendTest, test::every_isa(), test::isa_test_name);

// Stores three tokens, and stores them again when two of them are kept.
void expect_kept(const KernelContext& context, DType dtype) {
  Cache cache(dtype, 5, 64, 2, 3);
  const std::vector<tensor::KVSlot> slots = {{2, 4}, {0, 1}, {1, 3}};
  const std::vector<float> k = test::random_floats(3 * 2 * 64, 6);
  const std::vector<float> v = test::random_floats(3 * 2 * 64, 7);
  KVAppendParams params = {
      .k = k, .v = v, .k_stride = 128, .v_stride = 128, .head_dim = 64, .slots = slots};
  kv_append(context, params, cache.view());
  const std::vector<std::byte> stored = cache.bytes();
  std::vector<float> other = k;
  other[128 + 70] += 1;
  std::vector<float> values = v;
  values[2 * 128] -= 1;
  const auto is_there = [&](std::int64_t token) {
    return is_kept(context, params, cache.view(), token);
  };
  params.k = other;
  EXPECT_TRUE(is_there(0));
  EXPECT_FALSE(is_there(1)) << "another key";
  params.v = values;
  EXPECT_FALSE(is_there(2)) << "another value";
  EXPECT_EQ(cache.bytes(), stored) << "comparing writes nothing";
  const std::vector<std::uint8_t> kept = {1, 0, 1};
  params.kept = kept;
  params.v = v;
  kv_append(context, params, cache.view());
  EXPECT_NE(cache.bytes(), stored) << "the one that is not kept is written";
  params.k = k;
  params.kept = {};
  kv_append(context, params, cache.view());
  EXPECT_EQ(cache.bytes(), stored) << "only that one was";
#ifdef NDEBUG
  if (!base::kSanitized) {  // other builds end here
    const std::vector<std::uint8_t> all = {1, 1, 1};
    params.k = other;
    params.kept = all;
    kv_append(context, params, cache.view());
    EXPECT_EQ(cache.bytes(), stored) << "no kept one is written";
  }
#endif
}

TEST_P(KVAppendTest, AKeptTokenIsNotWrittenAndIsComparedToTheBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    expect_kept(context(), dtype);
  }
}

TEST(KVAppendDeath, SlotsOutsideTheCacheAreCaught) {
  device::ThreadPool pool(1);
  const KernelContext context = {&kernels_for(device::Isa::kPortable), &pool};
  Cache cache(DType::kBFloat16, 3, 32, 1, 2);
  const std::vector<float> k(32, 1.0f);
  for (const tensor::KVSlot slot :
       {tensor::KVSlot{2, 0}, {-1, 0}, {0, 3}, {0, -1}}) {  // slot 3 is padding, not a slot
    EXPECT_DEATH(
        kv_append(
            context,
            {.k = k, .v = k, .k_stride = 32, .v_stride = 32, .head_dim = 32, .slots = {&slot, 1}},
            cache.view()),
        "slot outside");
  }
}

// The oracle is IEEE: bfloat16 rounds what is at least 0x1.ffp127 to an infinity, and fp32 holds
// it.
TEST_P(KVAppendTest, PlainTokensThatTheirTypeCannotHoldAreFlaggedAlone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  const std::vector<float> in_turn = {1, std::numeric_limits<float>::quiet_NaN(),
                                      2, -kInfinity,
                                      3, kInfinity,
                                      4, kLargest,
                                      5, -0x1.ffp127F,
                                      6, 0x1.fep127F};
  constexpr int kHeadDim = 40, kHeads = 2, kWidth = kHeads * kHeadDim;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const bool key : {true, false}) {
      const Cache cache(dtype, 4, 64, kHeads, 4);
      std::vector<float> k = test::random_floats(std::ssize(in_turn) * kWidth, 1);
      std::vector<float> v = test::random_floats(std::ssize(k), 2);
      std::vector<tensor::KVSlot> slots;
      std::vector<std::uint8_t> wanted;
      for (std::size_t token = 0; token < in_turn.size(); ++token) {
        (key ? k : v)[token * kWidth + kHeadDim + 7] = in_turn[token];  // of the second head
        slots.push_back({static_cast<std::int32_t>(token / 4), static_cast<int>(token % 4)});
        const float most = dtype == DType::kFloat32 ? kLargest : 0x1.fep127F;
        wanted.push_back(std::abs(in_turn[token]) <= most ? 0 : 1);
      }
      std::vector<std::uint8_t> refused(slots.size(), 0);
      kv_append(context(),
                {.k = k,
                 .v = v,
                 .k_stride = kWidth,
                 .v_stride = kWidth,
                 .head_dim = kHeadDim,
                 .slots = slots,
                 .refused = refused},
                cache.view());
      EXPECT_EQ(refused, wanted) << tensor::dtype_name(dtype) << (key ? ", key" : ", value");
    }
  }
}

}  // namespace
}  // namespace quire::kernels
