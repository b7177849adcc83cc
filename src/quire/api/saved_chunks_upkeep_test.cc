// Tests which chunks a store keeps and which it gives away: limits, deleting, changing, tenants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "quire/api/saved_chunks_scene.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/store.h"

namespace quire {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST_F(SavedChunks, RegisteringEvictsFromTheStoreBeyondItsLimit) {
  {
    ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 2}),
                                      {.store = folder_ / "store", .max_store_bytes = 1})
                         .value();
    (void)register_all(llm);
  }
  EXPECT_LE(open().list_chunks().value().size(), 1);
  EXPECT_THAT(ChunkedLLM::open(kModel, here({}), {.max_store_bytes = -1}).error().message,
              HasSubstr("max_store_bytes"));
}

TEST_F(SavedChunks, ALimitTakesNothingFromATenantThatHoldsNoMoreThanAnEqualShare) {
  const std::string store = folder_ / "store";
  const auto add = [](ChunkedLLM& llm, const std::string& salt, std::uint32_t seed) {
    ChunkContent content{.content = some_ids(40, seed)};
    content.options.salt = salt;
    return llm.register_chunk(content).value();
  };
  const auto saved = [&](const std::string& tenant) {
    return Store::open(store, {.tenant = tenant})->list().value();
  };
  {
    ChunkedLLM llm = open();
    add(llm, "ada", 0);
  }
  const StoreEntry first = saved("ada").front();
  ChunkedLLM llm =
      ChunkedLLM::open(kModel, here({.threads = 2}),
                       {.store = store, .max_store_bytes = 4 * first.bytes + first.bytes / 2})
          .value();
  std::string last;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    last = add(llm, "bob", seed);
  }
  EXPECT_THAT(saved("bob"), SizeIs(3));
  EXPECT_EQ(saved("bob").back().key, last);
  ASSERT_THAT(saved("ada"), SizeIs(1));
  EXPECT_EQ(saved("ada").front().key, first.key) << "used least recently of all";
}

TEST_F(SavedChunks, DeletingWithWipeLeavesZerosOfItsKvAndOfNoOther) {
  ChunkedLLM llm = open();
  const CompositionSpec spec = register_all(llm);
  std::vector<std::filesystem::path> links;  // what else names the bytes of an object
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder_)) {
    if (file.path().extension() == ".qkv") {
      links.push_back(folder_ / ("link" + std::to_string(links.size())));
      std::filesystem::create_hard_link(file.path(), links.back());
    }
  }
  ASSERT_TRUE(llm.delete_chunk(spec.context_chunk_ids[0], true).value());
  ASSERT_TRUE(llm.delete_chunk(spec.context_chunk_ids[1]).value());
  const auto is_zero = [](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    return bytes == std::string(bytes.size(), '\0');
  };
  EXPECT_EQ(std::ranges::count_if(links, is_zero), 1);
}

TEST_F(SavedChunks, WhatCannotBeDeletedFromTheStoreIsToldAndStays) {
  ChunkedLLM llm = open();
  const std::string id = llm.register_chunk({.content = some_ids(20, 1)}).value();
  const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  const auto deleted = llm.delete_chunk(id, true);
  const auto cleared = llm.clear_chunks();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, old_action);
  ASSERT_FALSE(deleted.ok());
  EXPECT_EQ(deleted.error().code, ErrorCode::kIo);
  EXPECT_EQ(cleared.error().code, ErrorCode::kIo);
  EXPECT_TRUE(llm.get_chunk(id).ok());
  EXPECT_TRUE(*llm.delete_chunk(id, true));
  EXPECT_EQ(num_objects(), 0);
}

TEST_F(SavedChunks, RegisteringWhatIsSavedComputesNothing) {
  {
    ChunkedLLM llm = open();
    (void)register_all(llm);
  }
  ChunkedLLM llm = open();
  (void)register_all(llm);
  EXPECT_EQ(stat(llm, "tokens_computed"), 0);
  EXPECT_EQ(llm.chunk_stats().value().cache_misses, 0);
}

TEST_F(SavedChunks, ContextsGoUnderTheSystemChunkOfTheProcessBefore) {
  std::string system;
  {
    ChunkedLLM llm = open();
    system = register_all(llm).system_chunk_id;
  }
  ChunkedLLM llm = open();
  const std::string card = llm.register_chunk({.content = some_ids(30, 9)}).value();
  EXPECT_EQ(llm.get_chunk(card).value().anchor, system);
  EXPECT_EQ(stat(llm, "tokens_computed"), 30);
}

