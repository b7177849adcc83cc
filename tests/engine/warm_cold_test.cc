// Warm equals cold, bit for bit: for every family variant, dtype and format of quantised weights
// the logits of a request that reuses cached tokens equal those of the cold run, for every cut,
// block size, prefill split and batch mix tried. Models: the tiny random checkpoints of
// tests/golden/model.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/base/test_length.h"
#include "quire/llm.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kTokens = 75;

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(source_path("tests/golden/model"))) {
    if (fs::exists(entry.path() / "config.json") && computes_here(entry.path().string())) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Dtypes of the computation, and formats that weights are quantised to; int8: the format of KV.
std::vector<std::string> weights() {
  return on_gpu() ? std::vector<std::string>{"bfloat16", "int8"}
                  : std::vector<std::string>{"float32", "bfloat16", "q8g32", "q4g32", "int8"};
}

// Returns each model with weights, which change from model to model in the short test.
std::vector<std::tuple<std::string, std::string>> cases() {
  const std::vector<std::string> kinds = weights();
  const auto taken = base::test_length(kinds.size(), std::size_t{2});
  std::vector<std::tuple<std::string, std::string>> all;
  std::size_t next = 0;
  for (const std::string& model : model_names()) {
    for (std::size_t i = 0; i < taken; ++i) {
      all.emplace_back(model, kinds[next++ % kinds.size()]);
    }
  }
  return all;
}

class WarmCold : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    path_ = source_path("tests/golden/model/") + std::get<0>(GetParam());
    const auto text = base::read_file(path_ + "/config.json");
    ASSERT_TRUE(text.ok());
    const auto config = base::parse_json(*text, "config.json");
    const base::JsonView whole = config.value();
    const base::JsonView model = whole.contains("text_config") ? whole.find("text_config") : whole;
    const auto vocab = static_cast<std::uint32_t>(base::get_int(model, "vocab_size", 0).value());
    std::uint32_t seed = 17;
    for (std::size_t i = 0; i < kTokens; ++i) {
      seed = seed * 1664525u + 1013904223u;
      ids_.push_back(static_cast<TokenId>((seed >> 8) % vocab));
    }
    LLM llm = open({});
    const auto cold = llm.forward(ids_, ForwardReuse::kNone);
    ASSERT_TRUE(cold.ok()) << cold.error().message;
    cold_ = cold->logits;
    vocab_ = cold->vocab_size;
  }

  [[nodiscard]] LLM open(LLMOptions options) const {
    options.device = test_device();
    const std::string& weights = std::get<1>(GetParam());
    (weights == "int8"          ? options.kv_dtype
     : weights.starts_with('q') ? options.quantize
                                : options.dtype) = weights;
    if (on_gpu() && weights == "int8") {
      options.dtype = "bfloat16";
    }
    options.kv_budget_bytes = std::int64_t{64} << 20;
    options.threads = 2;
    auto llm = LLM::open(path_, options);
    EXPECT_TRUE(llm.ok()) << (llm.ok() ? "" : llm.error().message);
    return std::move(llm).value();
  }

  // Requests of a model with states go on from where one ended, whatever the blocks.
  [[nodiscard]] bool has_states() const {
    const std::string& model = std::get<0>(GetParam());
    return model.starts_with("lfm2") || model.starts_with("qwen3_5") ||
           model.starts_with("qwen3_next") || model.starts_with("granitemoehybrid") ||
           model.starts_with("nemotron_h");
  }

  // A GPU computes on blocks of some sizes with other kernels: its cold run has the same blocks.
  void compare_with(LLM& llm) {
    if (on_gpu()) {
      cold_ = llm.forward(ids_, ForwardReuse::kNone).value().logits;
      ASSERT_TRUE(llm.clear_prefix_cache().ok());
    }
  }

  // The rows of the cold run that `output` should hold.
  [[nodiscard]] std::vector<float> cold_tail(const ForwardOutput& output) const {
    return {cold_.end() - std::ssize(output.logits), cold_.end()};
  }

  std::string path_;
  std::vector<TokenId> ids_;
  std::vector<float> cold_;
  std::int64_t vocab_ = 0;
};

TEST_P(WarmCold, EveryCutGivesTheColdBits) {
  LLM llm = open({.block_tokens = 1});
  compare_with(llm);
  for (std::size_t cut = 1; cut < kTokens; ++cut) {
    ASSERT_TRUE(llm.clear_prefix_cache().ok());
    const auto first = llm.forward({ids_.data(), cut});
    ASSERT_TRUE(first.ok()) << first.error().message;
    const auto warm = llm.forward(ids_).value();
    ASSERT_EQ(warm.cached_tokens, static_cast<std::int64_t>(cut));
    ASSERT_EQ(warm.logits, cold_tail(warm)) << "cut " << cut;
  }
}

TEST_P(WarmCold, EveryBlockSizeGivesTheColdBits) {
  for (std::int32_t block = 1; block <= 32; ++block) {
    LLM llm = open({.block_tokens = block});
    compare_with(llm);
    ASSERT_TRUE(llm.forward({ids_.data(), 50}).ok());
    const auto warm = llm.forward(ids_).value();
    EXPECT_EQ(warm.cached_tokens, has_states() ? 50 : 50 / block * block);
    EXPECT_EQ(warm.logits, cold_tail(warm)) << "block " << block;
  }
}

TEST_P(WarmCold, EveryPrefillSplitGivesTheColdBits) {
  for (const std::int32_t rows : {1, 2, 3, 7, 16, 33, 64}) {
    LLM llm = open({.max_batch_tokens = rows});
    const auto split = llm.forward(ids_, ForwardReuse::kNone).value();
    EXPECT_EQ(split.logits, cold_) << "rows " << rows;
  }
}

TEST_P(WarmCold, CompanyInTheBatchGivesTheColdBits) {
  LLM llm = open({.max_batch_tokens = 24});
  std::vector<Stream> company;
  for (std::size_t i = 0; i < 5; ++i) {
    const std::vector<TokenId> prompt(ids_.begin(), ids_.begin() + 3 + static_cast<long>(11 * i));
    auto stream = llm.stream(prompt, {.max_tokens = 60, .ignore_eos = true, .seed = i});
    ASSERT_TRUE(stream.ok()) << stream.error().message;
    company.push_back(std::move(stream).value());
  }
  const auto mixed = llm.forward(ids_, ForwardReuse::kNone).value();
  EXPECT_EQ(mixed.logits, cold_);
}

INSTANTIATE_TEST_SUITE_P(Families, WarmCold, testing::ValuesIn(cases()), [](const auto& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param);
});

}  // namespace
}  // namespace quire
