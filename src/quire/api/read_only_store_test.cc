// A store that may not be written to: readers answer from it, and what is new to them stays theirs.
// Oracle: a process without a store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Files that this thread opens while it lives cannot write to the folder, whoever runs the test.
class ReadOnly {
 public:
  explicit ReadOnly(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::permissions(folder_, Perms::owner_read | Perms::owner_exec);
    EXPECT_EQ(::syscall(SYS_capget, &header_, data_), 0);
    __user_cap_data_struct plain[2] = {data_[0], data_[1]};
    plain[0].effective &= ~(1U << static_cast<unsigned>(CAP_DAC_OVERRIDE));
    EXPECT_EQ(::syscall(SYS_capset, &header_, plain), 0);
  }
  ReadOnly(const ReadOnly&) = delete;
  ReadOnly& operator=(const ReadOnly&) = delete;
  ~ReadOnly() {
    EXPECT_EQ(::syscall(SYS_capset, &header_, data_), 0);
    std::filesystem::permissions(folder_, Perms::owner_all);
  }

 private:
  using Perms = std::filesystem::perms;

  std::filesystem::path folder_;
  __user_cap_header_struct header_ = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data_[2] = {};
};

class ReadOnlyStore : public testing::Test {
 protected:
  [[nodiscard]] ChunkedLLM open(const ChunkCacheOptions& options = {}) const {
    return ChunkedLLM::open(kModel, here({.threads = 2}), options).value();
  }
  [[nodiscard]] ChunkedLLM open_reader() const {
    const ReadOnly folder(store_);
    return open({.store = store_});
  }

  static std::string add(ChunkedLLM& llm, Ids ids, ChunkType type, ChunkOptions options = {}) {
    const auto id = llm.register_chunk(
        {.content = std::move(ids), .type = type, .options = std::move(options)});
    EXPECT_TRUE(id.ok()) << id.error().message;
    return id.value();
  }

  // Adds a system chunk and a pinned card.
  static CompositionSpec add_saved(ChunkedLLM& llm) {
    return {
        .system_chunk_id = add(llm, some_ids(20, 1), ChunkType::kSystemPrompt),
        .context_chunk_ids = {add(llm, some_ids(45, 2), ChunkType::kContext, {.pinned = true})}};
  }
  // Adds another card and the question.
  static void add_new(ChunkedLLM& llm, CompositionSpec& spec) {
    spec.context_chunk_ids.push_back(add(llm, some_ids(33, 3), ChunkType::kContext));
    spec.query_chunk_id = add(llm, some_ids(7, 4), ChunkType::kQuery);
  }

  static Ids answer(ChunkedLLM& llm, const CompositionSpec& spec) {
    const auto output =
        llm.generate_from_chunks(spec, {.temperature = 0, .max_tokens = 12, .ignore_eos = true});
    EXPECT_TRUE(output.ok()) << output.error().message;
    return output.ok() ? output->token_ids : Ids();
  }

  static std::vector<bool> saved(ChunkedLLM& llm) {
    std::vector<bool> saved;
    for (const ChunkInfo& chunk : llm.list_chunks().value()) {
      EXPECT_EQ(llm.get_chunk(chunk.chunk_id).value().saved, chunk.saved);
      saved.push_back(chunk.saved);
    }
    return saved;
  }

  template <class Outcome>
  void expect_refused(const Outcome& outcome) const {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code, ErrorCode::kIo);
    EXPECT_THAT(outcome.error().message, HasSubstr(store_ + " is open read-only"));
  }

  const TemporaryFolder temporary_;
  const std::string store_ = temporary_.path() / "store";
};

TEST_F(ReadOnlyStore, AReaderAnswersBehindWhatIsSavedAndWhatIsItsOwn) {
  CompositionSpec spec;
  {
    ChunkedLLM writer = open({.store = store_});
    spec = add_saved(writer);
    EXPECT_THAT(saved(writer), ElementsAre(true, true));
  }
  ChunkedLLM alone = open();
  CompositionSpec same = add_saved(alone);
  add_new(alone, same);
  EXPECT_THAT(saved(alone), ElementsAre(false, false, false, false));

  ChunkedLLM reader = open_reader();
  EXPECT_THAT(reader.llm().remarks().value(), ElementsAre(HasSubstr("new chunks are not saved")));
  add_new(reader, spec);
  EXPECT_EQ(answer(reader, spec), answer(alone, same));
  EXPECT_EQ(answer(reader, spec), answer(alone, same));
  EXPECT_EQ(stat(reader, "tokens_computed"), 33 + 2 * (7 + 11)) << "the saved ones are read";
  EXPECT_THAT(saved(reader), ElementsAre(true, true, false, false));
  EXPECT_THAT(open({.store = store_}).list_chunks().value(), SizeIs(2));
}

TEST_F(ReadOnlyStore, AReaderBesideAWriterFindsWhatItSavesMeanwhile) {
  ChunkedLLM writer = open({.store = store_});
  EXPECT_THAT(writer.llm().remarks().value(), IsEmpty());
  CompositionSpec spec = add_saved(writer);
  ChunkedLLM reader = open_reader();
  add_new(reader, spec);
  const Ids before = answer(reader, spec);
  EXPECT_EQ(add(writer, some_ids(33, 3), ChunkType::kContext), spec.context_chunk_ids[1]);
  EXPECT_THAT(saved(reader), ElementsAre(true, true, true, false));
  EXPECT_EQ(answer(reader, spec), before);
  EXPECT_TRUE(writer.delete_chunk(spec.context_chunk_ids[1]).value());
  EXPECT_THAT(saved(reader), ElementsAre(true, true, false, false));
}

