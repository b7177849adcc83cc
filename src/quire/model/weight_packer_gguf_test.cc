// GGUF tensors that are quantised already, computed from their own codes (PackOptions::keep_codes).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/model/decoder_weights.h"
#include "quire/model/weight_packer.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"
#include "quire/weights/tensor_info.h"
#include "quire/weights/test_files.h"
#include "quire/weights/test_models.h"

namespace quire::model {
namespace {

using kernels::WeightFormat;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::Pointwise;
using ::testing::UnorderedElementsAre;
using weights::testing::RandomBlocks;

constexpr float kLargestHalf = 2e-4f;  // in blocks of Q4_K

struct Stored {
  std::int64_t rows, columns;
  std::string type;
};

class LoaderGgufTest : public ::testing::Test {
 protected:
  // A one-layer Llama: hidden 256, inner 512, 4 heads of 64, 2 KV heads, vocabulary of 40.
  static std::map<std::string, Stored> llama() {
    const std::string layer = "blk.0.";
    return {{"token_embd.weight", {40, 256, "Q5_0"}},
            {"output_norm.weight", {1, 256, "F32"}},
            {"output.weight", {40, 256, "F16"}},
            {layer + "attn_norm.weight", {1, 256, "F32"}},
            {layer + "attn_q.weight", {256, 256, "Q4_K"}},
            {layer + "attn_k.weight", {128, 256, "Q4_K"}},
            {layer + "attn_v.weight", {128, 256, "Q6_K"}},
            {layer + "attn_output.weight", {256, 256, "Q4_0"}},
            {layer + "ffn_norm.weight", {1, 256, "F32"}},
            {layer + "ffn_gate.weight", {512, 256, "Q4_K"}},
            {layer + "ffn_up.weight", {512, 256, "Q4_K"}},
            {layer + "ffn_down.weight", {256, 512, "Q8_0"}}};
  }

  static ModelConfig config() {
    return config_from_hf(R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
      "vocab_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4,
      "num_key_value_heads": 2})",
                          "")
        .value();
  }

  std::string data_of(const Stored& stored) {
    const int values = RandomBlocks::type(stored.type).block_values;
    std::string data;
    for (std::int64_t i = 0; i < stored.rows * stored.columns / values; ++i) {
      data += blocks_.block(stored.type, stored.rows == 1);
    }
    return data;
  }

  weights::ModelFiles write(const std::map<std::string, Stored>& tensors) {
    weights::testing::GgufBuilder file;
    constexpr std::uint32_t kString = 8;
    file.key("general.architecture", kString, weights::testing::counted("llama"));
    for (const auto& [name, stored] : tensors) {
      std::vector<std::uint64_t> sizes = {static_cast<std::uint64_t>(stored.columns)};
      if (stored.rows > 1) {
        sizes.push_back(static_cast<std::uint64_t>(stored.rows));
      }
      file.tensor(name, sizes, RandomBlocks::type(stored.type).number, file.data.size());
      file.data += data_of(stored);
      file.data.resize((file.data.size() + 31) / 32 * 32);
    }
    folder_.write("model.gguf", file.build());
    return weights::ModelFiles::open(folder_.path() / "model.gguf").value();
  }

  static std::vector<float> packed_row(const kernels::PackedWeights& matrix, std::int64_t row) {
    std::vector<float> values(static_cast<std::size_t>(matrix.depth()));
    matrix.unpack_row(row, values);
    return values;
  }
  static std::vector<float> file_row(const weights::ModelFiles& model_files, const char* name,
                                     std::int64_t row) {
    const weights::TensorInfo& tensor = *model_files.find(name);
    std::vector<float> values(static_cast<std::size_t>(tensor.columns()));
    weights::read_rows(tensor, row, 1, values);
    return values;
  }

  weights::testing::TempFolder folder_;
  RandomBlocks blocks_{3};
  device::ThreadPool pool_{2};
  kernels::KernelContext context_{&kernels::kernels_for(device::best_isa()), &pool_};
  PackReport report_;
};

