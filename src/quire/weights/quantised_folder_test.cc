// Matrices in several tensors: what is refused, by method and name. Values are compared with
// numpy's in tests/model/quantised_test.cc.
#include "quire/weights/quantised_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/weights/model_files.h"
#include "quire/weights/quantisation.h"
#include "quire/weights/tensor_info.h"
#include "quire/weights/test_files.h"

namespace quire::weights {
namespace {

using ::testing::HasSubstr;

struct Stored {
  std::string type;
  std::vector<std::int64_t> shape;
  std::string data = {};  // zeros where it is empty
};
using Folder = std::map<std::string, Stored>;

int item_bytes(std::string_view type) {
  static const std::map<std::string_view, int> kBytes = {{"F32", 4}, {"F16", 2},    {"BF16", 2},
                                                         {"I32", 4}, {"I64", 8},    {"I8", 1},
                                                         {"U8", 1},  {"F8_E4M3", 1}};
  return kBytes.at(type);
}

constexpr std::string_view kGptq = R"("quant_method": "gptq", "bits": 4, "group_size": 32)";
constexpr std::string_view kAwq = R"("quant_method": "awq", "bits": 4, "group_size": 32)";
constexpr std::string_view kBlocks = R"("quant_method": "fp8", "weight_block_size": [128, 128])";
constexpr std::string_view kMxfp4 = R"("quant_method": "mxfp4")";
constexpr std::string_view kPacked = R"("quant_method": "compressed-tensors",
  "format": "pack-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 4,
  "type": "int", "strategy": "group", "group_size": 32, "symmetric": true}}})";
constexpr std::string_view kInt8 = R"("quant_method": "compressed-tensors",
  "format": "int-quantized", "config_groups": {"group_0": {"weights": {"num_bits": 8,
  "type": "int", "strategy": "channel"}}})";

// A matrix "a" of 8 outputs and 64 inputs by each method.
Folder gptq() {
  return {
      {"a.qweight", {"I32", {8, 8}}}, {"a.qzeros", {"I32", {2, 1}}}, {"a.scales", {"F16", {2, 8}}}};
}
Folder awq() {
  return {{"a.qweight", {"I32", {64, 1}}},
          {"a.qzeros", {"I32", {2, 1}}},
          {"a.scales", {"F16", {2, 8}}}};
}
Folder packed() {
  return {{"a.weight_packed", {"I32", {8, 8}}}, {"a.weight_scale", {"BF16", {8, 2}}}};
}
Folder int8() { return {{"a.weight", {"I8", {8, 64}}}, {"a.weight_scale", {"BF16", {8, 1}}}}; }
Folder fp8() {
  return {{"a.weight", {"F8_E4M3", {8, 64}}}, {"a.weight_scale_inv", {"F32", {1, 1}}}};
}
Folder mxfp4() { return {{"a_blocks", {"U8", {2, 8, 2, 16}}}, {"a_scales", {"U8", {2, 8, 2}}}}; }

std::string words(const std::vector<std::int32_t>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::int32_t)};
}

class QuantisedFolders : public ::testing::Test {
 protected:
  Result<ModelFiles> open(std::string_view quantisation, const Folder& tensors) {
    std::string header = "{";
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      std::size_t count = static_cast<std::size_t>(item_bytes(tensor.type));
      std::string shape;
      for (const std::int64_t size : tensor.shape) {
        count *= static_cast<std::size_t>(size);
        shape += base::str_cat(shape.empty() ? "" : ",", size);
      }
      const std::size_t begin = data.size();
      data += tensor.data.empty() ? std::string(count, '\0') : tensor.data;
      header += base::str_cat(header.size() == 1 ? "" : ",", '"', name, R"(":{"dtype":")",
                              tensor.type, R"(","shape":[)", shape, R"(],"data_offsets":[)", begin,
                              ",", data.size(), "]}");
    }
    folder_.write("model.safetensors", testing::safetensors(header + "}") + data);
    folder_.write("config.json", base::str_cat(R"({"quantization_config": {)", quantisation, "}}"));
    return ModelFiles::open(folder_.path());
  }
  std::string refused(std::string_view quantisation, const Folder& tensors) {
    const auto files = open(quantisation, tensors);
    if (files.ok()) {
      return "accepted";
    }
    EXPECT_EQ(files.error().code, ErrorCode::kCorrupt);
    return files.error().message;
  }
  // Returns the refusal of a folder one of whose tensors is another.
  std::string changed(std::string_view quantisation, Folder tensors, const std::string& name,
                      Stored tensor) {
    tensors[name] = std::move(tensor);
    return refused(quantisation, tensors);
  }
  std::string without(std::string_view quantisation, Folder tensors, const std::string& name) {
    tensors.erase(name);
    return refused(quantisation, tensors);
  }

