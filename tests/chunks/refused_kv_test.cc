// KV that a format cannot hold: the request or registration that computed it fails, and nothing
// else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/result.h"
#include "tiny_checkpoint.h"

namespace quire {
namespace {

using chunks::kFirstSecret;
using testing::HasSubstr;

// Gives secret tokens values of some 1e9, beyond an fp16 scale, or infinite ones.
class RefusedKV : public testing::TestWithParam<float> {
 protected:
  RefusedKV()
      : model_(chunks::write_checkpoint("refused" + std::to_string(GetParam()),
                                        {.with_secrets = true, .secret_values = GetParam()})),
        bad_(40, 7) {
    bad_[35] = kFirstSecret;
  }
  static LLMOptions most_exact() {
    return here({.dtype = exact_dtype(), .kv_dtype = "int8", .threads = 2});
  }
  std::filesystem::path model_;
  Ids bad_;
};

TEST_P(RefusedKV, FailsItsRequestAloneAndIsNotCached) {
  LLM llm = LLM::open(model_, most_exact()).value();
  const Ids good(bad_.begin(), bad_.begin() + 35);
  const auto alone =
      llm.generate(good, {.temperature = 0, .max_tokens = 8, .ignore_eos = true}).value();
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  Stream failing = llm.stream(bad_, {.max_tokens = 8}).value();
  const auto beside =
      llm.generate(good, {.temperature = 0, .max_tokens = 8, .ignore_eos = true}).value();
  EXPECT_EQ(beside.token_ids, alone.token_ids);
  auto failed = failing.next();
  while (failed.ok() && failed->has_value()) {
    failed = failing.next();
  }
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(failed.error().message, HasSubstr("kv_dtype \"int8\" cannot hold"));
  EXPECT_THAT(failed.error().message, HasSubstr("token 35"));
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  EXPECT_FALSE(llm.generate(bad_, {.max_tokens = 2}).ok());
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(stat(llm, "blocks_cached"), 0) << "nothing of it is cached";
}

TEST_P(RefusedKV, FailsARegistration) {
  ChunkedLLM llm = ChunkedLLM::open(model_, most_exact(), {}).value();
  const auto refused = llm.register_chunk({.content = bad_, .type = ChunkType::kContext});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(llm.list_chunks().value().empty());
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
}

INSTANTIATE_TEST_SUITE_P(Int8KV, RefusedKV, testing::Values(1e9f, 3e38f));

// 70 ids, the one at `at` a secret one.
Ids ids_with_secret(std::size_t at) {
  Ids ids(70, 7);
  ids[at] = kFirstSecret;
  return ids;
}

void expect_refused(const Error& error, const std::string& kv_dtype, std::size_t token) {
  EXPECT_EQ(error.code, ErrorCode::kUnsupported) << kv_dtype;
  EXPECT_THAT(error.message, HasSubstr("kv_dtype \"" + kv_dtype + "\" cannot hold"));
  EXPECT_THAT(error.message, HasSubstr("of token " + std::to_string(token) + ":")) << kv_dtype;
}

// Values beyond every number. Token 20 lies in a block that is sealed, 66 in one that stays open.
TEST(RefusedInEveryFormat, InfiniteKVFailsWhoeverComputesItAndNothingOfItIsCached) {
  if (on_gpu()) {
    GTEST_SKIP() << "a GPU watches codes alone";
  }
  const auto model =
      chunks::write_checkpoint("infinite", {.with_secrets = true, .secret_values = 3e38f});
  for (const std::string kv_dtype : {"float32", "bfloat16", "int8", "fp8", "int4"}) {
    ChunkedLLM llm =
        must(ChunkedLLM::open(model, {.dtype = "float32", .kv_dtype = kv_dtype, .threads = 2}, {}));
    for (const std::size_t at : {20, 66}) {
      const Ids bad = ids_with_secret(at);
      expect_refused(llm.llm().generate(bad, {.max_tokens = 4}).error(), kv_dtype, at);
      expect_refused(llm.llm().forward(bad).error(), kv_dtype, at);
      const auto sequence = llm.llm().sequence(bad);
      expect_refused(sequence.ok() ? Error{} : sequence.error(), kv_dtype, at);
      const auto registered = llm.register_chunk({.content = bad, .type = ChunkType::kContext});
      expect_refused(registered.ok() ? Error{} : registered.error(), kv_dtype, at);
      EXPECT_EQ(stat(llm, "blocks_cached"), 0) << kv_dtype;
      EXPECT_EQ(stat(llm, "bytes_in_use"), 0) << kv_dtype;
      EXPECT_TRUE(llm.list_chunks()->empty());
    }
    const auto good = llm.llm().generate(Ids(70, 7), {.max_tokens = 1});
    EXPECT_TRUE(good.ok()) << kv_dtype;
  }
}

// Values of some 1e9, which fp32, bfloat16 and fp8 hold.
TEST(RefusedInEveryFormat, TheErrorNamesTheFormatItsLimitAndTheToken) {
  if (on_gpu()) {
    GTEST_SKIP() << "a GPU names the last token of a sealed block";
  }
  const auto model =
      chunks::write_checkpoint("large", {.with_secrets = true, .secret_values = 1e9f});
  ChunkedLLM llm = must(ChunkedLLM::open(model, {.dtype = "float32", .threads = 2}, {}));
  must(llm.register_chunk({.content = Ids(40, 9), .type = ChunkType::kSystemPrompt}));
  const Ids bad = ids_with_secret(20);
  ChunkContent content{.content = bad, .type = ChunkType::kContext};
  for (const auto& [kv_dtype, limit] :
       {std::pair<std::string, std::string>("int8", "8.3e6"), {"int4", "9.8e5"}}) {
    content.options.kv_dtype = kv_dtype;
    const auto behind_anchor = llm.register_chunk(content);
    ASSERT_FALSE(behind_anchor.ok());
    expect_refused(behind_anchor.error(), kv_dtype, 20);
    EXPECT_THAT(behind_anchor.error().message, HasSubstr(limit));
    content.options.kv_dtype = "";
    const std::string wide = must(llm.register_chunk(content));
    expect_refused(llm.update_chunk(wide, {.kv_dtype = kv_dtype}).error(), kv_dtype, 20);
    EXPECT_EQ(must(llm.get_chunk(wide)).kv_dtype, "float32");
    expect_refused(llm.llm().kv_accuracy(bad, kv_dtype).error(), kv_dtype, 20);
    ChunkedLLM pool =
        must(ChunkedLLM::open(model, {.dtype = "float32", .kv_dtype = kv_dtype, .threads = 2}, {}));
    expect_refused(pool.llm().generate(bad, {.max_tokens = 4}).error(), kv_dtype, 20);
    const CompositionSpec composed = {
        .system_chunk_id =
            must(pool.register_chunk({.content = Ids(40, 9), .type = ChunkType::kSystemPrompt})),
        .query_chunk_id = must(pool.register_chunk({.content = bad, .type = ChunkType::kQuery}))};
    expect_refused(pool.generate_from_chunks(composed, {.max_tokens = 4}).error(), kv_dtype, 60);
  }
  EXPECT_TRUE(llm.llm().kv_accuracy(bad, "fp8").ok());
}

}  // namespace
}  // namespace quire
