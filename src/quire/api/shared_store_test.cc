// Several processes share one store, each an engine of its own here. An object that one takes out
// of it another may still have in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/store.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class SharedStore : public testing::Test {
 protected:
  [[nodiscard]] ChunkedLLM open(ChunkCacheOptions options = {}) const {
    options.store = store_;
    return ChunkedLLM::open(kModel, here({.threads = 2}), options).value();
  }

  static std::string add(ChunkedLLM& llm, std::uint32_t seed, const std::string& metadata = "{}",
                         std::optional<double> ttl_seconds = {}) {
    return llm
        .register_chunk({.content = some_ids(40, seed),
                         .options = {.metadata_json = metadata, .ttl_seconds = ttl_seconds}})
        .value();
  }

  // Returns the ids that a process which begins now finds.
  [[nodiscard]] std::vector<std::string> found() const {
    ChunkedLLM llm = open();
    std::vector<std::string> ids;
    for (const ChunkInfo& chunk : llm.list_chunks().value()) {
      ids.push_back(chunk.chunk_id);
    }
    return ids;
  }

  // Returns those that some file of the folder holds.
  [[nodiscard]] std::vector<std::string> words_on_disk(std::vector<std::string> words) const {
    std::string bytes;
    for (const auto& file : std::filesystem::recursive_directory_iterator(store_)) {
      if (file.is_regular_file()) {
        std::ifstream in(file.path(), std::ios::binary);
        bytes.append(std::istreambuf_iterator<char>(in), {});
      }
    }
    std::erase_if(words,
                  [&](const std::string& word) { return bytes.find(word) == std::string::npos; });
    return words;
  }

  // A process that begins now finds the chunk with its KV.
  void expect_saved_whole(const std::string& id) const {
    ChunkedLLM llm = open();
    ASSERT_TRUE(llm.get_chunk(id).ok());
    EXPECT_EQ(llm.chunk_blocks(id).value().num_tokens(), 40);
    EXPECT_EQ(stat(llm, "tokens_computed"), 0);
  }

  const base::TemporaryFolder temporary_;
  const std::string store_ = temporary_.path() / "store";
};

TEST_F(SharedStore, RegisteringAgainWritesAgainWhatTheLimitTookOut) {
  std::vector<std::string> ids;
  for (const bool write_through : {true, false}) {
    ChunkedLLM llm = open({.max_store_bytes = 1, .write_through = write_through});
    ids = {add(llm, 1), add(llm, 2)};
    ASSERT_TRUE(llm.flush_store().ok());
    EXPECT_THAT(found(), ElementsAre(ids[1]));
    EXPECT_EQ(add(llm, 1), ids[0]);
    ASSERT_TRUE(llm.flush_store().ok());
    EXPECT_EQ(stat(llm, "tokens_computed"), write_through ? 80 : 40) << "the KV is in memory";
    EXPECT_THAT(found(), ElementsAre(ids[0]));
    expect_saved_whole(ids[0]);
  }
}

TEST_F(SharedStore, RegisteringAgainWritesAgainWhatAnotherProcessDeleted) {
  ChunkedLLM llm = open();
  const std::string id = add(llm, 1);
  const std::string query =
      llm.register_chunk({.content = some_ids(7, 2), .type = ChunkType::kQuery}).value();
  EXPECT_EQ(open().clear_chunks().value(), 2);
  EXPECT_EQ(add(llm, 1), id);
  EXPECT_EQ(llm.register_chunk({.content = some_ids(7, 2), .type = ChunkType::kQuery}).value(),
            query);
  EXPECT_EQ(stat(llm, "tokens_computed"), 40);
  EXPECT_THAT(found(), UnorderedElementsAre(id, query));
  expect_saved_whole(id);
}

TEST_F(SharedStore, UpdatingWritesAgainWhatAnotherProcessDeleted) {
  ChunkedLLM llm = open();
  const std::string id = add(llm, 1);
  EXPECT_TRUE(open().delete_chunk(id).value());
  EXPECT_TRUE(llm.update_chunk(id, {.metadata_json = R"({"a": 1})"}).ok());
  const auto saved = open().get_chunk(id);
  ASSERT_TRUE(saved.ok()) << saved.error().message;
  EXPECT_EQ(saved->metadata_json, R"({"a":1})");
  expect_saved_whole(id);
}