  testing::TempFolder folder_;
};

TEST_F(QuantisedFolders, PartsBecomeOneMatrix) {
  for (const auto& [quantisation, tensors] :
       std::vector<std::pair<std::string_view, Folder>>{{kGptq, gptq()},
                                                        {kAwq, awq()},
                                                        {kPacked, packed()},
                                                        {kInt8, int8()},
                                                        {kBlocks, fp8()}}) {
    Folder with_norm = tensors;
    with_norm["norm.weight"] = {"BF16", {64}};
    const auto files = open(quantisation, with_norm);
    ASSERT_TRUE(files.ok()) << files.error().message;
    EXPECT_EQ(files->tensors().size(), 2u) << quantisation;
    EXPECT_TRUE(files->unsupported().empty());
    ASSERT_NE(files->find("a.weight"), nullptr);
    EXPECT_EQ(files->find("a.weight")->shape, (std::vector<std::int64_t>{8, 64}));
    std::vector<float> row(64, 1.0f);
    read_rows(*files->find("a.weight"), 7, 1, row);
    EXPECT_EQ(row, std::vector<float>(64)) << "scales of 0";
  }
}

TEST_F(QuantisedFolders, AStackKeepsItsShape) {
  const auto files = open(kMxfp4, mxfp4());
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->find("a")->shape, (std::vector<std::int64_t>{2, 8, 64}));
}

TEST_F(QuantisedFolders, WithoutAMethodNothingIsCombined) {
  const auto files = open("", gptq());
  ASSERT_TRUE(files.ok()) << files.error().message;
  EXPECT_EQ(files->find("a.weight"), nullptr);
  EXPECT_EQ(files->unsupported().size(), 2u);
}

