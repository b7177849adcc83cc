#include "quire/diagnostics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "quire/result.h"

namespace quire {
namespace {

std::string model_path(const std::string& name) {
  return std::string(QUIRE_SOURCE_DIR) + "/models/cardfile/" + name;
}

// The text as the function has always written it.
TEST(Inspect, JsonOfAPresetIsByteForByteThatOfEarlierVersions) {
  EXPECT_EQ(
      inspect_json("preset:llama-160m").value(),
      R"({"model":"preset:llama-160m","family":"llama","shape":{"layers":12,"hidden_size":768,)"
      R"("intermediate_size":3072,"heads":12,"kv_heads":12,"head_dim":64,"vocab_size":32000,)"
      R"("max_positions":131072,"tied_embeddings":false},"parameters":162417408,)"
      R"("dtype":"bfloat16","weight_bytes":{"auto":324873216,"float32":649669632,)"
      R"("bfloat16":324873216,"q8g32":195664896,"q4g32":126753792},)"
      R"("kv_bytes_per_token":{"float32":73728,"bfloat16":36864,"int8":19008,"fp8":18720,)"
      R"("int4":11520},"groups":[{"kind":"full",)"
      R"("layers":[0,1,2,3,4,5,6,7,8,9,10,11],"bytes_per_token":36864}],"remarks":[],)"
      R"("unsupported":[]})");
}

TEST(Inspect, JsonOfAModelFolderIsByteForByteThatOfEarlierVersions) {
  const std::string path = model_path("model");
  EXPECT_EQ(
      inspect_json(path).value(),
      R"({"model":")" + path +
          R"(","family":"llama","shape":{"layers":8,"hidden_size":256,"intermediate_size":704,)"
          R"("heads":4,"kv_heads":2,"head_dim":64,"vocab_size":2048,"max_positions":2048,)"
          R"("tied_embeddings":true},"parameters":6426880,"dtype":"bfloat16","weight_bytes":)"
          R"({"auto":12862464,"float32":25707520,"bfloat16":12862464,"q8g32":6841344,)"
          R"("q4g32":3892224},"kv_bytes_per_token":{"float32":8192,"bfloat16":4096,"int8":2112,)"
          R"("fp8":2080,"int4":1280},)"
          R"("groups":[{"kind":"full","layers":[0,1,2,3,4,5,6,7],"bytes_per_token":4096}],)"
          R"("remarks":[],)"
          R"("tensors":74,"file_bytes":12853760,"encodings":{"BF16":{"tensors":74}},)"
          R"("tokenizer":{"vocab_size":2048,"bos_token":"<bos>","eos_token":"<eos>"},)"
          R"("chat_template":true,"unsupported":[]})");
}

TEST(Inspect, JsonIsThatOfTheValue) {
  for (const std::string& model : {model_path("model"), std::string("preset:llama-160m")}) {
    EXPECT_EQ(inspect_json(model).value(), to_json(inspect(model).value()).value());
  }
}

TEST(Inspect, ValueSaysWhatTheFilesHave) {
  const ModelInfo info = inspect(model_path("model")).value();
  EXPECT_EQ(info.config->shape.kv_heads, 2);
  EXPECT_EQ(info.config->weight_bytes.front(), (NamedNumbers::value_type{"auto", 12862464}));
  EXPECT_EQ(info.files->encodings.size(), 1U);
  EXPECT_EQ(info.files->tokenizer->eos_token, "<eos>");
  EXPECT_TRUE(info.files->has_chat_template);
  EXPECT_TRUE(info.unsupported.empty());
  EXPECT_FALSE(inspect("preset:llama-160m")->files.has_value());
}

TEST(Inspect, JsonOfAnUnsupportedModelNamesIt) {
  ModelInfo info = {.model = "m"};
  info.files = ModelInfo::Files{
      .tensors = 2,
      .file_bytes = 8,
      .encodings = {{.name = "Q4_K", .tensors = 2, .computed_as = {{"q4m32", 1}, {"bf16", 1}}}}};
  info.unsupported = {"tensor a of type IQ1_S"};
  EXPECT_EQ(to_json(info).value(),
            R"({"model":"m","tensors":2,"file_bytes":8,"encodings":{"Q4_K":{"tensors":2,)"
            R"("computed_as":{"q4m32":1,"bf16":1}}},"tokenizer":null,"chat_template":false,)"
            R"("unsupported":["tensor a of type IQ1_S"]})");
  info.files->tokenizer = ModelInfo::Text{.vocab_size = 3, .bos_token = "", .eos_token = "e"};
  info.files->chat_template_error = "there is none";
  EXPECT_NE(to_json(info)->find(R"("chat_template":false,"chat_template_error":"there is none")"),
            std::string::npos);
}

TEST(Inspect, RefusesWhatIsNoModel) {
  EXPECT_EQ(inspect("/no/such/model").error().code, inspect_json("/no/such/model").error().code);
}

TEST(Doctor, JsonIsByteForByteThatOfEarlierVersions) {
  const MachineInfo machine = {.version = "0.1.0",
                               .compiler = "12",
                               .system = "Linux",
                               .cpu = "a \"CPU\"",
                               .cores = 2,
                               .memory_bytes = 1024,
                               .chosen_isa = "avx2",
                               .isas = {{.name = "portable", .self_test = "ok"},
                                        {.name = "avx2", .self_test = "norm is wrong"}},
                               .boost_version = "1_81",
                               .cuda = "no driver"};
  EXPECT_EQ(to_json(machine).value(),
            R"({"version":"0.1.0","compiler":"12","system":"Linux","cpu":"a \"CPU\"","cores":2,)"
            R"("memory_bytes":1024,"isa":{"chosen":"avx2","supported":["portable","avx2"],)"
            R"("self_test":{"portable":"ok","avx2":"norm is wrong"}},"libraries":{"boost":"1_81"},)"
            R"("devices":{"cpu":"a \"CPU\"","cuda":"no driver"}})");
}

TEST(Doctor, TellsOfThisMachineAndItsJsonIsThatOfTheValue) {
  const MachineInfo machine = doctor().value();
  EXPECT_GE(machine.cores, 1);
  EXPECT_TRUE(
      std::ranges::all_of(machine.isas, [](const auto& isa) { return isa.self_test == "ok"; }));
  EXPECT_TRUE(std::ranges::any_of(machine.isas,
                                  [&](const auto& isa) { return isa.name == machine.chosen_isa; }));
  EXPECT_EQ(doctor_json().value(), to_json(machine).value());
}

TEST(Bench, RefusesBadOptionsOfTheModelToo) {
  EXPECT_EQ(BenchOptions{.prompt = {0}}.validate().error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(BenchOptions{.llm = {.block_tokens = 0}}.validate().error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace quire
