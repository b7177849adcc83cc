// kv_dtype="int8" from the outside: what fits in a budget, how far it is from exact KV, what it
// refuses, and what of another format it refuses. That warm equals cold and that all operations
// keep every bit is shown by warm_cold_test and random_operations_test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/temporary_folder.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "tiny_checkpoint.h"

namespace quire {
namespace {

using testing::HasSubstr;

// Relative errors of codes. A code is off by up to half a scale, evenly: 1 / sqrt(12) of one in the
// mean of squares. A scale is a 127th of the largest of the 64 numbers of a head, which is between
// once and sqrt(64) times their root mean square. Half of the least leaves room for chance.
constexpr double kLeastError = 0.5 / (127 * 3.464);
constexpr double kMostError = 8 / (127 * 3.464);

// The limit in nats. An attention score is off by the error of its key in one direction of
// many: a divergence of half the square of 0.045 allows scores that spread by six.
constexpr double kMostDivergence = 1e-3;

LLM open_llm(const std::string& model, const std::string& kv_dtype,
             const std::string& dtype = "auto") {
  auto llm = LLM::open(model, {.dtype = dtype, .kv_dtype = kv_dtype, .threads = 2});
  EXPECT_TRUE(llm.ok()) << (llm.ok() ? "" : llm.error().message);
  return std::move(llm).value();
}

ChunkedLLM open_chunked(const std::string& kv_dtype, const std::string& store) {
  return ChunkedLLM::open(kModel, {.kv_dtype = kv_dtype, .threads = 2}, {.store = store}).value();
}

TEST(Int8KV, ABudgetHoldsNearlyTwiceTheTokensOfBfloat16) {
  LLM plain = open_llm(kModel, "bfloat16");
  LLM coded = open_llm(kModel, "int8");
  EXPECT_GE(stat(coded, "blocks_total"), 1.9 * stat(plain, "blocks_total"));
  EXPECT_LE(stat(coded, "block_bytes") * stat(coded, "blocks_total"), double{1 << 30});
  const Ids ids = some_ids(100, 1);
  Sequence sequence = coded.sequence(ids).value();
  EXPECT_EQ(stat(coded, "bytes_in_use"), 4 * stat(coded, "block_bytes"));
}

// Takes the divergence of the distributions of the last 60 of 300 tokens, against KV in float32.
TEST(Int8KV, LogitsAreCloseToThoseOfExactKV) {
  LLM exact = open_llm(kModel, "float32", "float32");
  LLM coded = open_llm(kModel, "int8", "float32");
  const Ids ids = some_ids(300, 3);
  const ForwardOutput want = exact.forward(ids, ForwardReuse::kNone).value();
  const ForwardOutput got = coded.forward(ids, ForwardReuse::kNone).value();
  const auto vocab = static_cast<std::size_t>(want.vocab_size);
  ASSERT_EQ(got.logits.size(), want.logits.size());
  double divergence = 0;
  const std::size_t rows = want.logits.size() / vocab, first = rows > 60 ? rows - 60 : 0;
  for (std::size_t row = first; row < rows; ++row) {
    const float* p = &want.logits[row * vocab];
    const float* q = &got.logits[row * vocab];
    double p_sum = 0, q_sum = 0, difference = 0;
    for (std::size_t i = 0; i < vocab; ++i) {
      p_sum += std::exp(double{p[i]});
      q_sum += std::exp(double{q[i]});
    }
    for (std::size_t i = 0; i < vocab; ++i) {
      difference += std::exp(double{p[i]}) / p_sum *
                    (double{p[i]} - double{q[i]} - std::log(p_sum) + std::log(q_sum));
    }
    divergence += difference / static_cast<double>(rows - first);
  }
  EXPECT_LE(divergence, kMostDivergence);
  EXPECT_GT(divergence, 0) << "it is not the same KV";
}

TEST(Int8KV, ModelsAndBlocksThatAFormatDoesNotTakeAreRefusedByName) {
  const auto refusal = [](const std::string& model, const LLMOptions& options) {
    const auto refused = LLM::open(model, options);
    EXPECT_FALSE(refused.ok());
    return refused.ok() ? Error{} : refused.error();
  };
  const Error blocks = refusal(kModel, {.kv_dtype = "int4", .block_tokens = 16});
  EXPECT_EQ(blocks.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(blocks.message, "block_tokens is 16; kv_dtype \"int4\" takes multiples of 32");
  EXPECT_THAT(refusal(kModel, {.kv_dtype = "int5"}).message, HasSubstr("kv_dtype"));
}

TEST(Int8KV, AModelThatCapsItsScoresIsMeasuredInEveryFormat) {
  LLM llm = open_llm(source_path("tests/golden/model/gemma2"), "auto");
  Ids ids = some_ids(70, 5);
  for (TokenId& id : ids) {
    id = 20 + id % 100;
  }
  for (const std::string name : {"int8", "fp8", "int4"}) {
    const KVAccuracy accuracy = must(llm.kv_accuracy(ids, name));
    EXPECT_GT(accuracy.logit_kl_mean, 0) << name;
    EXPECT_LT(accuracy.logit_kl_mean, 0.1) << name;
  }
}

TEST(Int8KV, ASequenceOfAnotherFormatIsRefusedAndBothAreNamed) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "talk";
  const Ids ids = some_ids(70, 5);
  {
    LLM coded = open_llm(kModel, "int8");
    Sequence sequence = coded.sequence(ids).value();
    ASSERT_TRUE(sequence.save(path).ok());
    Sequence again = coded.load_sequence(path).value();
    EXPECT_EQ(again.num_tokens(), 70);
  }
  LLM plain = open_llm(kModel, "bfloat16");
  const auto refused = plain.load_sequence(path);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().message, HasSubstr("kv_dtype is int8, here it is bfloat16"));
  EXPECT_EQ(stat(plain, "blocks_in_use"), 0);
}

TEST(Int8KV, AChunkStoreOfAnotherFormatIsAMissAndItsOwnAHit) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  const ChunkContent content{.content = std::string("Card 7. Ada trades in apples."),
                             .type = ChunkType::kContext};
  std::string id;
  {
    ChunkedLLM coded = open_chunked("int8", store);
    id = coded.register_chunk(content).value();
    ASSERT_GT(stat(coded, "tokens_computed"), 0);
  }
  {
    ChunkedLLM plain = open_chunked("bfloat16", store);
    EXPECT_NE(plain.register_chunk(content).value(), id);
    EXPECT_GT(stat(plain, "tokens_computed"), 0);
  }
  ChunkedLLM coded = open_chunked("int8", store);
  EXPECT_EQ(coded.register_chunk(content).value(), id);
  EXPECT_EQ(stat(coded, "tokens_computed"), 0);
  EXPECT_GT(coded.get_chunk(id).value().kv_error.value_or(KVError{}).key, 0)
      << "as it was measured";
}

