// Models with quantised weights on a GPU. Oracles: the CPU, which computes from the same codes, and
// the CPU in fp32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/types.h"
#include "quire/weights/test_files.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using weights::testing::counted;
using weights::testing::raw;

LLMOptions quantised(const std::string& device, const std::string& format) {
  return {.device = device, .quantize = format, .threads = 2};
}

std::vector<float> logits_of(LLM& llm, const Ids& ids) {
  return must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
}

// ggml's numbers of types, and where the fp16 numbers lie in their blocks.
struct Encoding {
  std::uint32_t number;
  std::size_t values, bytes;
  std::vector<std::size_t> halves;
};
const std::map<std::string, Encoding> kEncodings = {
    {"F32", {0, 1, 4, {}}},           {"F16", {1, 1, 2, {}}},
    {"Q4_0", {2, 32, 18, {0}}},       {"Q4_1", {3, 32, 20, {0, 2}}},
    {"Q5_0", {6, 32, 22, {0}}},       {"Q5_1", {7, 32, 24, {0, 2}}},
    {"Q8_0", {8, 32, 34, {0}}},       {"Q4_K", {12, 256, 144, {0, 2}}},
    {"Q5_K", {13, 256, 176, {0, 2}}}, {"Q6_K", {14, 256, 210, {208}}}};

// A Llama of two layers without text, whose matrices have random codes.
class GgufFile {
 public:
  static constexpr std::uint32_t kHidden = 256, kInner = 512, kVocabulary = 300;

  // Encodings of the embedding and the head, then of attention's inputs, its output, of gate and
  // up, and of down.
  explicit GgufFile(const std::vector<std::string>& encodings) {
    file_.key("general.architecture", 8, counted("llama"));
    const std::vector<std::pair<std::string_view, std::uint32_t>> sizes = {
        {"context_length", 2048}, {"embedding_length", kHidden}, {"feed_forward_length", kInner},
        {"block_count", 2},       {"attention.head_count", 4},   {"attention.head_count_kv", 2},
    };
    for (const auto& [name, size] : sizes) {
      file_.key("llama." + std::string(name), 4, raw(size));
    }
    file_.key("llama.attention.layer_norm_rms_epsilon", 6, raw(1e-5f));
    add("token_embd", kVocabulary, kHidden, encodings[0]);
    add("output", kVocabulary, kHidden, encodings[1]);
    add("output_norm", 1, kHidden, "F32");
    for (const char* layer : {"blk.0.", "blk.1."}) {
      const std::string name = layer;
      add(name + "attn_norm", 1, kHidden, "F32");
      add(name + "attn_q", kHidden, kHidden, encodings[2]);
      add(name + "attn_k", kHidden / 2, kHidden, encodings[2]);
      add(name + "attn_v", kHidden / 2, kHidden, encodings[3]);
      add(name + "attn_output", kHidden, kHidden, encodings[4]);
      add(name + "ffn_norm", 1, kHidden, "F32");
      add(name + "ffn_gate", kInner, kHidden, encodings[5]);
      add(name + "ffn_up", kInner, kHidden, encodings[5]);
      add(name + "ffn_down", kHidden, kInner, encodings[6]);
    }
  }

  [[nodiscard]] std::string build() const { return file_.build(); }

 private:
  void add(const std::string& name, std::uint64_t rows, std::uint64_t columns,
           const std::string& encoding) {
    const Encoding& how = kEncodings.at(encoding);
    std::vector<std::uint64_t> sizes = {columns};
    if (rows > 1) {
      sizes.push_back(rows);
    }
    file_.tensor(name + ".weight", sizes, how.number, file_.data.size());
    for (std::uint64_t block = 0; block < rows * columns / how.values; ++block) {
      file_.data += block_of(encoding, how, rows == 1);
    }
    file_.data.resize((file_.data.size() + 31) / 32 * 32);
  }

  std::string block_of(const std::string& encoding, const Encoding& how, bool norm) {
    const auto number = [&](float least, float most) {
      return std::uniform_real_distribution<float>(least, most)(random_);
    };
    if (encoding == "F32") {
      return raw(norm ? number(0.5f, 1.5f) : number(-0.1f, 0.1f));
    }
    if (encoding == "F16") {
      return raw(tensor::float_to_fp16(number(-0.1f, 0.1f)));
    }
    std::string block(how.bytes, '\0');
    std::ranges::generate(block, [&] { return static_cast<char>(random_()); });
    // A K block multiplies its numbers by six or seven bits more.
    const float largest = how.values == 256 ? 2e-4f : how.number == 8 ? 1e-3f : 1e-2f;
    for (const std::size_t at : how.halves) {
      block.replace(at, 2, raw(tensor::float_to_fp16(number(largest / 4, largest))));
    }
    return block;
  }

