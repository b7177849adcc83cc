// Loading decoders: the tensors that model files must hold, and the decoder made of them.
#include "quire/model/weight_packer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/spin.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/model/config.h"
#include "quire/model/decoder.h"
#include "quire/model/decoder_weights.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/weights/model_files.h"
#include "quire/weights/test_files.h"

namespace quire::model {
namespace {

using ::testing::HasSubstr;

struct Values {
  std::vector<std::int64_t> shape;
  float first = 0;  // value i is first + i
};
using Tensors = std::map<std::string, Values>;

class LoaderTest : public ::testing::Test {
 protected:
  // All tensors of a one-layer Llama with hidden 4, 2 heads of 2, 1 KV head, inner 3, vocab 5.
  static Tensors llama_tensors() {
    const std::string layer = "model.layers.0.";
    return {{"model.embed_tokens.weight", {{5, 4}, 100}},
            {"model.norm.weight", {{4}, 1}},
            {"lm_head.weight", {{5, 4}, 200}},
            {layer + "input_layernorm.weight", {{4}, 1}},
            {layer + "self_attn.q_proj.weight", {{4, 4}, 0}},
            {layer + "self_attn.k_proj.weight", {{2, 4}, 1000}},
            {layer + "self_attn.v_proj.weight", {{2, 4}, 2000}},
            {layer + "self_attn.o_proj.weight", {{4, 4}, 0}},
            {layer + "post_attention_layernorm.weight", {{4}, 1}},
            {layer + "mlp.gate_proj.weight", {{3, 4}, 0}},
            {layer + "mlp.up_proj.weight", {{3, 4}, 500}},
            {layer + "mlp.down_proj.weight", {{4, 3}, 0}}};
  }

  static ModelConfig llama_config() {
    return config_from_hf(R"({"model_type": "llama", "hidden_size": 4, "intermediate_size": 3,
      "vocab_size": 5, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 1})",
                          "")
        .value();
  }

