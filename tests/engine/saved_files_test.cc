// Files and stores whose bytes are whole and whose writer lied. The oracle is the LLM without them:
// what a stranger says may be refused or graded, never crash, and never become "exact".
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/ids.h"
#include "quire/chunks.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

class SavedFiles : public testing::Test {
 protected:
  SavedFiles() { EXPECT_TRUE(llm_.sequence(ids_).value().save(file()).ok()); }

  [[nodiscard]] std::string file() const { return folder_ / "sequence.qkv"; }

  // Writes the file anew with what `edit` makes of its metadata, and its KV spoilt if wanted.
  void rewrite(const std::function<void(boost::json::object&)>& edit, bool spoil = false) const {
    kv_store::KVFileContent content;
    std::vector<std::vector<BlockId>> blocks(1);
    std::optional<kv_store::PagedPool> pool;
    {
      const auto saved = kv_store::KVFile::open(file()).value();
      content = saved.content();
      const auto count = content.runs[0].num_blocks(content.geometry.block_tokens);
      pool = kv_store::PagedPool::create(content.geometry, count).value();
      for (std::int32_t i = 0; i < count; ++i) {
        blocks[0].push_back({i});
      }
      for (int layer = 0; layer < content.geometry.layers; ++layer) {
        ASSERT_TRUE(saved.read_layer(0, layer, 0, blocks[0], *pool).ok());
      }
    }
    if (spoil) {
      for (std::byte& byte : pool->head_blocks(0, 0, {0})) {
        byte ^= std::byte{1};
      }
    }
    auto metadata = boost::json::parse(content.metadata_json).as_object();
    edit(metadata);
    content.metadata_json = boost::json::serialize(metadata);
    ASSERT_TRUE(kv_store::write_kv_file(file(), content, *pool, blocks).ok());
  }

  [[nodiscard]] std::vector<float> cold_logits() {
    return llm_.forward(ids_, ForwardReuse::kNone, ForwardRows::kLast).value().logits;
  }

  LLM llm_ = LLM::open(kModel, here({.threads = 2})).value();
  const Ids ids_ = some_ids(70, 3);
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(SavedFiles, CountsAndPositionsOutOfRangeAreRefusedOrHarmless) {
  rewrite([](boost::json::object& metadata) { metadata["sampled"] = 1 << 29; });
  Sequence many = llm_.load_sequence(file()).value();
  SamplingParams penalised{.repetition_penalty = 1.2, .max_tokens = 4, .seed = 1};
  EXPECT_TRUE(many.generate(penalised).ok());
  for (const char* key : {"sampled", "own_position"}) {
    rewrite([&](boost::json::object& metadata) { metadata[key] = -1; });
    EXPECT_EQ(llm_.load_sequence(file()).error().code, ErrorCode::kCorrupt) << key;
    rewrite([&](boost::json::object& metadata) { metadata[key] = 0; });
  }
  rewrite([](boost::json::object& metadata) { metadata["own_position"] = 1 << 29; });
  EXPECT_EQ(llm_.load_sequence(file()).error().code, ErrorCode::kOverflow);
  rewrite([](boost::json::object& metadata) {
    metadata["own_position"] = 0;
    metadata["tail"].emplace_array().push_back(1 << 30);
  });
  EXPECT_EQ(llm_.load_sequence(file()).error().code, ErrorCode::kInvalidArgument);
  for (const boost::json::value& bad : std::vector<boost::json::value>{"x", {1, 2}}) {
    rewrite([&](boost::json::object& metadata) { metadata["tail"] = bad; });
    EXPECT_EQ(llm_.load_sequence(file()).error().code, ErrorCode::kCorrupt);
  }
  EXPECT_EQ(llm_.generate(ids_, {.max_tokens = 1}).value().reuse.grade, ReuseGrade::kExact);
}

// KV of other kernels, or of any grade but exact, is used by its sequence alone.
TEST_F(SavedFiles, KvThatIsNotExactNeverGetsIntoThePrefixCache) {
  const std::vector<float> right = cold_logits();
  for (const auto& [key, value, grade] :
       std::vector<std::tuple<std::string, std::string, ReuseGrade>>{
           {"kernels", "of another machine", ReuseGrade::kEqualMath},
           {"grade", "approximate", ReuseGrade::kApproximate},
           {"grade", "nobody knows", ReuseGrade::kApproximate}}) {
    rewrite([&key = key, &value = value](boost::json::object& metadata) { metadata[key] = value; },
            true);
    LLM other = LLM::open(kModel, here({.threads = 2})).value();
    Sequence loaded = other.load_sequence(file()).value();
    EXPECT_EQ(loaded.grade(), grade);
    EXPECT_EQ(loaded.tokens(), ids_);
    EXPECT_NE(loaded.logits().value(), right) << "the spoilt KV was not used";
    EXPECT_EQ(other.forward(ids_, ForwardReuse::kExact, ForwardRows::kLast).value().logits, right)
        << "a plain prompt has found it";
    rewrite(
        [&](boost::json::object& metadata) {
          metadata["kernels"] = "";
          metadata["grade"] = "exact";
        },
        true);
  }
}

// Anchors that point at each other, at themselves, at a context, at nothing.
TEST_F(SavedFiles, ChunksWhoseAnchorsLieAreRefusedOrComputedAndNobodyCrashes) {
  const std::string store = folder_ / "store";
  std::string system, first, second, query;
  const auto open = [&] {
    return ChunkedLLM::open(kModel, here({.threads = 2}), {.store = store}).value();
  };
  {
    ChunkedLLM llm = open();
    const auto add = [&](std::uint32_t seed, ChunkType type) {
      return llm.register_chunk({.content = some_ids(40, seed), .type = type}).value();
    };
    system = add(1, ChunkType::kSystemPrompt);
    first = add(2, ChunkType::kContext);
    second = add(3, ChunkType::kContext);
    query = add(4, ChunkType::kQuery);
  }
  const auto set_anchor = [&](const std::string& chunk, const std::string& anchor) {
    auto opened = kv_store::Store::open(store).value();
    auto entry = opened.entries().find(chunk, "").value().value();
    auto metadata = boost::json::parse(entry.metadata_json).as_object();
    metadata["anchor"] = anchor;
    entry.metadata_json = boost::json::serialize(metadata);
    ASSERT_TRUE(opened.entries().put(entry).ok());
  };
  const CompositionSpec spec{
      .system_chunk_id = system, .context_chunk_ids = {first, second}, .query_chunk_id = query};
  for (const auto& [of_first, of_second] : std::vector<std::pair<std::string, std::string>>{
           {first, system}, {second, first}, {std::string(64, '0'), system}, {query, system}}) {
    set_anchor(first, of_first);
    set_anchor(second, of_second);
    ChunkedLLM llm = open();
    const auto refused = llm.generate_from_chunks(spec, {.max_tokens = 2});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kNotFound) << refused.error().message;
  }
  set_anchor(first, system);
  set_anchor(second, system);
  set_anchor(system, first);
  ChunkedLLM llm = open();
  EXPECT_EQ(llm.generate_from_chunks(spec).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire
