// Floors count what the kernels run: kinds of products by the kernel table, numbers of products by
// hand, tokens one by one.
#include "quire/diagnostics/bench_floors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "quire/attention/cpu/kernel_table.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/diagnostics/peaks.h"
#include "quire/kernels/ceilings.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::diagnostics {
namespace {

using kernels::Product;
using kernels::WeightFormat;
using tensor::DType;
using tensor::KVFormat;

struct KV {
  DType dtype;
  KVFormat format = KVFormat::kPlain;
};
constexpr KV kFloat32 = {DType::kFloat32};
constexpr KV kBFloat16 = {DType::kBFloat16};
constexpr KV kInt8 = {DType::kBFloat16, KVFormat::kInt8};

// Measures nothing: one operation of any product takes a second, and reading takes no time.
class GivenPeaks final : public Peaks {
 public:
  explicit GivenPeaks(const kernels::KernelContext& context) : Peaks(context) {}
  double read_seconds(double bytes) override {
    read_bytes = bytes;
    return 0;
  }
  std::set<Product> asked;
  double read_bytes = 0;

 private:
  double measure(Product product) override {
    asked.insert(product);
    return 1;
  }
};

// Returns a small model. `windows`: of both layers.
model::ModelConfig small_config(std::int32_t window = 0) {
  auto config = model::config_from_hf(
                    R"({"model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 96,
                        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
                        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
                        "max_position_embeddings": 4096, "rms_norm_eps": 1e-05})",
                    "")
                    .value();
  config.window_tokens = {window, window};
  return config;
}

class FloorsTest : public testing::TestWithParam<device::Isa> {
 protected:
  void SetUp() override {
    if (!device::isa_supported(GetParam())) {
      GTEST_SKIP() << "this machine has no " << device::isa_name(GetParam());
    }
  }
  [[nodiscard]] model::Decoder decoder(WeightFormat format, std::int32_t window = 0) {
    return model::Decoder::random(context(), small_config(window), format, 1).value();
  }
  [[nodiscard]] static tensor::KVGeometry geometry(KV kv) {
    return small_config().kv_geometry(kv.dtype, 1, kv.format);
  }
  // Returns the product of attention over KV of that kind, as the kernels' READMEs say.
  [[nodiscard]] Product product_over(KV kv) {
    const auto& products = context().table->products;
    if (kv.format == KVFormat::kInt8 && GetParam() != device::Isa::kAmx) {
      return Product::kInt16Pairs;
    }
    const bool fp32 = kv.format == KVFormat::kPlain && kv.dtype == DType::kFloat32;
    return products[static_cast<std::size_t>(fp32 ? WeightFormat::kF32 : WeightFormat::kBf16)].many;
  }
  [[nodiscard]] kernels::KernelContext context() {
    return {.table = &kernels::kernels_for(GetParam()), .pool = &pool_};
  }

  device::ThreadPool pool_{1};
};

std::string isa_test_name(const testing::TestParamInfo<device::Isa>& info) {
  return std::string(device::isa_name(info.param));
}

INSTANTIATE_TEST_SUITE_P(All, FloorsTest,
                         testing::Values(device::Isa::kPortable, device::Isa::kAvx2,
                                         device::Isa::kAvx512Vnni, device::Isa::kAvx512,
                                         device::Isa::kAmx),
                         isa_test_name);

// Oracle: the kernel table of the instruction set.
TEST_P(FloorsTest, TakeThePeaksOfTheProductsThatTheKernelTableRuns) {
  for (const auto format :
       {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kQ8g32, WeightFormat::kQ4g32}) {
    for (const double rows : {1.0, 31.0, 32.0, 512.0}) {
      for (const KV kv : {kFloat32, kBFloat16, kInt8}) {
        const model::Decoder model = decoder(format);
        GivenPeaks peaks(context());
        const BenchFloors floors(peaks, model, geometry(kv));
        EXPECT_GT(floors.floor_seconds({.rows = rows}), 0);
        const auto& products = context().table->products[static_cast<std::size_t>(format)];
        EXPECT_EQ(peaks.asked,
                  (std::set<Product>{rows < products.many_rows ? products.few : products.many,
                                     product_over(kv)}))
            << kernels::format_name(format) << " x " << rows;
      }
    }
  }
}