  weights::ModelFiles write(const Tensors& tensors) {
    std::string header = "{";
    std::string data;
    for (const auto& [name, values] : tensors) {
      std::int64_t count = 1;
      std::string shape;
      for (const std::int64_t size : values.shape) {
        count *= size;
        shape += base::str_cat(shape.empty() ? "" : ",", size);
      }
      std::vector<float> numbers(static_cast<std::size_t>(count));
      std::iota(numbers.begin(), numbers.end(), values.first);
      const std::size_t begin = data.size();
      data.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
      header +=
          base::str_cat(header.size() == 1 ? "" : ",", '"', name, R"(":{"dtype":"F32","shape":[)",
                        shape, R"(],"data_offsets":[)", begin, ",", data.size(), "]}");
    }
    header += "}";
    folder_.write("model.safetensors", weights::testing::safetensors(header) + data);
    return weights::ModelFiles::open(folder_.path()).value();
  }

  Result<DecoderWeights> load(const ModelConfig& config, const Tensors& tensors) {
    return pack_weights(context_, config, write(tensors), options_, report_);
  }

  std::string refusal(const ModelConfig& config, const Tensors& tensors, ErrorCode code) {
    const auto weights = load(config, tensors);
    if (weights.ok()) {
      return "accepted";
    }
    EXPECT_EQ(weights.error().code, code) << weights.error().message;
    return weights.error().message;
  }

  weights::testing::TempFolder folder_;
  device::ThreadPool pool_{2};
  kernels::KernelContext context_{&kernels::kernels_for(device::best_isa()), &pool_};
  PackOptions options_{.format = kernels::WeightFormat::kF32};
  PackReport report_;
};

TEST_F(LoaderTest, FusedMatricesHoldTheirPartsInOrder) {
  const auto weights = load(llama_config(), llama_tensors());
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  const LayerWeights& layer = weights->layers[0];
  std::vector<float> row(4);
  const auto first_of = [&](const kernels::PackedWeights& matrix, std::int64_t index) {
    matrix.unpack_row(index, row);
    return row[0];
  };
  EXPECT_EQ(layer.qkv.weights.columns(), 8);
  EXPECT_EQ(first_of(layer.qkv.weights, 3), 12);    // last row of the queries
  EXPECT_EQ(first_of(layer.qkv.weights, 4), 1000);  // first of the keys
  EXPECT_EQ(first_of(layer.qkv.weights, 7), 2004);  // last of the values
  EXPECT_EQ(first_of(layer.gate_up.weights, 2), 8);
  EXPECT_EQ(first_of(layer.gate_up.weights, 3), 500);
  EXPECT_EQ(first_of(weights->embedding, 1), 104);
  EXPECT_EQ(first_of(weights->head, 1), 204);
}

TEST_F(LoaderTest, ReportsBytesAndProgress) {
  std::vector<double> shares;
  options_.progress = [&](double share) { shares.push_back(share); };
  ASSERT_TRUE(load(llama_config(), llama_tensors()).ok());
  EXPECT_EQ(report_.bytes_read, 4 * (20 + 4 + 20 + 4 + 16 + 8 + 8 + 16 + 4 + 12 + 12 + 12));
  EXPECT_GT(report_.packed_bytes, 0);
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_DOUBLE_EQ(shares.back(), 1.0);
}

TEST_F(LoaderTest, ADtypeThatTheConfigDoesNotSayIsThatOfTheMatrices) {
  const auto dtype_of = [&](const char* matrix, const char* other, const char* stated) {
    const auto entry = [](const char* name, const char* dtype, int begin, const char* shape) {
      return base::str_cat('"', name, R"(":{"dtype":")", dtype, R"(","shape":)", shape,
                           R"(,"data_offsets":[)", begin, ",", begin + 4, "]}");
    };
    const std::string header =
        base::str_cat("{", entry("a", matrix, 0, "[1,2]"), ",", entry("b", other, 4, "[2,1]"), ",",
                      entry("norm", "F32", 8, "[1]"), "}");
    folder_.write("model.safetensors",
                  weights::testing::safetensors(header) + std::string(12, 'x'));
    ModelConfig config = config_from_hf(base::str_cat(R"({"model_type": "llama", "hidden_size": 4,
        "intermediate_size": 3, "vocab_size": 5, "num_hidden_layers": 1,
        "num_attention_heads": 2)",
                                                      stated, "}"),
                                        "")
                             .value();
    take_dtype(weights::ModelFiles::open(folder_.path()).value(), config);
    return std::string(tensor::dtype_name(config.stored_dtype));
  };
  EXPECT_EQ(dtype_of("BF16", "BF16", ""), "bfloat16");
  EXPECT_EQ(dtype_of("F16", "F16", ""), "float16");
  EXPECT_EQ(dtype_of("BF16", "F16", ""), "float32");
  EXPECT_EQ(dtype_of("BF16", "BF16", R"(, "torch_dtype": "float16")"), "float16");
}

TEST_F(LoaderTest, NamesAMissingTensor) {
  Tensors tensors = llama_tensors();
  tensors.erase("model.layers.0.mlp.up_proj.weight");
  EXPECT_THAT(refusal(llama_config(), tensors, ErrorCode::kCorrupt),
              HasSubstr("model.layers.0.mlp.up_proj.weight"));
}

TEST_F(LoaderTest, NamesBothShapesOfAMisshapenTensor) {
  Tensors tensors = llama_tensors();
  tensors["model.layers.0.self_attn.k_proj.weight"].shape = {4, 4};
  const std::string message = refusal(llama_config(), tensors, ErrorCode::kCorrupt);
  EXPECT_THAT(message, HasSubstr("k_proj.weight"));
  EXPECT_THAT(message, HasSubstr("[4, 4]"));
  EXPECT_THAT(message, HasSubstr("[2, 4]"));
  tensors = llama_tensors();
  tensors["model.norm.weight"].shape = {1, 4};
  EXPECT_THAT(refusal(llama_config(), tensors, ErrorCode::kCorrupt), HasSubstr("model.norm"));
}