TEST(Int8KV, AChunkNamesItsFormatAndTakesNoneThatTheCpuHasNot) {
  ChunkedLLM llm = open_chunked("int8", "");
  ChunkContent content{.content = some_ids(40, 2), .type = ChunkType::kContext};
  content.options.kv_dtype = "int8";
  const std::string id = llm.register_chunk(content).value();
  const ChunkInfo info = llm.get_chunk(id).value();
  EXPECT_EQ(info.kv_dtype, "int8");
  ASSERT_TRUE(info.kv_error.has_value());
  for (const double error : {info.kv_error->key, info.kv_error->value}) {
    EXPECT_GT(error, kLeastError);
    EXPECT_LT(error, kMostError);
  }
  EXPECT_EQ(info.kv_error->bits_per_value, 8 + 16.0 / 64);
  content.options.kv_dtype = "float16";
  const auto refused = llm.register_chunk(content);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("\"float16\" of a chunk is not the pool's"));
  EXPECT_THAT(refused.error().message, HasSubstr("\"int8\""));
  EXPECT_EQ(llm.list_chunks().value().size(), 1);
}

TEST(Int8KV, AChunkIsNotWidenedAndKeepsEverything) {
  ChunkedLLM llm = open_chunked("int8", "");
  const std::string id =
      llm.register_chunk({.content = some_ids(40, 2), .type = ChunkType::kContext}).value();
  const std::vector<std::pair<std::string, ErrorCode>> refusals = {
      {"bfloat16", ErrorCode::kInvalidArgument},
      {"float32", ErrorCode::kInvalidArgument},
      {"fp8", ErrorCode::kInvalidArgument},
      {"int3", ErrorCode::kInvalidArgument}};
  for (const auto& [name, code] : refusals) {
    const auto refused = llm.update_chunk(id, {.priority = 7, .kv_dtype = name});
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().code, code) << name;
    EXPECT_THAT(refused.error().message, HasSubstr('"' + name + '"'));
    EXPECT_THAT(refused.error().message, HasSubstr("\"int8\""));
    EXPECT_EQ(llm.get_chunk(id)->priority, 0);
  }
  const ChunkInfo same = llm.update_chunk(id, {.priority = 7, .kv_dtype = "int8"}).value();
  EXPECT_EQ(same.chunk_id, id);
  EXPECT_EQ(same.priority, 7);
  EXPECT_EQ(llm.update_chunk("no such chunk", {.kv_dtype = "float32"}).error().code,
            ErrorCode::kNotFound);
}