TEST_F(LoaderGgufTest, EveryMatrixTakesTheFormatOfItsOwnCodes) {
  const auto model_files = write(llama());
  const auto weights = pack_weights(context_, config(), model_files, {.keep_codes = true}, report_);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const LayerWeights& layer = weights->layers[0];
  EXPECT_EQ(weights->embedding.format(), WeightFormat::kQ8g32);
  EXPECT_EQ(packed_row(weights->embedding, 7), file_row(model_files, "token_embd.weight", 7));
  EXPECT_EQ(layer.output.weights.format(), WeightFormat::kQ4g32);
  EXPECT_EQ(packed_row(layer.output.weights, 9),
            file_row(model_files, "blk.0.attn_output.weight", 9));
  EXPECT_EQ(layer.down.weights.format(), WeightFormat::kQ8g32);
  EXPECT_EQ(packed_row(layer.down.weights, 255),
            file_row(model_files, "blk.0.ffn_down.weight", 255));
  EXPECT_EQ(layer.gate_up.weights.format(), WeightFormat::kQ4m32);
  EXPECT_EQ(report_.main_format, WeightFormat::kQ8g32);    // most bytes of the layer
  EXPECT_EQ(weights->head.format(), WeightFormat::kBf16);  // not quantised: what was asked for
  EXPECT_EQ(report_.head_format, WeightFormat::kBf16);
  const auto bytes_of = [&](WeightFormat format) {
    return report_.layer_bytes_of[static_cast<std::size_t>(format)];
  };
  EXPECT_EQ(bytes_of(WeightFormat::kQ4g32),
            static_cast<std::int64_t>(layer.output.weights.size_bytes()));
  EXPECT_EQ(bytes_of(WeightFormat::kQ4m32),
            static_cast<std::int64_t>(layer.gate_up.weights.size_bytes()));
  EXPECT_EQ(std::reduce(report_.layer_bytes_of.begin(), report_.layer_bytes_of.end()),
            report_.layer_bytes);
}

ModelConfig of_family(ModelConfig config, const char* family) {
  config.family = family;
  return config;
}

TEST_F(LoaderGgufTest, AFolderOfMistralReadsTheOrderOfRowsThatItsFileHas) {
  const auto model_files = write(llama());
  const auto llama = pack_weights(context_, config(), model_files, {}, report_);
  const auto mistral =
      pack_weights(context_, of_family(config(), "mistral"), model_files, {}, report_);
  ASSERT_TRUE(llama.ok() && mistral.ok());
  for (const std::int64_t row : {1, 40, 257}) {  // of the queries and the keys
    EXPECT_EQ(packed_row(mistral->layers[0].qkv.weights, row),
              packed_row(llama->layers[0].qkv.weights, row));
  }
}

TEST_F(LoaderGgufTest, AFileOfAnotherArchitectureThanTheConfigsIsRefused) {
  const auto model_files = write(llama());
  const auto weights =
      pack_weights(context_, of_family(config(), "qwen2"), model_files, {}, report_);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(weights.error().message, HasSubstr("architecture \"llama\""));
  EXPECT_THAT(weights.error().message, HasSubstr("qwen2 model say \"qwen2\""));
}

// Q4_K: scale and minimum of a group are products that are rounded to fp16, 2^-11 of each.
TEST_F(LoaderGgufTest, Q4KIsWithinARoundingOfItsScales) {
  const auto model_files = write(llama());
  const auto weights = pack_weights(context_, config(), model_files, {.keep_codes = true}, report_);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  constexpr float kLargestScale = 63 * kLargestHalf;
  EXPECT_THAT(packed_row(weights->layers[0].gate_up.weights, 512 + 3),
              Pointwise(FloatNear(16 * kLargestScale / 2048),
                        file_row(model_files, "blk.0.ffn_up.weight", 3)));
}

// Queries and keys are Q4_K, values Q6_K: one matrix, quantised again.
TEST_F(LoaderGgufTest, TensorsThatDifferAreQuantisedAgainToEightBits) {
  const auto model_files = write(llama());
  const auto weights = pack_weights(context_, config(), model_files, {.keep_codes = true}, report_);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const kernels::PackedWeights& qkv = weights->layers[0].qkv.weights;
  EXPECT_EQ(qkv.format(), WeightFormat::kQ8g32);
  const auto seen = packed_row(qkv, 256 + 128 + 5);
  const auto expected = file_row(model_files, "blk.0.attn_v.weight", 5);
  for (std::size_t group = 0; group < seen.size(); group += 32) {
    const auto wanted = std::span(expected).subspan(group, 32);
    const float largest =
        std::fabs(std::ranges::max(wanted, {}, [](float value) { return std::fabs(value); }));
    EXPECT_THAT(std::span(seen).subspan(group, 32),
                Pointwise(FloatNear(largest * (1.0f / 254 + 1.0f / 2048)), wanted));
  }
}

TEST_F(LoaderGgufTest, ADtypeOrQuantizeOfTheUserExpandsThem) {
  const auto model_files = write(llama());
  const auto weights =
      pack_weights(context_, config(), model_files, {.format = WeightFormat::kF32}, report_);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const kernels::PackedWeights& up = weights->layers[0].gate_up.weights;
  EXPECT_EQ(up.format(), WeightFormat::kF32);
  EXPECT_EQ(packed_row(up, 512 + 3), file_row(model_files, "blk.0.ffn_up.weight", 3));
}