// Oracle: the attention kernels' own table, which says how they take queries.
TEST_P(FloorsTest, AttentionOverBf16RunsTheProductsOfBf16Weights) {
  const Product product = kernels::product_of(context(), WeightFormat::kBf16, 1);
  EXPECT_EQ(attention::kernels_for(GetParam()).bf16_queries, product != Product::kFloats);
}

// Oracle: products by hand.
TEST_P(FloorsTest, CountEveryProductOnceAndTheLastLayerForRowsOfLogits) {
  const model::Decoder model = decoder(WeightFormat::kF32);
  GivenPeaks peaks(context());
  const BenchFloors floors(peaks, model, geometry(kFloat32));
  // Multiply-adds of a row: q, k and v 64 x 128; output 64 x 64; gate and up 64 x 256. The rest:
  // down 128 x 64; head 64 x 96. A token seen has 64 for its score and 64 for its value.
  constexpr double kQKV = 8192, kRest = 4096 + 16384 + 8192, kSeen = 128, kHead = 6144;
  // Four rows behind 10 tokens see 11 to 14.
  const double seen = 11 + 12 + 13 + 14;
  EXPECT_DOUBLE_EQ(floors.floor_seconds({.rows = 4, .own_tokens = 10}),
                   2 * (2 * 4 * kQKV + 4 * kRest + seen * kSeen));
  // Three sequences decode behind 8 shared tokens and one of their own.
  EXPECT_DOUBLE_EQ(
      floors.floor_seconds({.sequences = 3, .own_tokens = 1, .shared_tokens = 8, .logit_rows = 3}),
      2 * (2 * 3 * (kQKV + kRest + 10 * kSeen) + 3 * kHead));
}

TEST_P(FloorsTest, ReadWeightsAndCachedTokensOnce) {
  const model::Decoder model = decoder(WeightFormat::kF32);
  GivenPeaks peaks(context());
  const BenchFloors floors(peaks, model, geometry(kFloat32));
  // Two layers of 36864 values, 8192 of them for q, k and v. In each, a token has 2 x 32 values of
  // KV. The head has 96 x 64. Without logits the last layer stops behind q, k and v.
  constexpr double kWeights = 2 * 36864 * 4, kToken = 2 * 2 * 32 * 4, kHead = 6144 * 4;
  EXPECT_DOUBLE_EQ(floors.bytes({.sequences = 3, .own_tokens = 5, .shared_tokens = 8}),
                   (36864 + 8192) * 4 + kToken * (3 * 5 + 8));
  EXPECT_EQ(floors.bytes({.logit_rows = 1}), kWeights + kHead);
  EXPECT_GT(floors.floor_seconds({.logit_rows = 1}), 0);
  EXPECT_EQ(peaks.read_bytes, kWeights + kHead);
  // Codes of one byte, and two scales of two bytes.
  const BenchFloors coded(peaks, model, geometry(kInt8));
  EXPECT_EQ(coded.kv_bytes(3), 3 * 2 * (2 * 32 + 2 * 2));
}

struct Tokens {
  double seen = 0;  // by a row on average
  double read = 0;  // cached ones, by all rows together
};

// Counts every row and every token of two sequences, one by one.
Tokens count_tokens(int rows, int own, int shared, int window) {
  double seen = 0;
  std::set<int> read_shared, read_own;
  for (int at = shared + own; at < shared + own + rows; ++at) {
    for (int token = window == 0 ? 0 : std::max(0, at - window + 1); token <= at; ++token) {
      seen += 1;
      if (token < shared) {
        read_shared.insert(token);
      } else if (token < shared + own) {
        read_own.insert(token);
      }
    }
  }
  return {.seen = seen / rows,
          .read = static_cast<double>(read_shared.size() + 2 * read_own.size())};
}

TEST(StepWorkTest, TokensAreThoseThatAWindowShows) {
  for (const int window : {0, 1, 2, 7, 8, 30}) {
    for (const int own : {0, 1, 6, 7, 20}) {
      for (const int shared : {0, 5, 9}) {
        for (const int rows : {1, 3, 12}) {
          const StepWork work = {.sequences = 2,
                                 .rows = static_cast<double>(rows),
                                 .own_tokens = static_cast<double>(own),
                                 .shared_tokens = static_cast<double>(shared)};
          const Tokens tokens = count_tokens(rows, own, shared, window);
          EXPECT_DOUBLE_EQ(work.seen_tokens(window), tokens.seen) << window << " " << own;
          EXPECT_EQ(work.read_tokens(window), tokens.read) << window << " " << own;
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::diagnostics
