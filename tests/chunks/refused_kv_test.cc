// KV that int8 cannot hold: the request or registration that computed it fails, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

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

}  // namespace
}  // namespace quire