TEST(KVAccuracyOf, Int8IsSmallAndThatOfTheComputeTypeIsNone) {
  LLM llm = open_llm(kModel, "auto", "float32");
  const Ids ids = some_ids(300, 9);  // more than a slice
  const KVAccuracy coded = llm.kv_accuracy(ids, "int8").value();
  EXPECT_EQ(coded.kv_dtype, "int8");
  EXPECT_EQ(coded.reference, "float32");
  EXPECT_EQ(coded.num_tokens, 300);
  EXPECT_EQ(coded.bits_per_value, 8 + 16.0 / 64);
  EXPECT_NEAR(coded.ratio_vs_bf16, 16 / coded.bits_per_value, 1e-9);
  EXPECT_NEAR(coded.ratio_vs_fp32, 32 / coded.bits_per_value, 1e-9);
  for (const LayerErrors& errors : {coded.key_error, coded.value_error}) {
    EXPECT_GT(errors.mean, kLeastError);
    EXPECT_LT(errors.max, kMostError);
    EXPECT_EQ(errors.max, *std::ranges::max_element(errors.layers));
  }
  EXPECT_GT(coded.attention_kl, 0);
  EXPECT_LT(coded.attention_kl, kMostDivergence);
  EXPECT_GT(coded.logit_kl_mean, 0);
  EXPECT_LT(coded.logit_kl_mean, kMostDivergence);
  EXPECT_GE(coded.logit_kl_p99, coded.logit_kl_mean);
  EXPECT_GT(coded.same_best, 0.9);
  // The mean of 299 log probabilities is off by its divergence, and by thrice its deviation.
  EXPECT_LT(std::abs(coded.perplexity_delta),
            (kMostDivergence + 3 * std::sqrt(2 * kMostDivergence / 299)) * coded.perplexity);

  const KVAccuracy same = llm.kv_accuracy(ids, "float32").value();
  EXPECT_EQ(same.key_error.max, 0);
  EXPECT_EQ(same.value_error.max, 0);
  EXPECT_EQ(same.attention_kl, 0);
  EXPECT_EQ(same.logit_kl_p99, 0);
  EXPECT_EQ(same.same_best, 1);
  EXPECT_EQ(same.perplexity_delta, 0);
  const KVAccuracy rounded = llm.kv_accuracy(ids, "bfloat16").value();
  EXPECT_EQ(rounded.bits_per_value, 16);
  EXPECT_LT(rounded.key_error.mean, coded.key_error.mean);
  EXPECT_EQ(stat(llm, "blocks_cached"), 0);
  EXPECT_EQ(open_llm(kModel, "int8", "float32").kv_accuracy(ids, "int8")->logit_kl_mean,
            coded.logit_kl_mean)
      << "whatever the pool's own format";
}

