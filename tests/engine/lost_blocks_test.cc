// Sequences that have run past the sliding window of their model, in files and checkpoints: what
// the window has freed is saved as tokens. The oracle is the sequence that never stopped, bit for
// bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "kv_rows.h"
#include "quire/api/test_support.h"
#include "quire/base/ids.h"
#include "quire/checkpoints.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/store.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

const std::string mistral = source_path("tests/golden/model/mistral_window");  // 16 tokens
const std::string phi3 = source_path("tests/golden/model/phi3");               // 40 tokens
const std::string alternating = source_path("tests/golden/model/qwen2_window");

LLM open(const std::string& model, std::int32_t block_tokens = 8, bool prefix_cache = true) {
  return LLM::open(model,
                   here({.block_tokens = block_tokens, .threads = 1, .prefix_cache = prefix_cache}))
      .value();
}

// The golden models have few tokens.
Ids prompt(std::size_t count, std::uint32_t seed = 1) {
  Ids ids = some_ids(count, seed);
  for (TokenId& id : ids) {
    id = 20 + id % 100;
  }
  return ids;
}

SamplingParams seeded(std::int32_t max_tokens) {
  return {.repetition_penalty = 1.1, .max_tokens = max_tokens, .ignore_eos = true, .seed = 7};
}

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::int64_t lost_blocks(const Sequence& sequence) {
  const std::vector<std::int32_t> blocks = sequence.blocks().value().block_ids();
  return std::ranges::count(blocks, -1);
}

class LostBlocks : public testing::Test {
 protected:
  [[nodiscard]] std::string file() const { return folder_ / "sequence.qkv"; }

  // A sequence of so many tokens in a file.
  void save(const std::string& model, std::size_t tokens) const {
    LLM llm = open(model);
    ASSERT_TRUE(llm.sequence(prompt(tokens)).value().save(file()).ok());
  }

  using Edit = std::function<void(kv_store::KVFileContent&, boost::json::object&,
                                  std::vector<std::vector<BlockId>>&)>;
  // Writes the file anew with what `edit` makes of its content, its metadata and its blocks.
  void rewrite(const Edit& edit) const {
    kv_store::KVFileContent content;
    std::optional<kv_store::PagedPool> pool;
    std::vector<std::vector<BlockId>> blocks(1);
    {
      const auto saved = kv_store::KVFile::open(file()).value();
      content = saved.content();
      const kv_store::SavedRun& run = content.runs[0];
      const auto count = run.num_blocks_with_kv(content.geometry.block_tokens);
      pool = kv_store::PagedPool::create(content.geometry, count).value();
      for (std::int32_t i = 0; i < count; ++i) {
        blocks[0].push_back({i});
      }
      for (int layer = 0; layer < content.geometry.layers; ++layer) {
        const kv_store::BlockRange all{
            .first_block = run.lost_blocks, .to = blocks[0], .without_part = run.lost_parts};
        ASSERT_TRUE(kv_store::read_layer(saved, layer, all, *pool).ok());
      }
    }
    auto metadata = boost::json::parse(content.metadata_json).as_object();
    edit(content, metadata, blocks);
    content.metadata_json = boost::json::serialize(metadata);
    const Status written = kv_store::write_kv_file(file(), content, *pool, blocks);
    ASSERT_TRUE(written.ok()) << written.error().message;
  }

  // Expects `llm` to load the tokens of `sequence`, and both to go on.
  void expect_goes_on(LLM& llm, Sequence& sequence) const {
    Sequence loaded = llm.load_sequence(file()).value();
    EXPECT_EQ(stat(llm, "tokens_computed"), 0);
    EXPECT_EQ(loaded.tokens(), sequence.tokens());
    EXPECT_EQ(loaded.grade(), ReuseGrade::kExact);
    EXPECT_EQ(stat(llm, "blocks_in_use"),
              std::ssize(loaded.blocks()->block_ids()) - lost_blocks(loaded));
    expect_same_kv(loaded, sequence);
    const std::string again = folder_ / "again.qkv";
    ASSERT_TRUE(loaded.save(again).ok());
    EXPECT_EQ(bytes_of(again), bytes_of(file()));
    EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
    EXPECT_EQ(loaded.generate(seeded(64))->token_ids, sequence.generate(seeded(64))->token_ids);
    expect_same_kv(loaded, sequence);
  }