TEST_F(SavedChunks, AChangedChunkIsAsOldAsItWas) {
  std::string first, last;
  {
    ChunkedLLM llm = open();
    const auto add = [&](std::uint32_t seed) {
      return llm.register_chunk({.content = some_ids(20, seed), .type = ChunkType::kSystemPrompt})
          .value();
    };
    first = add(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    last = add(2);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_TRUE(llm.update_chunk(first, {.metadata_json = R"({"a": 1})"}).ok());
  }
  ChunkedLLM llm = open();
  const std::string card = llm.register_chunk({.content = some_ids(30, 9)}).value();
  EXPECT_EQ(llm.get_chunk(card).value().anchor, last);
  EXPECT_EQ(llm.list_chunks().value().front().chunk_id, first);
}

TEST_F(SavedChunks, TheStoreForgetsAChunkByTheTtlThatItHasNow) {
  ChunkedLLM llm = open();
  const auto expires = [&](const std::string& id) {
    return !Store::open(folder_ / "store").value().find(id).value().expires_at.empty();
  };
  const std::string id =
      llm.register_chunk({.content = some_ids(20, 1), .options = {.ttl_seconds = 600}}).value();
  EXPECT_TRUE(expires(id));
  ASSERT_TRUE(llm.update_chunk(id, {.metadata_json = R"({"a": 1})"}).ok());
  EXPECT_TRUE(expires(id));
  ASSERT_TRUE(llm.update_chunk(id, {.ttl_seconds = std::optional<double>()}).ok());
  EXPECT_FALSE(expires(id));
  ASSERT_TRUE(llm.update_chunk(id, {.ttl_seconds = 60}).ok());
  EXPECT_TRUE(expires(id));
}

TEST_F(SavedChunks, APinOfAnotherProcessIsShownAndStaysUntilItIsTakenBack) {
  ChunkedLLM llm = open();
  const std::string id = llm.register_chunk({.content = some_ids(20, 1)}).value();
  const auto shown = [&] {
    const bool listed = llm.list_chunks().value().front().pinned;
    EXPECT_EQ(llm.get_chunk(id).value().pinned, listed);
    EXPECT_EQ(Store::open(folder_ / "store")->find(id)->pinned, listed);
    return listed;
  };
  EXPECT_FALSE(shown());
  ASSERT_TRUE(Store::open(folder_ / "store")->pin(id, true).ok());
  EXPECT_TRUE(shown());
  ASSERT_TRUE(llm.update_chunk(id, {.priority = 3}).ok());
  EXPECT_TRUE(shown());
  EXPECT_FALSE(llm.update_chunk(id, {.pinned = false}).value().pinned);
  EXPECT_FALSE(shown());
}

TEST_F(SavedChunks, WhatIsDeletedOrChangedStaysSo) {
  CompositionSpec spec;
  {
    ChunkedLLM llm = open();
    spec = register_all(llm);
    ASSERT_TRUE(llm.update_chunk(spec.context_chunk_ids[0],
                                 {.metadata_json = R"({"source": "new"})", .pinned = true})
                    .ok());
    EXPECT_TRUE(llm.delete_chunk(spec.context_chunk_ids[1]).value());
  }
  ChunkedLLM llm = open();
  const ChunkInfo card = llm.get_chunk(spec.context_chunk_ids[0]).value();
  EXPECT_THAT(card.metadata_json, HasSubstr("new"));
  EXPECT_TRUE(card.pinned);
  EXPECT_EQ(llm.get_chunk(spec.context_chunk_ids[1]).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(llm.generate_from_chunks(spec).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(llm.delete_chunk(spec.context_chunk_ids[0]).value()) << "not fetched yet";
  EXPECT_EQ(llm.list_chunks().value().size(), 2);
  EXPECT_TRUE(llm.clear_chunks().ok());
  EXPECT_THAT(open().list_chunks().value(), IsEmpty());
}

TEST_F(SavedChunks, ClearingCountsEachChunkOnceWhereverItIs) {
  {
    ChunkedLLM llm = open();
    const CompositionSpec spec = register_all(llm);
    ASSERT_TRUE(llm.delete_chunk(spec.query_chunk_id).ok());
  }
  {
    ChunkedLLM llm = open();
    EXPECT_EQ(llm.clear_chunks(ChunkType::kQuery).value(), 0);
    EXPECT_EQ(llm.clear_chunks(ChunkType::kSystemPrompt).value(), 1) << "only on disk";
    ASSERT_TRUE(llm.register_chunk({.content = some_ids(30, 9)}).ok());
    EXPECT_EQ(llm.clear_chunks().value(), 3) << "two on disk, one there as well as in memory";
    EXPECT_EQ(llm.clear_chunks().value(), 0);
  }
  EXPECT_EQ(open().clear_chunks().value(), 0);
}

TEST_F(SavedChunks, TenantsAndModelsDoNotSeeEachOthersChunks) {
  CompositionSpec spec;
  {
    ChunkedLLM llm = open("alice");
    spec = register_all(llm);
  }
  ChunkedLLM other = open("bob");
  EXPECT_THAT(other.list_chunks().value(), IsEmpty());
  EXPECT_EQ(other.get_chunk(spec.query_chunk_id).error().code, ErrorCode::kNotFound);
  ChunkedLLM model = ChunkedLLM::open(kModel, {.dtype = "float32", .threads = 2},
                                      {.salt = "alice", .store = folder_ / "store"})
                         .value();
  EXPECT_THAT(model.list_chunks().value(), IsEmpty());
}

TEST_F(SavedChunks, AStoreCallsAChunkByItsNameUnlessThatIsNoNameOfAnEntry) {
  ChunkedLLM llm = open();
  const auto name_in_store = [&](const std::string& metadata) {
    const std::string id = must(
        llm.register_chunk({.content = some_ids(20, 9), .options = {.metadata_json = metadata}}));
    const auto entries = must(must(Store::open(folder_ / "store")).list());
    const auto entry = std::ranges::find(entries, id, &StoreEntry::key);
    return entry == entries.end() ? "?" : entry->name;
  };
  EXPECT_EQ(name_in_store(R"({"source": "test"})"), "");
  EXPECT_EQ(name_in_store(R"({"name": "ada"})"), "ada");
  EXPECT_EQ(name_in_store(R"({"name": "lars"})"), "lars");
  EXPECT_EQ(name_in_store(R"({"name": 7})"), "");
  EXPECT_EQ(name_in_store(R"({"name": ")" + std::string(1025, 'a') + R"("})"), "");
  EXPECT_EQ(name_in_store(R"({"name": "a\u0000"})"), "");
}

}  // namespace
}  // namespace quire
