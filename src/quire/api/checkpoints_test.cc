// Checkpoints on the demo model. Oracle: sequences that were never saved, bit for bit.
#include "quire/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

Ids next_64(Sequence& sequence) {
  return sequence.generate({.max_tokens = 64, .ignore_eos = true, .seed = 7}).value().token_ids;
}

class PublicCheckpoints : public testing::Test {
 protected:
  static LLM open_llm(const LLMOptions& options = here({.threads = 2})) {
    return LLM::open(kModel, options).value();
  }
  CheckpointManager open(const LLM& llm, const CheckpointOptions& options = {}) {
    auto manager = CheckpointManager::open(llm, folder_ / "store", options);
    EXPECT_TRUE(manager.ok()) << manager.error().message;
    return std::move(manager).value();
  }

  static std::vector<std::string> names(const CheckpointManager& manager) {
    std::vector<std::string> names;
    for (const CheckpointInfo& info : manager.list().value()) {
      names.push_back(info.name);
    }
    return names;
  }

  static void damage(const std::filesystem::path& file) {
    flip_bit(file, std::filesystem::file_size(file) - 1);  // of the last value
  }
  std::vector<std::filesystem::path> objects() {
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::recursive_directory_iterator(folder_ / "store")) {
      if (file.path().extension() == ".qkv") {
        files.push_back(file.path());
      }
    }
    return files;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(PublicCheckpoints, AnotherLlmGoesOnWithTheSameBits) {
  std::vector<Ids> next;
  std::vector<std::vector<float>> logits;
  const std::vector<std::size_t> lengths = {0, 1, 2, 32, 33, 100};
  {
    LLM llm = open_llm();
    std::vector<Sequence> sequences;
    std::vector<NamedSequence> named;
    for (const std::size_t length : lengths) {
      sequences.push_back(llm.sequence(some_ids(length, 3)).value());
    }
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      named.push_back({std::to_string(lengths[i]), &sequences[i]});
    }
    ASSERT_TRUE(sequences.back().generate({.max_tokens = 5, .seed = 7}).ok());
    const CheckpointInfo saved = open(llm).save(named).value();
    EXPECT_EQ(saved.sequences.size(), lengths.size());
    for (std::size_t i = 1; i < lengths.size(); ++i) {
      logits.push_back(sequences[i].logits().value());
      next.push_back(next_64(sequences[i]));
    }
  }
  LLM llm = open_llm();
  auto loaded = open(llm).load().value();
  EXPECT_EQ(stat(llm, "tokens_computed"), 0);
  ASSERT_EQ(loaded.size(), lengths.size());
  EXPECT_EQ(loaded[0].sequence.num_tokens(), 0);
  for (std::size_t i = 1; i < lengths.size(); ++i) {
    EXPECT_EQ(loaded[i].name, std::to_string(lengths[i]));
    EXPECT_EQ(loaded[i].sequence.grade(), ReuseGrade::kExact);
    EXPECT_EQ(loaded[i].sequence.logits().value(), logits[i - 1]);
    EXPECT_EQ(next_64(loaded[i].sequence), next[i - 1]);
  }
}

TEST_F(PublicCheckpoints, ManyIncrementsEqualOneSaveAndCostWhatIsNew) {
  LLM llm = open_llm();
  CheckpointManager manager = open(llm, {.keep = 1});
  Sequence sequence = llm.sequence(some_ids(64 * 16, 5)).value();
  const NamedSequence named{"a", &sequence};
  const std::int64_t full = manager.save({&named, 1}).value().written_bytes;
  EXPECT_EQ(manager.save({&named, 1}).value().written_bytes, 0);
  for (int step = 0; step < 6; ++step) {
    ASSERT_TRUE(sequence.append(some_ids(32, static_cast<std::uint32_t>(step))).ok());
    EXPECT_LT(manager.save({&named, 1}).value().written_bytes, full / 12);
  }
  EXPECT_EQ(manager.list().value().size(), 1U);
  Ids ids = sequence.tokens();
  const std::vector<float> logits = sequence.logits().value();
  const auto check = [&] {
    LLM other = open_llm();
    auto loaded = open(other).load().value();
    EXPECT_EQ(loaded[0].sequence.tokens(), ids);
    EXPECT_EQ(loaded[0].sequence.logits().value(), logits);
  };
  check();
  const std::string name = names(manager).front();
  const CheckpointInfo compacted = manager.compact(name).value();
  EXPECT_GT(compacted.written_bytes, 0);
  EXPECT_EQ(compacted.sequences[0].tokens, std::ssize(ids) - 1);
  check();
}