  static void expect_same_kv(const Sequence& loaded, const Sequence& sequence) {
    EXPECT_EQ(lost_blocks(loaded), lost_blocks(sequence));
    if (!on_gpu()) {
      EXPECT_EQ(kv_rows(loaded, 0, 500), kv_rows(sequence, 0, 500));
    }
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(LostBlocks, SavedAndLoadedASequenceGoesOnAsOneThatNeverStopped) {
  for (const std::string& model : {mistral, phi3}) {
    for (const std::int32_t block_tokens : {1, 3, 8, 32}) {
      for (const std::size_t tokens : {17, 40, 79, 80, 81, 82, 145}) {
        SCOPED_TRACE(testing::Message() << model << " " << block_tokens << " " << tokens);
        LLM llm = open(model, block_tokens);
        Sequence sequence = llm.sequence(prompt(tokens)).value();
        ASSERT_TRUE(sequence.generate(seeded(5)).ok());
        ASSERT_TRUE(sequence.save(file()).ok());
        LLM other = open(model, block_tokens, tokens % 2 == 0);
        expect_goes_on(other, sequence);
        EXPECT_EQ(stat(other, "blocks_in_use"), 0);
      }
    }
  }
}

TEST_F(LostBlocks, AFileHasTheKvOfTheWindowAlone) {
  save(mistral, 60);
  const auto short_file = bytes_of(file()).size();
  save(mistral, 460);
  EXPECT_EQ(bytes_of(file())[8], 2) << "an older build refuses it by its version";
  EXPECT_EQ(bytes_of(file()).size(), short_file);
  const auto opened = kv_store::KVFile::open(file()).value();
  EXPECT_EQ(opened.content().runs[0].lost_blocks, (459 - 16 + 1) / 8);
  save(mistral, 16);
  EXPECT_EQ(bytes_of(file())[8], 1) << "what has lost nothing is a file as ever";
  save(alternating, 300);
  EXPECT_EQ(bytes_of(file())[8], on_gpu() ? 1 : 6) << "a layer sees all of it, others do not";
}

TEST_F(LostBlocks, APoolOfTheWindowsSizeHasRoomForALoadedSequence) {
  save(mistral, 400);
  const std::int64_t block_bytes = static_cast<std::int64_t>(stat(open(mistral), "block_bytes"));
  LLM llm = LLM::open(mistral,
                      here({.block_tokens = 8, .kv_budget_bytes = 5 * block_bytes, .threads = 1}))
                .value();
  Sequence loaded = llm.load_sequence(file()).value();
  LLM whole = open(mistral);
  EXPECT_EQ(loaded.generate(seeded(64))->token_ids,
            whole.generate(prompt(400), seeded(64))->token_ids);
}

TEST_F(LostBlocks, ForksAndRollbacksOfALoadedSequenceAreThoseOfTheSaved) {
  LLM llm = open(mistral);
  Sequence sequence = llm.sequence(prompt(90)).value();
  ASSERT_TRUE(sequence.generate(seeded(20)).ok());
  ASSERT_TRUE(sequence.save(file()).ok());
  LLM other = open(mistral);
  {
    Sequence loaded = other.load_sequence(file()).value();
    const Mark mark = loaded.checkpoint().value();
    for (const std::int64_t length : {109, 104, 93, 40, 7, 1}) {
      Sequence fork = loaded.fork().value();
      Sequence same = sequence.fork().value();
      ASSERT_TRUE(fork.rollback_to(length).ok()) << length;
      ASSERT_TRUE(same.rollback_to(length).ok()) << length;
      EXPECT_EQ(fork.logits().value(), same.logits().value()) << length;
      EXPECT_EQ(fork.generate(seeded(30))->token_ids, same.generate(seeded(30))->token_ids);
    }
    const Ids next = loaded.generate(seeded(40))->token_ids;
    ASSERT_TRUE(loaded.rollback(mark).ok());
    EXPECT_EQ(loaded.generate(seeded(40))->token_ids, next);
    EXPECT_EQ(sequence.generate(seeded(40))->token_ids, next);
    ASSERT_TRUE(loaded.replace(100, 103, prompt(5, 9)).ok());
    ASSERT_TRUE(sequence.replace(100, 103, prompt(5, 9)).ok());
    EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
    // Its lost KV is computed again, and then moves.
    ASSERT_TRUE(loaded.replace(3, 5, {}, {}, EditMode::kApproximate).ok());
    ASSERT_TRUE(sequence.replace(3, 5, {}, {}, EditMode::kApproximate).ok());
    EXPECT_EQ(loaded.grade(), ReuseGrade::kApproximate);
    EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
  }
  EXPECT_EQ(stat(other, "blocks_in_use"), 0);
}

TEST_F(LostBlocks, NoPromptFindsKvThatALostBeginningStandsBefore) {
  LLM llm = open(mistral);
  const Ids ids = prompt(90);
  ASSERT_TRUE(llm.sequence(ids).value().save(file()).ok());
  LLM other = open(mistral);
  Sequence loaded = other.load_sequence(file()).value();
  for (const std::int32_t more : {1, 9}) {
    ASSERT_TRUE(loaded.generate(seeded(more)).ok());
    const Ids all = loaded.tokens();
    // Also one that begins with the first block that is there.
    for (std::ptrdiff_t first = 0; first < std::ssize(all) - 8; first += 8) {
      const Ids rest(all.begin() + first, all.end());
      const GenerationOutput warm = other.generate(rest, seeded(8)).value();
      EXPECT_EQ(warm.usage.cached_tokens, 0) << first;
      EXPECT_EQ(warm.token_ids, llm.generate(rest, seeded(8))->token_ids) << first;
      ASSERT_TRUE(other.clear_prefix_cache().ok());  // but for what `loaded` holds
    }
  }
  ASSERT_TRUE(other.generate(ids, seeded(1)).ok());
  const Sequence again = other.load_sequence(file()).value();
  EXPECT_EQ(again.tokens(), ids);
  EXPECT_GT(other.generate(ids, seeded(1))->usage.cached_tokens, 0);
}

TEST_F(LostBlocks, BehindSeveralRunsTheOwnOneKeepsAllAndIsSavedWhole) {
  LLM llm = open(mistral);
  const Sequence first = llm.sequence(prompt(9, 2)).value();
  const Sequence second = llm.sequence(prompt(12, 3)).value();
  const std::vector<BlockList> lists = {first.blocks().value(), second.blocks().value()};
  Sequence sequence = llm.sequence(BlockList::join(lists).value(), prompt(60, 4)).value();
  ASSERT_EQ(lost_blocks(sequence), 0) << "compositions keep KV behind the window";
  ASSERT_TRUE(sequence.save(file()).ok());
  LLM other = open(mistral);
  {
    Sequence loaded = other.load_sequence(file()).value();
    EXPECT_EQ(loaded.grade(), ReuseGrade::kApproximate);
    EXPECT_EQ(loaded.tokens(), sequence.tokens());
    EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
    EXPECT_EQ(loaded.generate(seeded(64))->token_ids, sequence.generate(seeded(64))->token_ids);
    ASSERT_TRUE(sequence.rollback_to(40).ok());
    ASSERT_TRUE(loaded.rollback_to(40).ok());
    EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
  }
  EXPECT_EQ(stat(other, "blocks_in_use"), 0);
}

TEST_F(LostBlocks, KvOfOtherKernelsIsGradedAndSharedWithNobody) {
  save(mistral, 90);
  rewrite([](auto&, boost::json::object& metadata, auto&) { metadata["kernels"] = "others"; });
  LLM llm = open(mistral);
  LLM cold = open(mistral);
  const Ids ids = prompt(90);
  ASSERT_TRUE(llm.generate(ids, seeded(1)).ok());  // all of it is cached
  {
    Sequence loaded = llm.load_sequence(file()).value();
    EXPECT_EQ(loaded.grade(), ReuseGrade::kEqualMath);
    const std::string again = folder_ / "again.qkv";
    ASSERT_TRUE(loaded.save(again).ok());
    EXPECT_EQ(llm.load_sequence(again)->grade(), ReuseGrade::kEqualMath);
    EXPECT_EQ(loaded.rollback_to(50).error().code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(llm.clear_prefix_cache().ok());
    EXPECT_EQ(loaded.generate(seeded(64))->token_ids, cold.generate(ids, seeded(64))->token_ids);
    EXPECT_EQ(llm.generate(loaded.tokens(), seeded(1))->usage.cached_tokens, 0);
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
}

// A loaded sequence gives up what the window has passed, and has a look at it all the same.
TEST_F(LostBlocks, KvThatTheWindowHasPassedIsVerifiedToo) {
  save(mistral, 90);
  rewrite([](auto& content, auto&, auto& blocks) {
    --content.runs[0].lost_blocks;
    blocks[0].insert(blocks[0].begin(), blocks[0].back());
  });
  LLM llm = open(mistral);
  ASSERT_TRUE(llm.load_sequence(file()).ok());
  const auto payload = kv_store::KVFile::open(file())->payload_bytes();
  const auto size = std::filesystem::file_size(file());
  for (std::int64_t step = 0; step < 64; ++step) {
    const auto at = size - static_cast<std::uintmax_t>(payload * (64 - step) / 64);
    flip_bit(file(), at);
    const auto refused = llm.load_sequence(file(), {.wait = false});  // which a window makes wait
    flip_bit(file(), at);
    ASSERT_FALSE(refused.ok()) << at;
    EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  }
}

TEST_F(LostBlocks, AStrangersFileThatHasLostWhatIsNeededIsRefused) {
  LLM llm = open(mistral);
  const auto refused = [&](const char* why, std::size_t tokens, const Edit& edit) {
    save(mistral, tokens);
    rewrite(edit);
    const auto loaded = llm.load_sequence(file());
    ASSERT_FALSE(loaded.ok()) << why;
    EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt) << why;
    EXPECT_THAT(loaded.error().message, HasSubstr(why));
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0) << why;
  };
  refused("has lost its first 10 blocks", 90, [](auto& content, auto&, auto& blocks) {
    ++content.runs[0].lost_blocks;
    blocks[0].erase(blocks[0].begin());
  });
  refused("only the last run", 90, [](auto& content, boost::json::object& metadata, auto&) {
    // Compilers disagree on what a list of one list is.
    metadata["ranks"] = boost::json::parse("[[0, 0]]");
    metadata["stored_from"] = boost::json::parse("[0]");
    metadata["own_position"] = content.runs[0].tokens.size();
  });
  // The KV of the last token would have to be given up, before which the window sees more.
  for (std::size_t tokens = 82; tokens < 90; ++tokens) {
    refused("tail", tokens, [&](auto&, boost::json::object& metadata, auto&) {
      metadata["tail"] = boost::json::array{};
    });
  }
}

TEST_F(LostBlocks, CheckpointsFollowTheWindowAndAnotherLlmGoesOn) {
  const std::string store = folder_ / "store";
  LLM llm = open(mistral);
  Sequence sequence = llm.sequence(prompt(10)).value();
  CheckpointManager manager = CheckpointManager::open(llm, store, {.keep = 2}).value();
  for (int turn = 0; turn < 12; ++turn) {
    ASSERT_TRUE(sequence.generate(seeded(23)).ok());
    Sequence fork = sequence.fork().value();
    ASSERT_TRUE(fork.append(prompt(5, 8)).ok());
    const std::vector<NamedSequence> both = {{"main", &sequence}, {"fork", &fork}};
    ASSERT_TRUE(manager.save(both).ok());
    for (const bool wait : {true, false}) {
      LLM other = open(mistral);
      auto loaded = CheckpointManager::open(other, store)->load("", {}, {.wait = wait}).value();
      EXPECT_EQ(stat(other, "tokens_computed"), 0);
      EXPECT_EQ(loaded[0].sequence.tokens(), sequence.tokens());
      EXPECT_EQ(lost_blocks(loaded[0].sequence), lost_blocks(sequence));
      EXPECT_EQ(loaded[0].sequence.logits().value(), sequence.logits().value());
      EXPECT_EQ(loaded[0].sequence.generate(seeded(64))->token_ids,
                sequence.fork()->generate(seeded(64))->token_ids);
      EXPECT_EQ(loaded[1].sequence.generate(seeded(9))->token_ids,
                fork.fork()->generate(seeded(9))->token_ids);
      loaded.clear();
      EXPECT_EQ(stat(other, "blocks_in_use"), 0);
    }
  }
  ASSERT_TRUE(manager.compact(manager.list()->front().name).ok());
  // By way of a file, into another store.
  const std::string entry = manager.list()->front().name, moved = folder_ / "moved.qke";
  ASSERT_TRUE(Store::open(store)->export_entry(entry, moved).ok());
  const std::string elsewhere = folder_ / "elsewhere";
  ASSERT_TRUE(Store::open(elsewhere, {.create = true})->import_entry(moved).ok());
  for (const StoreObject& object : Store::open(elsewhere)->verify().value()) {
    EXPECT_EQ(object.state, "ok") << object.message;
  }
  LLM other = open(mistral);
  auto loaded = CheckpointManager::open(other, elsewhere)->load(entry).value();
  EXPECT_EQ(loaded[0].sequence.generate(seeded(64))->token_ids,
            sequence.generate(seeded(64))->token_ids);
}

// A model of which some layers have a window: blocks lose their window parts alone. The oracle is
// the sequence that never stopped, or a cold run.
class LostParts : public LostBlocks {
 protected:
  void SetUp() override {
    if (on_gpu()) {
      GTEST_SKIP() << "blocks have no parts there";
    }
  }
  [[nodiscard]] static std::vector<float> cold(const Ids& ids) {
    LLM llm = open(alternating);
    return llm.sequence(ids)->logits().value();
  }
  [[nodiscard]] kv_store::KVFile saved() const { return kv_store::KVFile::open(file()).value(); }
};

TEST_F(LostParts, AreNeitherSavedNorComputedAgainAndALoadedSequenceGoesOn) {
  for (const std::size_t tokens : {20U, 60U, 90U, 151U}) {
    LLM llm = open(alternating);
    Sequence sequence = llm.sequence(prompt(tokens)).value();
    const double computed = stat(llm, "tokens_computed");
    ASSERT_TRUE(sequence.save(file()).ok());
    EXPECT_EQ(stat(llm, "tokens_computed"), computed);
    EXPECT_EQ(saved().content().runs[0].lost_parts > 0, tokens > 50);
    for (const bool wait : {true, false}) {
      LLM other = open(alternating);
      {
        Sequence loaded = other.load_sequence(file(), {.wait = wait}).value();
        EXPECT_EQ(stat(other, "tokens_computed"), 0);
        EXPECT_EQ(loaded.tokens(), sequence.tokens());
        EXPECT_EQ(loaded.grade(), ReuseGrade::kExact);
        EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
        const std::string again = folder_ / "again.qkv";
        ASSERT_TRUE(loaded.save(again).ok());
        EXPECT_EQ(bytes_of(again), bytes_of(file()));
        EXPECT_EQ(loaded.generate(seeded(64))->token_ids,
                  sequence.fork()->generate(seeded(64))->token_ids);
        if (tokens > 50) {
          EXPECT_GT(other.generate(prompt(tokens), seeded(1))->usage.cached_tokens, 0);
        }
      }
      EXPECT_EQ(stat(other, "blocks_in_use"), 0);
    }
  }
}

TEST_F(LostParts, OfALoadedSequenceAreComputedAgainWhereItIsRolledBack) {
  save(alternating, 90);
  LLM llm = open(alternating);
  Sequence loaded = llm.load_sequence(file()).value();
  for (std::int64_t length = 89; length > 0; length -= 8) {
    Sequence fork = loaded.fork().value();
    ASSERT_TRUE(fork.rollback_to(length).ok()) << length;
    ASSERT_TRUE(fork.append(prompt(3, 9)).ok());
    EXPECT_EQ(fork.logits().value(), cold(fork.tokens())) << length;
  }
}

TEST_F(LostParts, AreNotReadIntoAPoolWithoutRoomForThem) {
  save(alternating, 300);  // 38 blocks
  const auto block_bytes = static_cast<std::int64_t>(stat(open(alternating), "block_bytes"));
  LLM llm =
      LLM::open(alternating, {.block_tokens = 8, .kv_budget_bytes = 30 * block_bytes, .threads = 1})
          .value();
  Sequence loaded = llm.load_sequence(file()).value();
  EXPECT_EQ(stat(llm, "tokens_computed"), 0);
  EXPECT_EQ(loaded.generate(seeded(20))->token_ids,
            open(alternating).generate(prompt(300), seeded(20))->token_ids);
}

// Oracle: the sequence that never stopped. Each checkpoint names whole blocks of earlier ones.
TEST_F(LostParts, AreLeftOutOfCheckpointsToo) {
  const std::string store = folder_ / "store";
  const auto block_bytes = static_cast<std::int64_t>(stat(open(alternating), "block_bytes"));
  LLM llm = open(alternating);
  Sequence sequence = llm.sequence(prompt(10)).value();
  CheckpointManager manager = CheckpointManager::open(llm, store, {.keep = 2}).value();
  for (int turn = 0; turn < 10; ++turn) {
    ASSERT_TRUE(sequence.generate(seeded(23)).ok());
    Sequence fork = sequence.fork().value();
    ASSERT_TRUE(fork.append(prompt(5, 8)).ok());
    const std::vector<NamedSequence> both = {{"main", &sequence}, {"fork", &fork}};
    const double computed = stat(llm, "tokens_computed");
    ASSERT_TRUE(manager.save(both).ok());
    EXPECT_EQ(stat(llm, "tokens_computed"), computed) << "what has gone is not computed again";
    for (const bool wait : {true, false}) {
      LLM other = LLM::open(alternating, {.block_tokens = 8,
                                          .kv_budget_bytes = (wait ? 30 : 80) * block_bytes,
                                          .threads = 1})
                      .value();
      auto loaded = CheckpointManager::open(other, store)->load("", {}, {.wait = wait}).value();
      EXPECT_EQ(stat(other, "tokens_computed"), 0);
      EXPECT_EQ(loaded[0].sequence.logits().value(), sequence.logits().value());
      EXPECT_EQ(loaded[1].sequence.logits().value(), fork.logits().value());
      EXPECT_EQ(loaded[0].sequence.generate(seeded(20))->token_ids,
                sequence.fork()->generate(seeded(20))->token_ids);
      loaded.clear();
      EXPECT_EQ(stat(other, "blocks_in_use"), 0);
    }
  }
  ASSERT_TRUE(manager.compact(manager.list()->front().name).ok());
  LLM other = open(alternating);
  auto loaded = CheckpointManager::open(other, store)->load().value();
  EXPECT_EQ(loaded[0].sequence.logits().value(), sequence.logits().value());
}

TEST_F(LostParts, AreNotMissedBehindWhatIsCached) {
  save(alternating, 151);
  for (const std::size_t known : {30U, 70U, 120U, 151U}) {
    LLM llm = open(alternating);
    ASSERT_TRUE(llm.generate(prompt(known), seeded(1)).ok());
    const double computed = stat(llm, "tokens_computed");
    Sequence loaded = llm.load_sequence(file()).value();
    EXPECT_EQ(stat(llm, "tokens_computed"), computed);
    EXPECT_EQ(loaded.logits().value(), cold(prompt(151))) << known;
  }
}

TEST_F(LostParts, OfOtherKernelsMakeTheSequenceBeComputedAgain) {
  save(alternating, 90);
  rewrite([](auto&, boost::json::object& metadata, auto&) { metadata["kernels"] = "others"; });
  LLM llm = open(alternating);
  for (const bool wait : {false, true}) {
    Sequence loaded = llm.load_sequence(file(), {.wait = wait}).value();
    EXPECT_GE(stat(llm, "tokens_computed"), 89);
    EXPECT_EQ(loaded.grade(), ReuseGrade::kExact);
    const std::string again = folder_ / "again.qkv";
    ASSERT_TRUE(loaded.save(again).ok());
    EXPECT_EQ(loaded.logits().value(), cold(prompt(90)));
    EXPECT_EQ(open(alternating).load_sequence(again)->logits().value(), cold(prompt(90)));
  }
  flip_bit(file(), std::filesystem::file_size(file()) - 1);
  EXPECT_EQ(llm.load_sequence(file()).error().code, ErrorCode::kCorrupt);
}

TEST_F(LostParts, LeaveNoDamageUnseen) {
  save(alternating, 90);
  const auto whole = static_cast<std::int64_t>(std::filesystem::file_size(file()));
  for (std::int64_t step = 0; step < 64; ++step) {
    LLM llm = open(alternating);
    const auto at = static_cast<std::uintmax_t>(whole * step / 64);
    flip_bit(file(), at);
    const auto refused = llm.load_sequence(file());
    flip_bit(file(), at);
    ASSERT_FALSE(refused.ok()) << at;
    EXPECT_THAT(refused.error().message, HasSubstr("sequence.qkv")) << at;
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  }
}

TEST_F(LostParts, ThatTheWindowStillSeesAreRefusedByName) {
  LLM llm = open(alternating);
  const auto refused = [&](const char* why, const Edit& edit) {
    save(alternating, 90);
    rewrite(edit);
    const auto loaded = llm.load_sequence(file());
    ASSERT_FALSE(loaded.ok()) << why;
    EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt) << why;
    EXPECT_THAT(loaded.error().message, HasSubstr(why));
    EXPECT_EQ(stat(llm, "blocks_in_use"), 0) << why;
  };
  refused("has lost the window parts of its first 11 blocks",
          [](auto& content, auto&, auto&) { content.runs[0].lost_parts = 11; });
  refused("window parts: only the last run",
          [](auto& content, boost::json::object& metadata, auto&) {
            metadata["ranks"] = boost::json::parse("[[0, 0]]");
            metadata["stored_from"] = boost::json::parse("[0]");
            metadata["own_position"] = content.runs[0].tokens.size();
          });
}

}  // namespace
}  // namespace quire