TEST_F(ReadOnlyStore, WhoAsksThatAllIsSavedIsToldOnceThatItIsNot) {
  {
    ChunkedLLM writer = open({.store = store_});
    add_saved(writer);
  }
  ChunkedLLM reader = open_reader();
  add_saved(reader);
  EXPECT_TRUE(reader.flush_store().ok()) << "all of it is saved";
  CompositionSpec spec;
  add_new(reader, spec);
  expect_refused(reader.flush_store());
  EXPECT_TRUE(reader.flush_store().ok()) << "nothing was refused since";
}

TEST_F(ReadOnlyStore, WhatIsSavedIsNeitherChangedNorDeletedAndWhatIsTheReadersOwnIs) {
  {
    ChunkedLLM writer = open({.store = store_});
    add_saved(writer);
  }
  ChunkedLLM reader = open_reader();
  CompositionSpec spec = add_saved(reader);
  add_new(reader, spec);
  const std::string& card = spec.context_chunk_ids[0];
  expect_refused(reader.update_chunk(card, {.metadata_json = R"({"a": 1})"}));
  expect_refused(reader.update_chunk(card, {.pinned = false}));
  expect_refused(reader.update_chunk(card, {.ttl_seconds = 60}));
  expect_refused(reader.delete_chunk(card));
  expect_refused(reader.delete_chunk(card, true));
  expect_refused(reader.clear_chunks());
  expect_refused(reader.clear_chunks(ChunkType::kContext));
  const ChunkInfo unchanged = reader.get_chunk(card).value();
  EXPECT_EQ(unchanged.metadata_json, "{}");
  EXPECT_TRUE(unchanged.pinned);
  EXPECT_EQ(unchanged.ttl_seconds, std::nullopt);
  EXPECT_THAT(saved(reader), ElementsAre(true, true, false, false));
  EXPECT_TRUE(reader.update_chunk(card, {.pinned = true}).ok()) << "it is that already";

  const std::string& own = spec.context_chunk_ids[1];
  EXPECT_TRUE(reader.update_chunk(own, {.metadata_json = R"({"a": 1})", .pinned = true})->pinned);
  EXPECT_TRUE(reader.delete_chunk(own).value());
  EXPECT_FALSE(reader.delete_chunk(own).value());
  EXPECT_EQ(reader.clear_chunks(ChunkType::kQuery).value(), 1) << "none of them is saved";
  EXPECT_THAT(saved(reader), ElementsAre(true, true));
}

TEST_F(ReadOnlyStore, RegisteringASavedChunkAgainSaysInThisProcessAloneWhatItSays) {
  {
    ChunkedLLM writer = open({.store = store_});
    add_saved(writer);
  }
  {
    ChunkedLLM reader = open_reader();
    const std::string id = add(reader, some_ids(20, 1), ChunkType::kSystemPrompt,
                               {.metadata_json = R"({"a": 1})", .ttl_seconds = 60});
    EXPECT_EQ(reader.get_chunk(id).value().metadata_json, R"({"a":1})");
    EXPECT_EQ(stat(reader, "tokens_computed"), 0);
  }
  EXPECT_EQ(open({.store = store_}).list_chunks().value().front().metadata_json, "{}");
}

TEST_F(ReadOnlyStore, AQuestionThatShallNotStayLeavesNothing) {
  CompositionSpec spec;
  {
    ChunkedLLM writer = open({.store = store_});
    spec = add_saved(writer);
  }
  ChunkedLLM reader = open_reader();
  for (const bool persist : {false, true}) {
    const auto output = reader.generate({.system = some_ids(20, 1), .query = some_ids(7, 4)}, {},
                                        {.temperature = 0, .max_tokens = 2}, persist);
    ASSERT_TRUE(output.ok()) << output.error().message;
    EXPECT_EQ(reader.get_chunk(output->query_id).ok(), persist) << "as without a store";
  }
}

TEST_F(ReadOnlyStore, AContextReadsItsItemsAndSavesNone) {
  LLM llm = LLM::open(kModel, here({.threads = 2})).value();
  {
    ContextManager writer = ContextManager::open(llm, {.store = store_}).value();
    ASSERT_TRUE(writer.add("Card 4. Ada keeps a goose.", {.name = "ada"}).ok());
    ASSERT_TRUE(writer.save("ada").ok());
  }
  const ReadOnly folder(store_);
  expect_refused(ContextManager::open(llm, {.store = store_, .write_through = true}));
  ContextManager reader = ContextManager::open(llm, {.store = store_}).value();
  ASSERT_TRUE(reader.restore("ada").ok());
  ASSERT_TRUE(reader.add("Card 6. Lars keeps a finch.", {.name = "lars"}).ok());
  EXPECT_TRUE(reader.infer("Who?", {.temperature = 0, .max_tokens = 2}).ok());
  expect_refused(reader.save("lars"));
  EXPECT_FALSE(reader.show("lars").value().saved);
  expect_refused(reader.set_retention("ada", {.pinned = true}));
  EXPECT_FALSE(reader.show("ada").value().retention.pinned);
  EXPECT_TRUE(reader.set_retention("ada", {.priority = 3}).ok()) << "is of this context alone";
  EXPECT_TRUE(reader.set_retention("lars", {.pinned = true}).ok());
  expect_refused(reader.erase("ada"));
  EXPECT_TRUE(reader.show("ada").value().saved);
  EXPECT_TRUE(reader.erase("lars").ok());
}

}  // namespace
}  // namespace quire
