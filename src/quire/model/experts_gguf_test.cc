// Experts of GGUF files: slices of stacked tensors of any type, computed from their own codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/weight_packer.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"
#include "quire/weights/test_files.h"
#include "quire/weights/test_models.h"

namespace quire::model::experts_testing {
namespace {

using kernels::WeightFormat;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using weights::testing::RandomBlocks;

constexpr std::uint64_t kHidden = 256, kInner = 256, kExpertCount = 3;
using Sizes = std::vector<std::uint64_t>;  // in GGUF's order

// A file of one layer, whose experts have a type.
class ExpertGguf : public ::testing::Test {
 protected:
  void add(const std::string& name, const Sizes& sizes, const std::string& type) {
    std::uint64_t values = 1;
    for (const std::uint64_t size : sizes) {
      values *= size;
    }
    const auto& how = RandomBlocks::type(type);
    file_.tensor(name + ".weight", sizes, how.number, file_.data.size());
    for (std::uint64_t i = 0; i < values / static_cast<std::uint64_t>(how.block_values); ++i) {
      file_.data += blocks_.block(type, sizes.size() == 1);
    }
    file_.data.resize((file_.data.size() + 31) / 32 * 32);
  }
  void add_all_but_experts() {
    file_.key("general.architecture", 8, weights::testing::counted("qwen3moe"));
    for (const auto& [name, size] : std::vector<std::pair<std::string, std::uint32_t>>{
             {"context_length", 2048},
             {"embedding_length", kHidden},
             {"feed_forward_length", 512},
             {"block_count", 1},
             {"attention.head_count", 4},
             {"attention.head_count_kv", 2},
             {"expert_count", kExpertCount},
             {"expert_used_count", 2},
             {"expert_feed_forward_length", kInner}}) {
      file_.key("qwen3moe." + name, 4, weights::testing::raw(size));
    }
    file_.key("qwen3moe.attention.layer_norm_rms_epsilon", 6, weights::testing::raw(1e-5f));
    add("token_embd", {kHidden, 40}, "F16");
    add("output_norm", {kHidden}, "F32");
    for (const auto& [name, sizes] :
         std::vector<std::pair<std::string, Sizes>>{{"attn_norm", {kHidden}},
                                                    {"attn_q", {kHidden, kHidden}},
                                                    {"attn_k", {kHidden, kHidden / 2}},
                                                    {"attn_v", {kHidden, kHidden / 2}},
                                                    {"attn_q_norm", {64}},
                                                    {"attn_k_norm", {64}},
                                                    {"attn_output", {kHidden, kHidden}},
                                                    {"ffn_norm", {kHidden}},
                                                    {"ffn_gate_inp", {kHidden, kExpertCount}}}) {
      add("blk.0." + name, sizes, "F32");
    }
  }
  weights::ModelFiles write() {
    folder_.write("model.gguf", file_.build());
    return weights::ModelFiles::open(folder_.path() / "model.gguf").value();
  }
  Result<DecoderWeights> pack(const weights::ModelFiles& files) {
    const auto config = config_from_gguf(*files.gguf());
    EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
    return pack_weights(context_, *config, files, {.keep_codes = true}, report_);
  }
  static std::vector<float> packed_row(const kernels::PackedWeights& matrix, std::int64_t row) {
    std::vector<float> values(static_cast<std::size_t>(matrix.depth()));
    matrix.unpack_row(row, values);
    return values;
  }
  static std::vector<float> file_row(const weights::ModelFiles& files, const std::string& name,
                                     std::uint64_t row) {
    const weights::TensorInfo& tensor = *files.find("blk.0." + name + ".weight");
    std::vector<float> values(static_cast<std::size_t>(tensor.columns()));
    weights::read_rows(tensor, static_cast<std::int64_t>(row), 1, values);
    return values;
  }