TEST_F(LoaderTest, NamesATensorThatTheModelDoesNotUse) {
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freqs", "extra"}) {
    Tensors tensors = llama_tensors();
    tensors[name] = {{4}, 0};
    EXPECT_THAT(refusal(llama_config(), tensors, ErrorCode::kUnsupported), HasSubstr(name));
  }
}

// A one-layer Gemma 3 of the same sizes in a file whose names begin so, and its config.
Tensors gemma_tensors(std::string_view before_all, std::string_view before_layers) {
  Tensors tensors;
  const auto add = [&](std::string_view stem, const Values& values) {
    tensors[base::str_cat(before_all, before_layers, stem, ".weight")] = values;
  };
  add("embed_tokens", {{5, 4}, 100});
  add("norm", {{4}, 1});
  for (const auto& [stem, shape] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
           {"input_layernorm", {4}},
           {"post_attention_layernorm", {4}},
           {"pre_feedforward_layernorm", {4}},
           {"post_feedforward_layernorm", {4}},
           {"self_attn.q_norm", {2}},
           {"self_attn.k_norm", {2}},
           {"self_attn.q_proj", {4, 4}},
           {"self_attn.k_proj", {2, 4}},
           {"self_attn.v_proj", {2, 4}},
           {"self_attn.o_proj", {4, 4}},
           {"mlp.gate_proj", {3, 4}},
           {"mlp.up_proj", {3, 4}},
           {"mlp.down_proj", {4, 3}}}) {
    add("layers.0." + stem, {shape, 10});
  }
  return tensors;
}

ModelConfig gemma_config(bool is_text_part) {
  const std::string text = R"("hidden_size": 4, "intermediate_size": 3, "vocab_size": 5,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2})";
  const std::string part = R"({"model_type": "gemma3_text", )" + text;
  return config_from_hf(
             is_text_part ? R"({"model_type": "gemma3", "text_config": )" + part + "}" : part, "")
      .value();
}

TEST_F(LoaderTest, ANormOfGemmaIsPackedWithOneAdded) {
  const auto weights = load(gemma_config(false), gemma_tensors("", "model."));
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  using Floats = std::vector<float>;
  const LayerWeights& layer = weights->layers[0];
  EXPECT_EQ(weights->final_norm, Floats({2, 3, 4, 5}));
  for (const Floats& norm :
       {layer.attention_norm, layer.attention_out_norm, layer.mlp_norm, layer.mlp_out_norm}) {
    EXPECT_EQ(norm, Floats({11, 12, 13, 14}));
  }
  EXPECT_EQ(layer.q_norm, Floats({11, 12}));
  EXPECT_EQ(layer.k_norm, Floats({11, 12}));
}

TEST_F(LoaderTest, TheTextPartIsFoundUnderEachOfItsNamesAndOtherPartsAreCounted) {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"", "model.language_model."}, {"language_model.", "model."}, {"", "model."}};
  for (const auto& [before_all, before_layers] : names) {
    Tensors tensors = gemma_tensors(before_all, before_layers);
    tensors["vision_tower.patch.weight"] = {{2, 2}, 0};
    tensors["multi_modal_projector.weight"] = {{2}, 0};
    ModelConfig config = gemma_config(true);
    const auto weights = load(config, tensors);
    EXPECT_TRUE(weights.ok()) << weights.error().message;
    note_skipped_tensors(write(tensors), config);
    ASSERT_EQ(config.remarks.size(), 1U);
    EXPECT_THAT(config.remarks.front(), HasSubstr("2 tensors"));
    EXPECT_THAT(refusal(gemma_config(false), gemma_tensors("", "model.language_model."),
                        ErrorCode::kCorrupt),
                HasSubstr("model.layers.0.input_layernorm.weight"));
    tensors["something_else.weight"] = {{2}, 0};
    EXPECT_THAT(refusal(config, tensors, ErrorCode::kUnsupported), HasSubstr("something_else"));
  }
  Tensors text = gemma_tensors("", "model.");
  text["vision_tower.patch.weight"] = {{2, 2}, 0};
  EXPECT_THAT(refusal(gemma_config(false), text, ErrorCode::kUnsupported),
              HasSubstr("vision_tower.patch.weight"));
}