TEST_F(QuantisedFolders, PartsOfGptqThatDoNotAddUpAreNamed) {
  EXPECT_THAT(without(kGptq, gptq(), "a.scales"), HasSubstr("\"a.scales\" is missing"));
  EXPECT_THAT(without(kGptq, gptq(), "a.qzeros"), HasSubstr("\"a.qzeros\" is missing"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.scales", {"F16", {3, 8}}),
              HasSubstr("\"a.scales\" of type F16 and shape [3, 8] must have shape [2, 8]"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.scales", {"I32", {2, 8}}),
              HasSubstr("must be of type F16"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.qzeros", {"I32", {2, 2}}),
              HasSubstr("must have shape [2, 1]"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.qweight", {"I32", {8, 9}}), HasSubstr("words of 8"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.qweight", {"I32", {64}}), HasSubstr("must have 2 sides"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.qweight", {"I32", {0, 8}}), HasSubstr("each of 1 or more"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.qweight", {"I64", {8, 8}}), HasSubstr("of type I32"));
  EXPECT_THAT(changed(kGptq, gptq(), "a.weight", {"BF16", {8, 64}}),
              HasSubstr("stands beside \"a.weight\""));
  EXPECT_THAT(changed(kGptq, gptq(), "a.g_idx", {"I32", {63}}), HasSubstr("must have shape [64]"));
}

TEST_F(QuantisedFolders, AGroupThatIsNotThereIsNamed) {
  std::vector<std::int32_t> groups(64, 1);
  groups[5] = 2;
  EXPECT_THAT(changed(kGptq, gptq(), "a.g_idx", {"I32", {64}, words(groups)}),
              HasSubstr("holds group 2 for input 5; there are 2"));
  groups[5] = -1;
  EXPECT_THAT(changed(kGptq, gptq(), "a.g_idx", {"I32", {64}, words(groups)}),
              HasSubstr("holds group -1 for input 5"));
}

TEST_F(QuantisedFolders, InputsInAnotherOrderHaveNoCodes) {
  Folder tensors = gptq();
  std::vector<std::int32_t> groups(64);
  for (std::size_t i = 32; i < 64; ++i) {
    groups[i] = 1;
  }
  tensors["a.g_idx"] = {"I32", {64}, words(groups)};
  const auto in_order = open(kGptq, tensors);
  ASSERT_TRUE(in_order.ok()) << in_order.error().message;
  EXPECT_EQ(code_kind(*in_order->find("a.weight")), CodeKind::kFour);
  std::swap(groups[31], groups[32]);
  tensors["a.g_idx"] = {"I32", {64}, words(groups)};
  const auto mixed = open(kGptq, tensors);
  ASSERT_TRUE(mixed.ok()) << mixed.error().message;
  EXPECT_EQ(code_kind(*mixed->find("a.weight")), CodeKind::kNone);
}

TEST_F(QuantisedFolders, PartsOfOtherMethodsThatDoNotAddUpAreNamed) {
  EXPECT_THAT(changed(kAwq, awq(), "a.qzeros", {"I32", {1, 1}}),
              HasSubstr("must have shape [2, 1]"));
  EXPECT_THAT(without(kPacked, packed(), "a.weight_scale"),
              HasSubstr("\"a.weight_scale\" is missing"));
  EXPECT_THAT(changed(kPacked, packed(), "a.weight_scale", {"BF16", {8, 3}}),
              HasSubstr("must have shape [8, 2]"));
  EXPECT_THAT(changed(kPacked, packed(), "a.weight_shape", {"I64", {2}, words({8, 0, 73, 0})}),
              HasSubstr("says [8, 73]"));
  EXPECT_THAT(changed(kPacked, packed(), "a.weight_shape", {"I64", {2}, words({8, 0, 0, -1})}),
              HasSubstr("which \"a.weight_packed\" of shape [8, 8] does not hold"));
  EXPECT_THAT(changed(kPacked, packed(), "a.weight_zero_point", {"I32", {2, 2}}),
              HasSubstr("must have shape [1, 2]"));
  EXPECT_THAT(changed(kInt8, int8(), "a.weight_scale", {"BF16", {8}}),
              HasSubstr("must have shape [8, 1]"));
  EXPECT_THAT(changed(kBlocks, fp8(), "a.weight_scale_inv", {"F32", {1, 2}}),
              HasSubstr("must have shape [1, 1]"));
  EXPECT_THAT(without(kBlocks, fp8(), "a.weight_scale_inv"),
              HasSubstr("\"a.weight_scale\" is missing"));
  EXPECT_THAT(changed(kMxfp4, mxfp4(), "a_scales", {"U8", {2, 8, 3}}),
              HasSubstr("must have shape [2, 8, 2]"));
  EXPECT_THAT(changed(kMxfp4, mxfp4(), "a_blocks", {"U8", {2, 8, 2, 8}}),
              HasSubstr("groups of 16 bytes"));
}

TEST_F(QuantisedFolders, AsymmetricCodesNeedTheirZeroPoints) {
  std::string asymmetric(kPacked);
  asymmetric.replace(asymmetric.find("true"), 4, "false");
  EXPECT_THAT(refused(asymmetric, packed()), HasSubstr("has no \"weight_zero_point\""));
}

// Zero points that contradict "sym", and scales that fp16 does not hold.
TEST_F(QuantisedFolders, WhatAKindDoesNotHoldIsNoticedWhileItIsRead) {
  std::vector<std::uint8_t> codes(64);
  std::vector<std::uint16_t> scales(2);
  Folder tensors = gptq();
  tensors["a.qzeros"].data = words({0x77777777, 0x77777777});
  const auto right = open(kGptq, tensors);
  ASSERT_TRUE(right.ok()) << right.error().message;
  read_codes(*right->find("a.weight"), 0, 1, {.codes = codes, .scales = scales});
  EXPECT_FALSE(has_misfits(*right->find("a.weight")));
  tensors["a.qzeros"].data = words({0x77777777, 0x77777767});
  const auto wrong = open(kGptq, tensors);
  ASSERT_TRUE(wrong.ok()) << wrong.error().message;
  read_codes(*wrong->find("a.weight"), 0, 1, {.codes = codes, .scales = scales});
  EXPECT_FALSE(has_misfits(*wrong->find("a.weight")));
  read_codes(*wrong->find("a.weight"), 1, 1, {.codes = codes, .scales = scales});
  EXPECT_TRUE(has_misfits(*wrong->find("a.weight")));

  Folder bytes = int8();
  bytes["a.weight_scale"].data = std::string(16, '\x01');  // 2^-125 or so
  const auto small = open(kInt8, bytes);
  ASSERT_TRUE(small.ok()) << small.error().message;
  read_codes(*small->find("a.weight"), 0, 1, {.codes = codes, .scales = scales});
  EXPECT_TRUE(has_misfits(*small->find("a.weight")));
}

std::string refusal_of(std::string_view quantisation) {
  const base::Json config =
      base::parse_json(base::str_cat(R"({"quantization_config": {)", quantisation, "}}"),
                       "config.json")
          .value();
  const auto how = parse_quantisation(config);
  return how.ok() ? "accepted" : how.error().message;
}

TEST(Quantisation, IsRefusedByMethodAndName) {
  const std::vector<std::pair<std::string_view, std::string_view>> cases = {
      {R"("quant_method": "bitsandbytes", "load_in_4bit": true)", "\"bitsandbytes\""},
      {R"("bits": 4)", "method \"\""},
      {R"("quant_method": "gptq", "bits": 3)", "\"bits\" = 3"},
      {R"("quant_method": "gptq", "checkpoint_format": "marlin")", "\"checkpoint_format\""},
      {R"("quant_method": "gptq", "dynamic": {"+:.*": {"bits": 8}})", "\"dynamic\""},
      {R"("quant_method": "gptq", "group_size": 0)", "\"group_size\" 0"},
      {R"("quant_method": "gptq", "pack_dtype": "int16")", "\"pack_dtype\""},
      {R"("quant_method": "awq", "version": "gemv")", "\"version\" = \"gemv\""},
      {R"("quant_method": "awq", "bits": 8)", "\"bits\" = 8"},
      {R"("quant_method": "fp8", "fmt": "e5m2")", "\"fmt\" = \"e5m2\""},
      {R"("quant_method": "fp8", "weight_block_size": [128])", "\"weight_block_size\" is [128]"},
      {R"("quant_method": "fp8", "weight_block_size": [0, 128])", "list of two sizes"},
      {R"("quant_method": "compressed-tensors", "format": "marlin-24")", "\"marlin-24\""},
      {R"("quant_method": "compressed-tensors", "format": "pack-quantized")", "\"config_groups\""},
      {R"("quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
          {"a": {"weights": {"num_bits": 4, "type": "int", "strategy": "tensor"}}})",
       "\"strategy\" = \"tensor\""},
      {R"("quant_method": "compressed-tensors", "format": "int-quantized", "config_groups":
          {"a": {"weights": {"num_bits": 4, "type": "int", "strategy": "channel"}}})",
       "\"num_bits\" = 4"},
      {R"("quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
          {"a": {"weights": {"num_bits": 4, "type": "float", "strategy": "group"}}})",
       "type int"},
      {R"("quant_method": "compressed-tensors", "format": "int-quantized", "config_groups":
          {"a": {}, "b": {}})",
       "one group"},
      {R"("quant_method": "compressed-tensors", "format": "int-quantized", "kv_cache_scheme":
          {"num_bits": 8}, "config_groups": {"a": {}})",
       "\"kv_cache_scheme\""}};
  for (const auto& [quantisation, message] : cases) {
    EXPECT_THAT(refusal_of(quantisation), HasSubstr(std::string(message))) << quantisation;
  }
  EXPECT_EQ(refusal_of(kGptq), "accepted");
  EXPECT_EQ(refusal_of(""), "accepted");
}

}  // namespace
}  // namespace quire::weights