TEST_F(PublicCheckpoints, ForksShareWhatTheyHaveInCommon) {
  LLM llm = open_llm();
  Sequence one = llm.sequence(some_ids(512, 5)).value();
  Sequence two = one.fork().value();
  ASSERT_TRUE(one.append(some_ids(40, 1)).ok());
  ASSERT_TRUE(two.append(some_ids(40, 2)).ok());
  CheckpointManager manager = open(llm);
  const NamedSequence alone{"one", &one};
  const std::int64_t single = manager.save({&alone, 1}).value().bytes;
  const std::vector<NamedSequence> both = {{"one", &one}, {"two", &two}};
  EXPECT_LT(open(llm, {.series = "both"}).save(both).value().bytes, single * 5 / 4);
}

TEST_F(PublicCheckpoints, ChosenOnesAreSavedAndLoaded) {
  LLM llm = open_llm();
  Sequence one = llm.sequence(some_ids(40, 1)).value(), two = llm.sequence(some_ids(50, 2)).value();
  CheckpointManager manager = open(llm);
  const std::vector<NamedSequence> both = {{"one", &one}, {"two", &two}};
  ASSERT_TRUE(manager.save(both, "both").ok());
  ASSERT_TRUE(manager.save({&both[1], 1}, "second").ok());
  EXPECT_EQ(manager.load("second").value().size(), 1U);
  const std::vector<std::string> only = {"one"}, unknown = {"three"};
  const auto loaded = manager.load("both", only).value();
  ASSERT_EQ(loaded.size(), 1U);
  EXPECT_EQ(loaded[0].sequence.tokens(), one.tokens());
  EXPECT_THAT(manager.load("both", unknown).error().message, HasSubstr("three"));
  EXPECT_EQ(manager.load("neither").error().code, ErrorCode::kNotFound);
  const std::vector<NamedSequence> twice = {{"one", &one}, {"one", &two}},
                                   none = {{"one", nullptr}};
  EXPECT_EQ(manager.save(twice).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(manager.save(none).error().code, ErrorCode::kInvalidArgument);
  LLM other = open_llm();
  EXPECT_EQ(open(other).save(both).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(PublicCheckpoints, KeepsExactlySoManyCompleteOnes) {
  LLM llm = open_llm();
  Sequence sequence = llm.sequence(some_ids(40, 1)).value();
  const NamedSequence named{"a", &sequence};
  CheckpointManager manager = open(llm, {.keep = 2});
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(sequence.append(some_ids(40, static_cast<std::uint32_t>(i))).ok());
    ASSERT_TRUE(manager.save({&named, 1}).ok());
  }
  EXPECT_THAT(names(manager), ElementsAre("checkpoint-4", "checkpoint-3"));
  EXPECT_EQ(manager.cleanup(1).value(), 1);
  EXPECT_THAT(names(manager), ElementsAre("checkpoint-4"));
  EXPECT_EQ(manager.cleanup(-1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(manager.remove("checkpoint-4").value());
  EXPECT_FALSE(manager.remove("checkpoint-4").value());
  EXPECT_EQ(manager.load().error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(objects().empty());
}

TEST_F(PublicCheckpoints, ALimitEvictsTheOldestOnes) {
  LLM llm = open_llm();
  std::int64_t bytes = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    Sequence sequence = llm.sequence(some_ids(64, i)).value();
    const NamedSequence named{"a", &sequence};
    CheckpointManager manager = open(llm, {.keep = 0, .max_bytes = 2 * bytes});
    bytes = manager.save({&named, 1}).value().bytes;
  }
  EXPECT_THAT(names(open(llm)), ElementsAre("checkpoint-4", "checkpoint-3"));
}

TEST_F(PublicCheckpoints, ALimitIsOneOfTheTenantAloneWhateverOthersHold) {
  LLM llm = open_llm();
  std::int64_t bytes = 0;
  const auto save = [&](const std::string& tenant, std::uint32_t seed, std::int64_t most) {
    Sequence sequence = llm.sequence(some_ids(64, seed), {}, {.salt = tenant}).value();
    const NamedSequence named{"a", &sequence};
    CheckpointManager manager =
        open(llm, {.tenant = tenant, .keep = 0, .max_bytes = most * bytes + bytes / 2});
    bytes = manager.save({&named, 1}).value().bytes;
  };
  const auto names_of = [&](const std::string& tenant) {
    return names(open(llm, {.tenant = tenant}));
  };
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    save("bob", seed, 100);
  }
  for (std::uint32_t seed = 6; seed < 9; ++seed) {
    save("ada", seed, 2);
  }
  EXPECT_THAT(names_of("ada"), ElementsAre("checkpoint-3", "checkpoint-2"));
  EXPECT_THAT(names_of("bob"), SizeIs(6)) << "ada's limit is none of his";
  save("bob", 9, 1);
  EXPECT_THAT(names_of("bob"), ElementsAre("checkpoint-7"));
  EXPECT_THAT(names_of("ada"), SizeIs(2));
  save("", 10, 1);
  save("", 11, 1);
  EXPECT_THAT(names_of(""), ElementsAre("checkpoint-2")) << "nobody's is a tenant, too";
  LLM other = open_llm();
  auto loaded = open(other, {.tenant = "ada"}).load("checkpoint-3").value();
  EXPECT_EQ(loaded[0].sequence.tokens(), some_ids(64, 8));
}

TEST_F(PublicCheckpoints, DamageLeavesTheLastGoodOne) {
  LLM llm = open_llm();
  Sequence sequence = llm.sequence(some_ids(64, 1)).value();
  const NamedSequence named{"a", &sequence};
  CheckpointManager manager = open(llm);
  ASSERT_TRUE(manager.save({&named, 1}).ok());
  const Ids good = sequence.tokens();
  const auto before = objects();
  ASSERT_TRUE(sequence.append(some_ids(64, 2)).ok());
  ASSERT_TRUE(manager.save({&named, 1}).ok());
  for (const auto& file : objects()) {
    if (std::ranges::find(before, file) == before.end()) {
      damage(file);
    }
  }
  LLM other = open_llm();
  CheckpointManager reader = open(other);
  EXPECT_EQ(reader.latest().value().name, "checkpoint-1");
  EXPECT_EQ(reader.load().value()[0].sequence.tokens(), good);
  EXPECT_EQ(reader.load("checkpoint-2").error().code, ErrorCode::kCorrupt);
  std::ranges::for_each(before, damage);
  EXPECT_EQ(reader.load().error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(stat(other, "blocks_in_use"), 0);
}

TEST_F(PublicCheckpoints, DamageIsRefusedThoughTheKvIsInMemory) {
  LLM llm = open_llm();
  CheckpointManager manager = open(llm);
  std::vector<Sequence> alive;
  alive.push_back(llm.sequence(some_ids(100, 1)).value());
  alive.push_back(alive[0].fork().value());
  ASSERT_TRUE(alive[1].append(some_ids(70, 2)).ok());
  const std::vector<NamedSequence> forks = {{"one", &alive[0]}, {"two", &alive[1]}};
  ASSERT_TRUE(manager.save(forks, "forks").ok());
  const std::vector<Ids> tokens = {alive[0].tokens(), alive[1].tokens()};
  const double computed = stat(llm, "tokens_computed");
  const auto check = [&](const char* where) {
    const double used = stat(llm, "blocks_in_use");
    for (const std::filesystem::path& file : objects()) {
      const auto size = std::filesystem::file_size(file);
      for (std::uintmax_t at = size / 16; at < size; at += size / 8) {
        flip_bit(file, at);
        const auto refused = manager.load("forks");
        flip_bit(file, at);
        ASSERT_FALSE(refused.ok()) << where << ", byte " << at;
        EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt) << refused.error().message;
        EXPECT_EQ(stat(llm, "blocks_in_use"), used) << where;
      }
    }
    const auto loaded = manager.load("forks").value();
    EXPECT_EQ(loaded[0].sequence.tokens(), tokens[0]) << where;
    EXPECT_EQ(loaded[1].sequence.tokens(), tokens[1]) << where;
  };
  ASSERT_GE(objects().size(), 3U);
  check("alive");
  alive.clear();
  check("in the prefix cache");
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  check("nowhere");
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
}

TEST_F(PublicCheckpoints, LoadedInTheBackgroundTheyGoOnWithTheSameBits) {
  Ids tokens, next;
  {
    LLM llm = open_llm();
    CheckpointManager manager = open(llm);
    Sequence talk = llm.sequence(some_ids(100, 1)).value();
    for (const std::uint32_t seed : {2U, 3U, 4U}) {  // pieces of several saves
      ASSERT_TRUE(manager.save(std::vector<NamedSequence>{{"talk", &talk}}).ok());
      ASSERT_TRUE(talk.append(some_ids(70, seed)).ok());
    }
    ASSERT_TRUE(manager.save(std::vector<NamedSequence>{{"talk", &talk}}).ok());
    tokens = talk.tokens();
    next = next_64(talk);
  }
  ASSERT_GE(objects().size(), 4);
  LLM llm = open_llm();
  CheckpointManager manager = open(llm);
  auto loaded = manager.load("", {}, {.wait = false}).value();
  EXPECT_EQ(loaded[0].sequence.tokens(), tokens);
  EXPECT_EQ(next_64(loaded[0].sequence), next);
  EXPECT_EQ(stat(llm, "tokens_computed"), 64) << "the last token, and 63 generated ones";
  loaded.clear();
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_GT(llm.explain(tokens).value()[0].tokens, 200) << "what was read is in the prefix cache";
}

TEST_F(PublicCheckpoints, LoadedInTheBackgroundADamagedOneFailsWhereItIsUsed) {
  {
    LLM llm = open_llm();
    const Sequence bad = llm.sequence(some_ids(100, 1)).value();
    CheckpointManager manager = open(llm);
    ASSERT_TRUE(manager.save(std::vector<NamedSequence>{{"bad", &bad}}, "one").ok());
    const std::filesystem::path object = objects().front();
    const Sequence good = llm.sequence(some_ids(90, 2)).value();
    ASSERT_TRUE(
        manager.save(std::vector<NamedSequence>{{"bad", &bad}, {"good", &good}}, "two").ok());
    damage(object);
  }
  LLM llm = open_llm();
  CheckpointManager manager = open(llm);
  EXPECT_EQ(manager.load("two").error().code, ErrorCode::kCorrupt);
  auto loaded = manager.load("two", {}, {.wait = false}).value();
  const auto lost = loaded[0].sequence.generate({.max_tokens = 1});
  EXPECT_EQ(lost.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(lost.error().message, HasSubstr(".qkv"));
  EXPECT_TRUE(loaded[1].sequence.generate({.max_tokens = 1}).ok());
  for (const std::filesystem::path& object : objects()) {
    std::filesystem::remove(object);
  }
  EXPECT_FALSE(manager.load("one", {}, {.wait = false}).ok());
  loaded.clear();
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0) << "a load that could not begin leaves nothing";
}

TEST_F(PublicCheckpoints, AnotherModelOrFormatIsRefused) {
  {
    LLM llm = open_llm();
    Sequence sequence = llm.sequence(some_ids(64, 1)).value();
    const NamedSequence named{"a", &sequence};
    ASSERT_TRUE(open(llm).save({&named, 1}).ok());
  }
  for (const LLMOptions& options : {LLMOptions{.kv_dtype = "float32", .threads = 2},
                                    {.kv_dtype = "int8", .threads = 2},
                                    {.quantize = "q8g32", .threads = 2},
                                    here({.block_tokens = 64, .threads = 2})}) {
    LLM other = open_llm(options);
    EXPECT_EQ(open(other).load().error().code, ErrorCode::kIncompatible);
    EXPECT_EQ(stat(other, "blocks_in_use"), 0);
    Sequence sequence = other.sequence(some_ids(64, 1)).value();
    const NamedSequence named{"a", &sequence};
    EXPECT_TRUE(open(other, {.series = "other"}).save({&named, 1}).ok());
  }
}

TEST_F(PublicCheckpoints, ComposedSequencesKeepTheirGradeAndBits) {
  ChunkedLLM llm = ChunkedLLM::open(kModel, here({.threads = 2})).value();
  const auto add = [&](const char* text, ChunkType type) {
    return llm.register_chunk({.content = std::string(text), .type = type}).value();
  };
  const CompositionSpec spec{
      .system_chunk_id = add("You are the keeper of a card file.", ChunkType::kSystemPrompt),
      .context_chunk_ids = {add("Card 7. Ada trades in apples.", ChunkType::kContext),
                            add("Card 9. Lars carries a lantern.", ChunkType::kContext)},
      .query_chunk_id = add("What does Lars carry?", ChunkType::kQuery)};
  Sequence sequence = llm.sequence(spec).value();
  const NamedSequence named{"a", &sequence};
  CheckpointManager manager = open(llm.llm());
  const std::int64_t full = manager.save({&named, 1}).value().written_bytes;
  const Ids ids = next_64(sequence);
  EXPECT_LT(manager.save({&named, 1}).value().written_bytes, full);
  LLM other = open_llm();
  auto loaded = open(other).load("checkpoint-1").value();
  EXPECT_EQ(loaded[0].sequence.grade(), ReuseGrade::kApproximate);
  EXPECT_EQ(next_64(loaded[0].sequence), ids);
}

TEST_F(PublicCheckpoints, MaybeSaveSavesWhenEnoughIsNew) {
  LLM llm = open_llm();
  Sequence sequence = llm.sequence(some_ids(20, 1)).value();
  const NamedSequence named{"a", &sequence};
  CheckpointManager manager = open(llm, {.every_tokens = 16});
  EXPECT_TRUE(manager.maybe_save({&named, 1}).value().has_value());
  ASSERT_TRUE(sequence.append(some_ids(15, 2)).ok());
  EXPECT_FALSE(manager.maybe_save({&named, 1}).value().has_value());
  ASSERT_TRUE(sequence.generate({.max_tokens = 1, .ignore_eos = true}).ok());
  EXPECT_EQ(manager.maybe_save({&named, 1}).value()->number, 2);
  ASSERT_TRUE(sequence.replace(2, 3, some_ids(1, 9)).ok());
  EXPECT_EQ(manager.maybe_save({&named, 1}).value()->number, 3) << "what stands behind is new";
  EXPECT_FALSE(open(llm).maybe_save({&named, 1}).value().has_value()) << "never, by default";
  CheckpointManager later = open(llm, {.every_tokens = 1});
  auto loaded = later.load().value();
  const NamedSequence again{"a", &loaded[0].sequence};
  EXPECT_FALSE(later.maybe_save({&again, 1}).value().has_value()) << "loaded is as saved";
}

TEST_F(PublicCheckpoints, OptionsAndClosedOnesAreRefused) {
  LLM llm = open_llm();
  for (const CheckpointOptions& options : {CheckpointOptions{.keep = -1},
                                           {.every_tokens = -1},
                                           {.every_seconds = -1},
                                           {.max_bytes = -1}}) {
    EXPECT_EQ(CheckpointManager::open(llm, folder_ / "store", options).error().code,
              ErrorCode::kInvalidArgument);
  }
  std::ofstream(folder_ / "file") << "x";
  EXPECT_EQ(CheckpointManager::open(llm, folder_ / "file").error().code, ErrorCode::kIo);
  EXPECT_EQ(CheckpointManager::open(llm, folder_).error().code, ErrorCode::kInvalidArgument);
  CheckpointManager manager = open(llm);
  llm.close();
  EXPECT_EQ(manager.list().error().code, ErrorCode::kClosed);
  EXPECT_EQ(manager.load().error().code, ErrorCode::kClosed);
}

}  // namespace
}  // namespace quire