TEST_F(LoaderTest, IgnoresTheDerivedBufferOfOldCheckpoints) {
  Tensors tensors = llama_tensors();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{1}, 1};
  EXPECT_TRUE(load(llama_config(), tensors).ok());
}

TEST_F(LoaderTest, ATiedHeadMayBeAbsentOrEqualButNotDifferent) {
  ModelConfig tied = llama_config();
  tied.tied_embeddings = true;
  Tensors tensors = llama_tensors();
  EXPECT_THAT(refusal(tied, tensors, ErrorCode::kCorrupt), HasSubstr("lm_head.weight"));
  tensors["lm_head.weight"].first = 100;
  EXPECT_TRUE(load(tied, tensors).ok());
  tensors.erase("lm_head.weight");
  const auto weights = load(tied, tensors);
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(weights->embedding.columns(), 0);
  EXPECT_EQ(weights->head.columns(), 5);
  EXPECT_THAT(refusal(llama_config(), tensors, ErrorCode::kCorrupt), HasSubstr("lm_head.weight"));
}

TEST_F(LoaderTest, QuantisingSparesTheEmbedding) {
  ModelConfig config = llama_config();
  const auto q4 = kernels::WeightFormat::kQ4g32;
  EXPECT_EQ(weight_format(config, WeightRole::kDown, q4), q4);
  EXPECT_EQ(weight_format(config, WeightRole::kHead, q4), q4);
  EXPECT_EQ(weight_format(config, WeightRole::kEmbedding, q4), kernels::WeightFormat::kBf16);
  const auto f8 = kernels::WeightFormat::kF8;
  EXPECT_EQ(weight_format(config, WeightRole::kHead, f8), f8);
  EXPECT_EQ(weight_format(config, WeightRole::kEmbedding, f8), kernels::WeightFormat::kBf16);
  config.tied_embeddings = true;
  EXPECT_EQ(weight_format(config, WeightRole::kHead, q4), kernels::WeightFormat::kQ8g32);
  EXPECT_EQ(weight_format(config, WeightRole::kHead, f8), kernels::WeightFormat::kQ8g32);
  EXPECT_EQ(weight_format(config, WeightRole::kHead, kernels::WeightFormat::kF32),
            kernels::WeightFormat::kF32);
}

// Scales are fp16: a group of q8g32 holds values up to 127 x 65504, one of q4g32 up to 8 x 65504.
TEST_F(LoaderTest, AValueThatAFormatCannotHoldIsNamedInsteadOfLost) {
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  Tensors tensors = llama_tensors();
  const auto refusal_of = [&](float value, kernels::WeightFormat format) {
    tensors[name].first = value;
    options_.format = format;
    return refusal(llama_config(), tensors, ErrorCode::kCorrupt);
  };
  using enum kernels::WeightFormat;
  const std::string where = "tensor \"" + name + "\" holds ";
  EXPECT_EQ(refusal_of(NAN, kQ8g32), where + "nan in row 0, which q8g32 cannot express");
  EXPECT_EQ(refusal_of(NAN, kQ4g32), where + "nan in row 0, which q4g32 cannot express");
  EXPECT_THAT(refusal_of(-INFINITY, kQ4g32), HasSubstr("holds -inf in row 0"));
  EXPECT_EQ(refusal_of(524020.0f, kQ4g32), "accepted");  // and 11 more, the last one 524,031
  EXPECT_THAT(refusal_of(524024.0f, kQ4g32), HasSubstr("holds 524033 in row 3"));
  EXPECT_EQ(refusal_of(524024.0f, kQ8g32), "accepted");
  EXPECT_THAT(refusal_of(9e6f, kQ8g32), HasSubstr("holds 9e+06 in row 0"));
  EXPECT_EQ(refusal_of(9e6f, kF8), "accepted");
  EXPECT_EQ(refusal_of(NAN, kF8), where + "nan in row 0, which fp8 cannot express");
  EXPECT_EQ(refusal_of(NAN, kF32), "accepted");  // computing says that there is none
}