  weights::testing::GgufBuilder file_;
  std::mt19937 random_{5};
};

TEST(QuantisedOnAGpu, LogitsAreAsCloseToFp32AsTheCpusTwiceOver) {
  for (const char* format : {"q8g32", "q4g32"}) {
    LLM gpu = must(LLM::open(kModel, quantised("cuda", format)));
    LLM cpu = must(LLM::open(kModel, quantised("cpu", format)));
    EXPECT_NEAR(stat(gpu, "weight_bytes"), stat(cpu, "weight_bytes"), 1);
    for (const std::size_t length : {1, 5, 17, 33, 200, 700}) {
      const Ids ids = some_ids(length, static_cast<std::uint32_t>(length));
      // Both multiply the same weights. The CPU rounds rows to 8 bits.
      EXPECT_LE(distance(logits_of(cpu, ids), logits_of(gpu, ids)), 0.05)
          << format << ", " << length << " tokens";
    }
  }
}

// Says that two devices chose the same ids behind `prompt`, or that the logits of the CPU, where
// they part, are a near tie.
void expect_same_up_to_a_near_tie(LLM& cpu, Ids prompt, const Ids& want, const Ids& got) {
  const auto [there, here] = std::ranges::mismatch(want, got);
  if (there == want.end() || here == got.end()) {
    EXPECT_EQ(want, got);
    return;
  }
  prompt.insert(prompt.end(), want.begin(), there);
  const std::vector<float> logits = logits_of(cpu, prompt);
  const auto [least, most] = std::ranges::minmax(logits);
  const auto at = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  EXPECT_LE(at(*there) - at(*here), 0.02 * (most - least)) << *there << " and " << *here;
}

TEST(QuantisedOnAGpu, GreedyIdsEqualTheCpusUpToANearTie) {
  for (const char* format : {"q8g32", "q4g32"}) {
    LLM cpu = must(LLM::open(kModel, quantised("cpu", format)));
    for (const bool deterministic : {true, false}) {
      LLMOptions options = quantised("cuda", format);
      options.deterministic = deterministic;
      LLM gpu = must(LLM::open(kModel, options));
      for (std::uint32_t seed = 0; seed < 8; ++seed) {
        SCOPED_TRACE(std::string(format) + ", seed " + std::to_string(seed));
        const Ids prompt = some_ids(20 + 10 * seed, seed);
        const SamplingParams params = {.temperature = 0, .max_tokens = 16, .ignore_eos = true};
        expect_same_up_to_a_near_tie(cpu, prompt, must(cpu.generate(prompt, params)).token_ids,
                                     must(gpu.generate(prompt, params)).token_ids);
      }
    }
  }
}

TEST(QuantisedOnAGpu, ABatchGivesWhatEachPromptGivesAlone) {
  for (const char* format : {"q8g32", "q4g32"}) {
    LLM gpu = must(LLM::open(kModel, quantised("cuda", format)));
    const SamplingParams params = {.temperature = 0, .max_tokens = 24, .ignore_eos = true};
    std::vector<Prompt> prompts;
    std::vector<Ids> alone;
    for (std::uint32_t i = 0; i < 40; ++i) {
      const Ids prompt = some_ids(5 + 37 * (i % 12), i);
      alone.push_back(must(gpu.generate(prompt, params)).token_ids);
      prompts.emplace_back(prompt);
    }
    EXPECT_TRUE(gpu.clear_prefix_cache().ok());
    const auto outputs = must(gpu.generate_batch(prompts, {&params, 1}));
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(outputs[i].token_ids, alone[i]) << format << ", prompt " << i;
    }
  }
}

TEST(QuantisedOnAGpu, AWarmRequestGivesTheBitsOfAColdOne) {
  LLM gpu = must(LLM::open(kModel, quantised("cuda", "q4g32")));
  const Ids prompt = some_ids(300, 1);
  const Ids longer = joined(prompt, some_ids(50, 2));
  const auto cold = logits_of(gpu, longer);
  (void)must(gpu.generate(prompt, {.temperature = 0, .max_tokens = 4}));
  EXPECT_EQ(must(gpu.forward(longer, ForwardReuse::kExact, ForwardRows::kLast)).logits, cold);
}

