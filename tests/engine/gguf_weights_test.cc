// A GGUF file that is computed from its own codes (q4m32): a start that maps what an earlier one
// has packed computes the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"
#include "quire/weights/test_files.h"

namespace quire {
namespace {

using ::testing::IsEmpty;
using weights::testing::counted;
using weights::testing::raw;

// Types of GGUF metadata, and ggml's of tensors.
constexpr std::uint32_t kUint32 = 4, kFloat32 = 6, kString = 8;
constexpr std::uint32_t kF32 = 0, kQ4WithMinimum = 3;

// A Llama of one layer without text; every matrix is Q4_1, of random codes.
class GgufFile {
 public:
  GgufFile() {
    file_.key("general.architecture", kString, counted("llama"));
    const std::vector<std::pair<std::string_view, std::uint32_t>> sizes = {
        {"context_length", 256}, {"embedding_length", kHidden}, {"feed_forward_length", kInner},
        {"block_count", 1},      {"attention.head_count", 2},
    };
    for (const auto& [name, size] : sizes) {
      file_.key("llama." + std::string(name), kUint32, raw(size));
    }
    file_.key("llama.attention.layer_norm_rms_epsilon", kFloat32, raw(1e-5f));
    add_matrix("token_embd", 40, kHidden);
    add_matrix("output", 40, kHidden);
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      add_matrix("blk.0." + std::string(name), kHidden, kHidden);
    }
    add_matrix("blk.0.ffn_gate", kInner, kHidden);
    add_matrix("blk.0.ffn_up", kInner, kHidden);
    add_matrix("blk.0.ffn_down", kHidden, kInner);
    for (const char* name : {"output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"}) {
      file_.tensor(std::string(name) + ".weight", std::vector<std::uint64_t>{kHidden}, kF32,
                   file_.data.size());
      for (std::uint64_t i = 0; i < kHidden; ++i) {
        file_.data += raw(1.0f);
      }
    }
  }

  [[nodiscard]] std::string build() const { return file_.build(); }

 private:
  static constexpr std::uint32_t kHidden = 64, kInner = 128;

  // Blocks of 32 values: scale, minimum, 16 bytes of codes.
  void add_matrix(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    file_.tensor(name + ".weight", std::vector{columns, rows}, kQ4WithMinimum, file_.data.size());
    for (std::uint64_t block = 0; block < rows * columns / 32; ++block) {
      file_.data += raw(tensor::float_to_fp16(0.02f)) + raw(tensor::float_to_fp16(-0.15f));
      std::string codes(16, '\0');
      std::ranges::generate(codes, [&] { return static_cast<char>(random_()); });
      file_.data += codes;
    }
    file_.data.resize((file_.data.size() + 31) / 32 * 32);
  }

  weights::testing::GgufBuilder file_;
  std::mt19937 random_{5};
};

struct Start {
  double read_bytes = 0, mapped_bytes = 0;
  std::vector<std::string> remarks;
  std::vector<float> logits;
};

Start start(const std::filesystem::path& model, const LLMOptions& options) {
  const std::vector<TokenId> ids = {3, 17, 39, 0, 5, 5, 21};
  LLM llm = LLM::open(model, options).value();
  return {.read_bytes = stat(llm, "load_bytes"),
          .mapped_bytes = stat(llm, "mapped_weight_bytes"),
          .remarks = llm.remarks().value(),
          .logits = llm.forward(ids).value().logits};
}

TEST(GgufWeights, ASecondStartMapsTheCodesOfTheFile) {
  const weights::testing::TempFolder folder;
  folder.write("model.gguf", GgufFile().build());
  const std::filesystem::path model = folder.path() / "model.gguf";
  const LLMOptions cached = {.threads = 2, .store = folder.path() / "store", .cache_weights = true};
  const Start plain = start(model, {.threads = 2});
  const Start first = start(model, cached);
  const Start second = start(model, cached);
  EXPECT_THAT(first.remarks, IsEmpty());
  EXPECT_EQ(first.mapped_bytes, 0);
  EXPECT_EQ(first.logits, plain.logits);
  EXPECT_THAT(second.remarks, IsEmpty());
  EXPECT_EQ(second.read_bytes, 0) << "no tensor is read";
  EXPECT_GT(second.mapped_bytes, 0);
  EXPECT_EQ(second.logits, plain.logits) << "to the bit";
  // Bytes expanded to bf16 give others: the codes are what is computed with.
  EXPECT_NE(start(model, {.dtype = "bfloat16", .threads = 2}).logits, plain.logits);
}

}  // namespace
}  // namespace quire