// Q4_K twice: alone its codes stay, beside Q6_K they do not.
TEST_F(LoaderGgufTest, WhatIsDoneWithEachTensorIsSaid) {
  constexpr const char* kAgain = "q8g32, within 1/225 of each group's largest weight";
  EXPECT_THAT(
      computed_as(config(), write(llama())).value(),
      UnorderedElementsAre(Pair("token_embd.weight", "q8g32, unchanged"),
                           Pair("blk.0.attn_q.weight", kAgain), Pair("blk.0.attn_k.weight", kAgain),
                           Pair("blk.0.attn_v.weight", kAgain),
                           Pair("blk.0.attn_output.weight", "q4g32, unchanged"),
                           Pair("blk.0.ffn_gate.weight", "q4m32, scales within 1/2048"),
                           Pair("blk.0.ffn_up.weight", "q4m32, scales within 1/2048"),
                           Pair("blk.0.ffn_down.weight", "q8g32, unchanged")));
}

TEST_F(LoaderGgufTest, BytesThatAreForetoldAreThoseThatLoadingTakes) {
  auto beside_floats = llama();
  beside_floats["blk.0.attn_v.weight"].type = "F16";
  for (const auto& tensors : {llama(), beside_floats}) {
    const auto model_files = write(tensors);
    for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBf16}) {
      const PackOptions options{.format = format, .keep_codes = true};
      ASSERT_TRUE(pack_weights(context_, config(), model_files, options, report_).ok());
      EXPECT_EQ(own_weight_bytes(config(), model_files, format).value(), report_.packed_bytes);
    }
  }
}

TEST_F(LoaderGgufTest, ATensorBesideFloatsIsSaidToBeExpanded) {
  auto tensors = llama();
  tensors["blk.0.attn_v.weight"].type = "F16";
  const auto computed = computed_as(config(), write(tensors));
  ASSERT_TRUE(computed.ok()) << computed.error().message;
  EXPECT_THAT(computed->at("blk.0.attn_q.weight"), HasSubstr("expanded"));
  EXPECT_FALSE(computed->contains("blk.0.attn_v.weight"));
}

// Types whose codes lie in no file as they are packed: every value stays the file's.
TEST_F(LoaderGgufTest, CodesOfSmallIntegersKeepEveryValue) {
  const std::map<std::string, WeightFormat> formats = {
      {"Q2_K", WeightFormat::kQ2m16},    {"Q3_K", WeightFormat::kT4g16},
      {"IQ1_S", WeightFormat::kT4g32},   {"IQ1_M", WeightFormat::kT4g16},
      {"IQ2_XXS", WeightFormat::kT4g32}, {"IQ2_XS", WeightFormat::kT4g16},
      {"IQ2_S", WeightFormat::kT4g16},   {"IQ3_XXS", WeightFormat::kT4g32},
      {"IQ3_S", WeightFormat::kT4g32},   {"IQ4_NL", WeightFormat::kT4g32},
      {"IQ4_XS", WeightFormat::kT4g32},  {"TQ1_0", WeightFormat::kQ4g32},
      {"TQ2_0", WeightFormat::kQ4g32},   {"MXFP4", WeightFormat::kT4g32},
      {"Q1_0", WeightFormat::kQ4g32},    {"Q2_0", WeightFormat::kQ4g32}};
  for (const auto& [type, format] : formats) {
    auto tensors = llama();
    for (auto& [name, stored] : tensors) {
      stored.type = stored.rows > 1 ? type : stored.type;
    }
    const auto model_files = write(tensors);
    const auto weights =
        pack_weights(context_, config(), model_files, {.keep_codes = true}, report_);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    EXPECT_EQ(weights->layers[0].down.weights.format(), format) << type;
    for (const std::int64_t row : {0, 31, 39}) {
      EXPECT_EQ(packed_row(weights->embedding, row),
                file_row(model_files, "token_embd.weight", row))
          << type;
      EXPECT_EQ(packed_row(weights->layers[0].gate_up.weights, 512 + row),
                file_row(model_files, "blk.0.ffn_up.weight", row))
          << type;
      EXPECT_EQ(packed_row(weights->layers[0].qkv.weights, 256 + 128 + row),
                file_row(model_files, "blk.0.attn_v.weight", row))
          << type;
    }
    EXPECT_EQ(own_weight_bytes(config(), model_files, WeightFormat::kBf16).value(),
              report_.packed_bytes);
    for (const auto& [name, made] : computed_as(config(), model_files).value()) {
      EXPECT_EQ(made, std::string(kernels::format_name(format)) + ", unchanged") << name;
    }
  }
}

}  // namespace
}  // namespace quire::model