  weights::testing::GgufBuilder file_;
  weights::testing::TempFolder folder_;
  RandomBlocks blocks_{3};
  device::ThreadPool pool_{2};
  kernels::KernelContext context_{&kernels::kernels_for(device::best_isa()), &pool_};
  PackReport report_;
};

// Products of two scales are rounded to fp16 in Q4_K: 16 * 63 * 2e-4 / 2048.
struct Kind {
  const char* type;
  WeightFormat format;
  float tolerance;
};

class ExpertTypes : public ExpertGguf, public ::testing::WithParamInterface<Kind> {};

TEST_P(ExpertTypes, ASliceKeepsItsCodes) {
  const Kind& kind = GetParam();
  add_all_but_experts();
  add("blk.0.ffn_gate_exps", {kHidden, kInner, kExpertCount}, kind.type);
  add("blk.0.ffn_up_exps", {kHidden, kInner, kExpertCount}, kind.type);
  add("blk.0.ffn_down_exps", {kInner, kHidden, kExpertCount}, kind.type);
  const auto files = write();
  const auto weights = pack(files);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  for (std::uint64_t i = 0; i < kExpertCount; ++i) {
    const LayerWeights::Expert& expert = weights->layers[0].experts[i];
    EXPECT_EQ(expert.gate_up.weights.format(), kind.format);
    for (const std::uint64_t row : {std::uint64_t{0}, std::uint64_t{7}, kInner - 1}) {
      const auto near = FloatNear(kind.tolerance);
      const auto at = static_cast<std::int64_t>(row);
      EXPECT_THAT(packed_row(expert.gate_up.weights, at),
                  Pointwise(near, file_row(files, "ffn_gate_exps", i * kInner + row)));
      EXPECT_THAT(packed_row(expert.gate_up.weights, kInner + at),
                  Pointwise(near, file_row(files, "ffn_up_exps", i * kInner + row)));
      EXPECT_THAT(packed_row(expert.down.weights, at),
                  Pointwise(near, file_row(files, "ffn_down_exps", i * kHidden + row)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ExpertTypes,
                         ::testing::Values(Kind{"Q8_0", WeightFormat::kQ8g32, 0},
                                           Kind{"Q4_0", WeightFormat::kQ4g32, 0},
                                           Kind{"Q4_1", WeightFormat::kQ4m32, 0},
                                           Kind{"Q4_K", WeightFormat::kQ4m32, 1e-4f},
                                           Kind{"Q6_K", WeightFormat::kQ8g32, 3e-3f},
                                           Kind{"Q2_K", WeightFormat::kQ2m16, 0},
                                           Kind{"Q3_K", WeightFormat::kT4g16, 0},
                                           Kind{"IQ4_NL", WeightFormat::kT4g32, 0},
                                           Kind{"MXFP4", WeightFormat::kT4g32, 0}),
                         [](const auto& info) { return std::string(info.param.type); });

TEST_F(ExpertGguf, GateAndUpMayBeOneTensor) {
  add_all_but_experts();
  add("blk.0.ffn_gate_up_exps", {kHidden, 2 * kInner, kExpertCount}, "Q4_0");
  add("blk.0.ffn_down_exps", {kInner, kHidden, kExpertCount}, "Q8_0");
  const auto files = write();
  const auto weights = pack(files);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const auto& gate_up = weights->layers[0].experts[2].gate_up.weights;
  EXPECT_EQ(gate_up.format(), WeightFormat::kQ4g32);
  EXPECT_EQ(packed_row(gate_up, 300), file_row(files, "ffn_gate_up_exps", 4 * kInner + 300));
}

TEST_F(ExpertGguf, AStackOfOtherSizeIsRefusedByName) {
  add_all_but_experts();
  add("blk.0.ffn_gate_exps", {kHidden, kInner, kExpertCount}, "Q4_0");
  add("blk.0.ffn_up_exps", {kHidden, kInner, kExpertCount - 1}, "Q4_0");
  add("blk.0.ffn_down_exps", {kInner, kHidden, kExpertCount}, "Q4_0");
  const auto weights = pack(write());
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(weights.error().message,
              HasSubstr("ffn_up_exps.weight\" has shape [2, 256, 256], the config wants [3, 256"));
}

}  // namespace
}  // namespace quire::model::experts_testing