// The oracle is arithmetic: fp8 has 64 bytes of scales for each head block, whatever it holds.
TEST(KVAccuracyOf, BlocksAndReferenceAreThoseOfTheOpenModel) {
  const Ids ids = some_ids(300, 9);
  const auto open = [](std::int32_t block_tokens) {
    return must(LLM::open(
        kModel,
        {.dtype = "float32", .kv_dtype = "bfloat16", .block_tokens = block_tokens, .threads = 2}));
  };
  LLM small = open(32), large = open(256);
  const KVAccuracy rounded = must(small.kv_accuracy(ids, "bfloat16"));
  EXPECT_EQ(rounded.reference, "float32") << "the compute type, whatever the pool holds";
  EXPECT_GT(rounded.key_error.mean, 0);
  EXPECT_EQ(rounded.ratio_vs_fp32, 2);
  const KVAccuracy fine = must(small.kv_accuracy(ids, "fp8"));
  const KVAccuracy coarse = must(large.kv_accuracy(ids, "fp8"));
  EXPECT_EQ(fine.bits_per_value, 8 + 64 * 8.0 / (2 * 64 * 32));
  EXPECT_EQ(coarse.bits_per_value, 8 + 64 * 8.0 / (2 * 64 * 256));
  EXPECT_NE(fine.key_error.mean, coarse.key_error.mean) << "a scale belongs to a block";
  const auto refused = open(16).kv_accuracy(ids, "int4");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "block_tokens is 16; kv_dtype \"int4\" takes multiples of 32");
}

// Heads of 16 are stored as 32: twice 8 bits and a scale of 16 bits for 16 values.
TEST(KVAccuracyOf, BitsCountWhatPadsAHead) {
  LLM llm = must(LLM::open(chunks::write_checkpoint("padded_heads", {}), {.threads = 2}));
  const KVAccuracy accuracy = must(llm.kv_accuracy(small_ids(70, 3), "int8"));
  EXPECT_EQ(accuracy.bits_per_value, 2 * 8 + 1);
  EXPECT_NEAR(accuracy.ratio_vs_bf16, 32.0 / 17, 1e-9);
  EXPECT_NEAR(accuracy.ratio_vs_fp32, 64.0 / 17, 1e-9);
}

TEST(KVAccuracyOf, FormatsThatAreNotThereAndTooFewTokensAreRefused) {
  LLM llm = open_llm(kModel, "auto");
  const auto code = [&](const Ids& ids, const std::string& kv_dtype) {
    const auto accuracy = llm.kv_accuracy(ids, kv_dtype);
    EXPECT_FALSE(accuracy.ok());
    return accuracy.ok() ? ErrorCode::kIo : accuracy.error().code;
  };
  EXPECT_EQ(code(some_ids(9, 1), "float16"), ErrorCode::kUnsupported);
  EXPECT_EQ(code(some_ids(9, 1), "int3"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({1}, "int8"), ErrorCode::kInvalidArgument);
  EXPECT_THAT(llm.kv_accuracy(some_ids(9, 1), "float16").error().message,
              HasSubstr("float32, bfloat16, int8, fp8 and int4"));
}

// fp8 keeps 3 bits below the leading one: an error of at most 1 in 16. A code of int4 is off by up
// to half of a fifteenth of its group's range.
TEST(KVAccuracyOf, FormatsOfBlocksAreMeasuredAsTheyAreStored) {
  LLM llm = open_llm(kModel, "auto", "float32");
  const Ids ids = some_ids(300, 9);
  const KVAccuracy int8 = llm.kv_accuracy(ids, "int8").value();
  for (const std::string name : {"fp8", "int4"}) {
    const KVAccuracy coded = llm.kv_accuracy(ids, name).value();
    EXPECT_EQ(coded.kv_dtype, name);
    EXPECT_NEAR(coded.bits_per_value, name == "int4" ? 5 : 8, 0.2);
    EXPECT_GT(coded.key_error.mean, int8.key_error.mean);
    EXPECT_LT(coded.key_error.max, name == "int4" ? 0.2 : 1 / 16.0);
    EXPECT_LT(coded.value_error.max, name == "int4" ? 0.2 : 1 / 16.0);
    EXPECT_GT(coded.logit_kl_mean, 0);
    EXPECT_LT(coded.logit_kl_mean, 2e-2);
    EXPECT_GT(coded.same_best, 0.8);
    EXPECT_EQ(open_llm(kModel, name, "float32").kv_accuracy(ids, name)->logit_kl_mean,
              coded.logit_kl_mean)
        << "whatever the pool's own format";
  }
}

}  // namespace
}  // namespace quire