TEST_F(LoaderTest, AConfigOutOfBoundsIsRefusedBeforeAnythingIsAllocated) {
  ModelConfig config = llama_config();
  config.hidden_size = 1 << 30;
  EXPECT_FALSE(Decoder::random(context_, config, kernels::WeightFormat::kF32, 1).ok());
  config = llama_config();
  config.window_tokens.clear();
  EXPECT_FALSE(Decoder::random(context_, config, kernels::WeightFormat::kF32, 1).ok());
}

TEST_F(LoaderTest, DigestTellsWeightsFormatsAndConfigsApart) {
  const auto digest = [&](const ModelConfig& config, kernels::WeightFormat format,
                          std::uint64_t seed) {
    return Decoder::random(context_, config, format, seed).value().weights_digest();
  };
  const auto f32 = kernels::WeightFormat::kF32;
  const std::string base = digest(llama_config(), f32, 1);
  EXPECT_EQ(base.size(), 64);
  EXPECT_EQ(digest(llama_config(), f32, 1), base);
  EXPECT_NE(digest(llama_config(), f32, 2), base);
  EXPECT_NE(digest(llama_config(), kernels::WeightFormat::kBf16, 1), base);
  ModelConfig other = llama_config();
  other.rotary.inverse_frequencies[0] *= 0.5;
  EXPECT_NE(digest(other, f32, 1), base);
}

// It is asked for by whoever needs it first, while requests are computed.
TEST_F(LoaderTest, TheDigestIsTakenWhileThePoolIsInUseAndWithAnyNumberOfThreads) {
  ModelConfig config = llama_config();
  config.vocab_size = 1 << 20;  // some pieces that are hashed apart
  const auto decoder_of = [&](device::ThreadPool& pool) {
    return Decoder::random({.table = context_.table, .pool = &pool}, config,
                           kernels::WeightFormat::kF32, 1)
        .value();
  };
  device::ThreadPool two(2);
  device::ThreadPool one(1);
  const Decoder busy = decoder_of(two);
  std::string digest;
  std::atomic<bool> both = false;
  two.run(2, [&](int item, int) {
    if (item == 1) {
      both = true;
      return;
    }
    device::spin_until([&] { return both.load(); });
    digest = busy.weights_digest();
  });
  EXPECT_EQ(digest, decoder_of(one).weights_digest());
}

TEST_F(LoaderTest, ASinkGetsEveryWeightInsteadOfTheResult) {
  struct Count final : WeightSink {
    Status take(const WeightId& /*id*/, const kernels::PackedWeights& weights) override {
      bytes += static_cast<std::int64_t>(weights.size_bytes());
      return weights.data() != nullptr ? Status() : Status(ErrorCode::kIo, "not there");
    }
    Status take(const WeightId& id, const std::vector<float>& values) override {
      bytes += static_cast<std::int64_t>(values.size() * sizeof(float));
      return id.role == refused ? Status(ErrorCode::kOutOfBlocks, "full") : Status();
    }
    std::int64_t bytes = 0;
    std::optional<WeightRole> refused;
  };
  Count sink;
  const auto weights = random_weights(context_, llama_config(), {.sink = &sink}, 7, report_);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(sink.bytes, report_.packed_bytes);
  EXPECT_EQ(weights->head.data(), nullptr);
  EXPECT_TRUE(weights->final_norm.empty());
  EXPECT_EQ(weights->layers.back().down.weights.data(), nullptr);
  sink.refused = WeightRole::kFinalNorm;
  const auto refused = random_weights(context_, llama_config(), {.sink = &sink}, 7, report_);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
}