TEST(QuantisedOnAGpu, InFloat16ActivationsAndKVAreFp16) {
  LLMOptions options = quantised("cuda", "q8g32");
  options.dtype = "float16";
  LLM gpu = must(LLM::open(kModel, options));
  LLM cpu = must(LLM::open(kModel, quantised("cpu", "q8g32")));
  const Ids ids = some_ids(200, 4);
  EXPECT_LE(distance(logits_of(cpu, ids), logits_of(gpu, ids)), 0.05);
}

// Encodings whose codes stay, those that are packed again in eight bits, and what is not quantised,
// in every place.
TEST(QuantisedOnAGpu, GgufFilesOfEveryEncodingAreComputedFromTheirCodes) {
  const std::vector<std::vector<std::string>> files = {
      {"Q4_K", "Q6_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K"},
      {"Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q5_0", "Q8_0", "Q5_0"},
      {"Q4_0", "F16", "Q4_0", "Q4_0", "Q4_1", "Q5_K", "Q5_1"},
      {"F16", "Q4_1", "F16", "F16", "Q5_K", "Q4_0", "Q4_K"}};
  const Ids ids = {3, 17, 39, 0, 5, 5, 21, 299, 120, 80, 4, 7, 9, 1, 2, 255, 256, 31, 33};
  for (const auto& encodings : files) {
    const weights::testing::TempFolder folder;
    folder.write("model.gguf", GgufFile(encodings).build());
    const std::filesystem::path model = folder.path() / "model.gguf";
    LLM gpu = must(LLM::open(model, {.device = "cuda", .threads = 2}));
    LLM cpu = must(LLM::open(model, {.threads = 2}));
    LLM exact = must(LLM::open(model, {.dtype = "float32", .threads = 2}));
    EXPECT_EQ(stat(gpu, "weight_bytes"), stat(cpu, "weight_bytes")) << encodings[0];
    for (const std::size_t count : {1u, 4u, 19u}) {
      const Ids some(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count));
      const auto want = logits_of(exact, some);
      EXPECT_LE(distance(want, logits_of(gpu, some)),
                2 * distance(want, logits_of(cpu, some)) + 1e-3)
          << encodings[0] << ", " << count << " tokens";
    }
  }
}

// The CPU has no fp8: eight bits in groups are nearer to the checkpoint, and fp8 is near those.
TEST(QuantisedOnAGpu, Fp8IsNearTheCheckpointAndRowsKeepTheirBits) {
  LLM gpu = must(LLM::open(kModel, quantised("cuda", "fp8")));
  LLM exact = must(LLM::open(kModel, {.dtype = "float32", .threads = 2}));
  const Ids ids = some_ids(200, 4);
  EXPECT_LE(distance(logits_of(exact, ids), logits_of(gpu, ids)), 0.2);
  const SamplingParams params = {.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  std::vector<Prompt> prompts;
  std::vector<Ids> alone;
  for (std::uint32_t i = 0; i < 20; ++i) {
    prompts.emplace_back(some_ids(5 + 17 * i, i));
    alone.push_back(must(gpu.generate(some_ids(5 + 17 * i, i), params)).token_ids);
  }
  EXPECT_TRUE(gpu.clear_prefix_cache().ok());
  const auto outputs = must(gpu.generate_batch(prompts, {&params, 1}));
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(outputs[i].token_ids, alone[i]) << "prompt " << i;
  }
  const auto refused = LLM::open(kModel, quantised("cpu", "fp8"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("q8g32"));
}

TEST(QuantisedOnAGpu, WithADtypeAFileIsExpandedToIt) {
  const weights::testing::TempFolder folder;
  folder.write("model.gguf",
               GgufFile({"Q4_0", "Q4_0", "Q4_0", "Q4_0", "Q4_0", "Q4_0", "Q4_0"}).build());
  const std::filesystem::path model = folder.path() / "model.gguf";
  LLM codes = must(LLM::open(model, {.device = "cuda", .threads = 2}));
  LLM wide = must(LLM::open(model, {.device = "cuda", .dtype = "bfloat16", .threads = 2}));
  EXPECT_GT(stat(wide, "weight_bytes"), 3 * stat(codes, "weight_bytes"));
}

}  // namespace
}  // namespace quire