TEST_F(SharedStore, RegisteringAgainWritesAgainWhatHasExpiredInTheStoreAlone) {
  ChunkedLLM llm = open();
  const std::string id = add(llm, 1);
  {
    Store store = Store::open(store_).value();
    ASSERT_TRUE(store.set_ttl(id, 0).ok());
  }
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_EQ(add(llm, 1), id);
  EXPECT_THAT(found(), ElementsAre(id));
}

TEST_F(SharedStore, RegisteringAgainWhatIsSavedWritesNothing) {
  for (const bool write_through : {true, false}) {
    ChunkedLLM llm = open({.write_through = write_through});
    const std::string id = add(llm, 1);
    const auto written = [&] {
      return std::filesystem::last_write_time(store_ + "/objects/" + id.substr(0, 2) + "/" + id +
                                              ".qkv");
    };
    ASSERT_TRUE(llm.flush_store().ok());
    const auto before = written();  // putting an object again renews its time
    EXPECT_EQ(add(llm, 1), id);
    ASSERT_TRUE(llm.flush_store().ok());
    EXPECT_EQ(written(), before);
  }
}

TEST_F(SharedStore, WipingLeavesNeitherTextNorNameThoughTheStoreIsOpen) {
  ChunkedLLM llm = open();
  ChunkedLLM other = open();
  const std::string id =
      llm.register_chunk({.content = "Card 77. Marlowe trades in apples.",
                          .options = {.metadata_json = R"({"name": "Falstaff"})", .anchor = ""}})
          .value();
  ContextManager context = ContextManager::open(llm.llm(), {.store = store_}).value();
  ASSERT_TRUE(context.add("Card 9. Greene lives in Thornby.", {.name = "nashe"}).ok());
  ASSERT_TRUE(context.save("nashe").ok());
  const std::vector<std::string> words = {"Marlowe", "Falstaff", "Greene", "nashe"};
  EXPECT_EQ(words_on_disk(words), words);
  EXPECT_TRUE(llm.delete_chunk(id, true).value());
  EXPECT_TRUE(context.erase("nashe", true).ok());
  EXPECT_THAT(words_on_disk(words), IsEmpty());
}

TEST_F(SharedStore, AChunkOfAnotherKvFormatIsSaidToBeThatAndOneOfAnotherTenantIsNot) {
  std::string context, query;
  {
    ChunkedLLM llm = open();
    context = add(llm, 1);
    query = llm.register_chunk({.content = some_ids(7, 2), .type = ChunkType::kQuery}).value();
  }
  const CompositionSpec spec{
      .without_system = true, .context_chunk_ids = {context}, .query_chunk_id = query};
  const auto reasons = [&](const ChunkedLLM& llm) {
    std::vector<std::string> reasons;
    for (const ReusePart& part : llm.explain(spec).value()) {
      reasons.push_back(part.reason);
    }
    return reasons;
  };
  const std::string other = "in the store, but of another model or KV format";
  // On a GPU the KV's format is that of the weights.
  const LLMOptions wide =
      on_gpu() ? LLMOptions{.dtype = "float16"} : LLMOptions{.kv_dtype = "float32"};
  const ChunkedLLM wider = ChunkedLLM::open(kModel, here(wide), {.store = store_}).value();
  EXPECT_THAT(reasons(wider),
              ElementsAre(HasSubstr(other + " (dtype is bfloat16, here it is"), HasSubstr(other)));
  EXPECT_THAT(wider.get_chunk(context).error().message, HasSubstr(other));
  EXPECT_THAT(reasons(open({.salt = "another"})),
              ElementsAre(HasSubstr("never registered"), HasSubstr("never registered")));
}

TEST_F(SharedStore, WithoutSharingEveryRegistrationOfEveryProcessIsAChunkOfItsOwn) {
  std::set<std::string> ids;
  for (int process = 0; process < 2; ++process) {
    ChunkedLLM llm = open({.enable_deduplication = false});
    for (int i = 0; i < 2; ++i) {
      ids.insert(add(llm, 1, R"({"n": )" + std::to_string(2 * process + i) + "}"));
    }
  }
  ASSERT_THAT(ids, SizeIs(4));
  std::set<std::string> said;
  ChunkedLLM llm = open();
  for (const std::string& id : ids) {
    said.insert(llm.get_chunk(id)->metadata_json);
  }
  EXPECT_THAT(said, ElementsAre(R"({"n":0})", R"({"n":1})", R"({"n":2})", R"({"n":3})"));
}

}  // namespace
}  // namespace quire