TEST_F(LoaderTest, PackedPartsAreViewedAsTheWeightsThatTheyAre) {
  const ModelConfig config = llama_config();
  const Decoder packed =
      Decoder::random(context_, config, kernels::WeightFormat::kQ8g32, 7).value();
  std::vector<kernels::PackedPart> parts = packed.packed_parts();
  const auto viewed = Decoder::map(context_, config, {.parts = parts, .digest = "given"});
  ASSERT_TRUE(viewed.ok()) << viewed.error().message;
  const PackReport report = viewed->pack_report();
  EXPECT_EQ(report.bytes_read, 0);
  EXPECT_EQ(report.mapped_bytes, packed.pack_report().packed_bytes);
  EXPECT_EQ(report.packed_bytes, packed.pack_report().packed_bytes);
  EXPECT_EQ(report.layer_bytes, packed.pack_report().layer_bytes);
  EXPECT_EQ(report.layer_bytes_of, packed.pack_report().layer_bytes_of);
  EXPECT_EQ(report.main_format, packed.pack_report().main_format);
  EXPECT_EQ(report.head_format, packed.pack_report().head_format);
  EXPECT_EQ(viewed->weights_digest(), "given");
  const std::vector<kernels::PackedPart> again = viewed->packed_parts();
  ASSERT_EQ(again.size(), parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(again[i].format, parts[i].format);
    EXPECT_TRUE(std::ranges::equal(again[i].bytes, parts[i].bytes)) << i;
    EXPECT_EQ(again[i].bytes.data() == parts[i].bytes.data(), parts[i].format.has_value())
        << "matrices stay where they are";
  }
}

TEST_F(LoaderTest, PackedPartsOfAnotherConfigAreRefused) {
  const ModelConfig config = llama_config();
  const Decoder packed =
      Decoder::random(context_, config, kernels::WeightFormat::kQ8g32, 7).value();
  const auto refused = [&](const auto& change) {
    std::vector<kernels::PackedPart> parts = packed.packed_parts();
    change(parts);
    const auto viewed = Decoder::map(context_, config, {.parts = parts});
    return !viewed.ok() && viewed.error().code == ErrorCode::kCorrupt;
  };
  using Parts = std::vector<kernels::PackedPart>;
  EXPECT_TRUE(refused([](Parts& parts) { parts.pop_back(); }));
  EXPECT_TRUE(refused([](Parts& parts) { parts.push_back(parts.back()); }));
  EXPECT_TRUE(refused([](Parts& parts) { std::swap(parts[0], parts[1]); }));
  EXPECT_TRUE(refused([](Parts& parts) { parts.front().columns += 1; }));
  EXPECT_TRUE(refused([](Parts& parts) { parts.front().format.reset(); }));
  EXPECT_TRUE(refused([](Parts& parts) {  // a matrix of one input is no vector
    parts[1].format = kernels::WeightFormat::kF32;
  }));
}

TEST_F(LoaderTest, RandomWeightsHaveTheDeviationThatKeepsActivationsInRange) {
  ModelConfig config = llama_config();
  config.hidden_size = 256;
  const auto weights =
      random_weights(context_, config, {.format = kernels::WeightFormat::kF32}, 7, report_);
  ASSERT_TRUE(weights.ok());
  std::vector<float> row(256);
  double squares = 0;
  double sum = 0;
  for (std::int64_t i = 0; i < config.vocab_size; ++i) {
    weights->head.unpack_row(i, row);
    for (const float value : row) {
      squares += double{value} * value;
      sum += value;
    }
  }
  const double count = 256.0 * config.vocab_size;
  EXPECT_NEAR(squares / count * 256, 1.0, 0.1);
  EXPECT_NEAR(sum / count, 0.0, 0.01);
}

}  // namespace
}  // namespace quire::model
