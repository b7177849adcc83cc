// Sequences on the demo model; direct inference: direct_inference_test.cc. Oracles: plain prompts
// of the same ids (every bit), the model's golden file, and for random operations a program that
// keeps copies of all ids.
#include "quire/sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;

SamplingParams seeded(std::int32_t max_tokens) {
  return {.repetition_penalty = 1.1,
          .presence_penalty = 0.2,
          .frequency_penalty = 0.1,
          .max_tokens = max_tokens,
          .ignore_eos = true,
          .seed = 7};
}

std::vector<float> cold_logits(LLM& llm, const Ids& ids) {
  return llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast).value().logits;
}

TEST(Sequence, LogitsAndContinuationEqualAPlainPromptBitForBit) {
  LLM llm = open_demo();
  for (const std::size_t length : {1, 2, 31, 32, 33, 64, 100}) {
    const Ids ids = some_ids(length, 3);
    Sequence sequence = llm.sequence(ids).value();
    EXPECT_EQ(sequence.tokens(), ids);
    EXPECT_EQ(sequence.logits().value(), cold_logits(llm, ids)) << length;
    EXPECT_EQ(sequence.generate(greedy_to_length(9)).value().token_ids,
              llm.generate(ids, greedy_to_length(9)).value().token_ids);
  }
}

TEST(Sequence, GoingOnEqualsNeverHavingStopped) {
  LLM llm = open_demo();
  const Ids ids = some_ids(70, 5);
  const Ids whole = llm.generate(ids, seeded(24)).value().token_ids;
  Sequence sequence = llm.sequence(ids).value();
  Ids pieces;
  for (const std::int32_t part : {1, 7, 16}) {
    const GenerationOutput output = sequence.generate(seeded(part)).value();
    EXPECT_EQ(std::ssize(output.token_ids), part);
    pieces = joined(std::move(pieces), output.token_ids);
  }
  EXPECT_EQ(pieces, whole);
  EXPECT_EQ(sequence.tokens(), joined(ids, whole));
}

TEST(Sequence, AStreamIsTheSameAndTheSequenceGrowsByIt) {
  LLM llm = open_demo();
  const Ids ids = some_ids(40, 6);
  Sequence sequence = llm.sequence(ids).value();
  Sequence other = sequence.fork().value();
  const GenerationOutput whole = other.generate(seeded(12)).value();
  std::string text;
  Ids streamed;
  {
    Stream stream = sequence.stream(seeded(12)).value();
    while (const auto delta = stream.next().value()) {
      text += delta->text;
      streamed = joined(std::move(streamed), delta->token_ids);
    }
  }
  EXPECT_EQ(text, whole.text);
  EXPECT_EQ(streamed, whole.token_ids);
  EXPECT_EQ(sequence.tokens(), other.tokens());
}

TEST(Sequence, AStreamClosedBeforeItsEndLeavesTheSequence) {
  LLM llm = open_demo();
  Sequence sequence = llm.sequence(some_ids(40, 6)).value();
  const Ids before = sequence.tokens();
  {
    const SamplingParams endless{.temperature = 0, .max_tokens = 2000, .ignore_eos = true};
    Stream stream = sequence.stream(endless).value();
    EXPECT_THAT(sequence.append(Ids{20}).error().message, HasSubstr("busy"));
    EXPECT_TRUE(stream.next().ok());
  }
  EXPECT_EQ(sequence.tokens(), before);
  EXPECT_TRUE(sequence.append(Ids{20}).ok());
}

TEST(Sequence, ForksShareBlocksAndGoTheirOwnWays) {
  LLM llm = open_demo({.prefix_cache = false});
  const Ids ids = some_ids(97, 8);
  Sequence sequence = llm.sequence(ids).value();
  const double before = stat(llm, "blocks_in_use");
  Sequence fork = sequence.fork().value();
  EXPECT_EQ(stat(llm, "blocks_in_use"), before);
  ASSERT_TRUE(fork.append(some_ids(5, 9)).ok());
  EXPECT_EQ(stat(llm, "blocks_in_use"), before + 1) << "the part block was not copied alone";
  EXPECT_EQ(fork.logits().value(), cold_logits(llm, fork.tokens()));
  EXPECT_EQ(sequence.logits().value(), cold_logits(llm, ids));
  const SequenceDiff diff = sequence.diff(fork).value();
  EXPECT_EQ(diff.common_tokens, 97);
  EXPECT_THAT(diff.left, IsEmpty());
  EXPECT_EQ(diff.right, some_ids(5, 9));
  EXPECT_EQ(diff.shared_blocks, 3);
  fork.close();
  sequence.close();
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(fork.append(Ids{20}).error().code, ErrorCode::kClosed);
}

TEST(Sequence, RolledBackNeverHappened) {
  LLM llm = open_demo();
  const Ids ids = some_ids(75, 10);
  Sequence sequence = llm.sequence(ids).value();
  const Ids head = sequence.generate(seeded(6)).value().token_ids;
  const Mark mark = sequence.checkpoint().value();
  const Ids tail = sequence.generate(seeded(9)).value().token_ids;
  const Mark later = sequence.checkpoint().value();
  ASSERT_TRUE(sequence.rollback(mark).ok());
  EXPECT_EQ(sequence.tokens(), joined(ids, head));
  EXPECT_EQ(sequence.rollback(later).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(sequence.generate(seeded(9)).value().token_ids, tail);
  ASSERT_TRUE(sequence.rollback(mark).ok());
  ASSERT_TRUE(sequence.commit(mark).ok());
  EXPECT_EQ(sequence.rollback(mark).error().code, ErrorCode::kInvalidArgument);
  for (const std::int64_t length : {78, 75, 64, 33, 1}) {
    ASSERT_TRUE(sequence.rollback_to(length).ok());
    EXPECT_EQ(sequence.logits().value(), cold_logits(llm, sequence.tokens())) << length;
  }
  ASSERT_TRUE(sequence.rollback_to(0).ok());
  EXPECT_THAT(sequence.generate().error().message, HasSubstr("empty"));
  EXPECT_THAT(sequence.rollback_to(1).error().message, HasSubstr("has 0"));
}

TEST(Sequence, AMarkOfAnotherLLMIsNone) {
  LLM llm = open_demo();
  LLM other = open_demo();
  Sequence sequence = llm.sequence(some_ids(8, 3)).value();
  Sequence foreign = other.sequence(some_ids(8, 3)).value();
  const Mark own = sequence.checkpoint().value();
  const Mark theirs = foreign.checkpoint().value();
  ASSERT_EQ(own.value, theirs.value);
  EXPECT_THAT(sequence.rollback(theirs).error().message, HasSubstr("another sequence"));
  EXPECT_THAT(sequence.commit(theirs).error().message, HasSubstr("another sequence"));
  EXPECT_EQ(sequence.rollback(Mark{}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(sequence.rollback(own).ok());
}

// Tokens that a window of 16 has freed are computed again; the sampler stands where it stood.
TEST(Sequence, RolledBackBehindItsWindowItGoesOnAsBefore) {
  LLM llm = LLM::open(source_path("tests/golden/model/mistral_window"),
                      here({.block_tokens = 8, .threads = 1, .prefix_cache = false}))
                .value();
  Ids prompt = some_ids(13, 1);
  for (TokenId& id : prompt) {
    id = 20 + id % 100;
  }
  const SamplingParams params = {
      .temperature = 0.8, .max_tokens = 20, .ignore_eos = true, .seed = 5};
  Sequence sequence = llm.sequence(prompt).value();
  const Ids generated = sequence.generate(params).value().token_ids;
  for (const std::int64_t taken_back : {3, 12}) {
    ASSERT_TRUE(sequence.rollback_to(std::ssize(sequence.tokens()) - taken_back).ok());
    SamplingParams rest = params;
    rest.max_tokens = static_cast<std::int32_t>(taken_back);
    EXPECT_EQ(sequence.generate(rest).value().token_ids,
              Ids(generated.end() - taken_back, generated.end()));
  }
}

// Lengths around those at which the window, of 16, lets go of a block.
TEST(Sequence, GeneratingNothingChangesNothingWhateverItsWindowHasFreed) {
  LLM llm = LLM::open(source_path("tests/golden/model/mistral_window"),
                      here({.block_tokens = 8, .threads = 1}))
                .value();
  for (std::size_t length = 14; length <= 50; ++length) {
    const Ids ids(length, 20);
    Sequence sequence = llm.sequence(ids).value();
    EXPECT_THAT(sequence.generate(greedy_to_length(0)).value().token_ids, IsEmpty()) << length;
    EXPECT_EQ(sequence.tokens(), ids);
    EXPECT_EQ(sequence.logits().value(), cold_logits(llm, ids)) << length;
  }
}

TEST(Sequence, BlocksThatTheWindowHasFreedAreSharedWithNobody) {
  LLM llm = LLM::open(source_path("tests/golden/model/mistral_window"),
                      here({.block_tokens = 8, .threads = 1, .prefix_cache = false}))
                .value();
  const auto of = [&](TokenId id) { return llm.sequence(Ids(60, id)).value(); };
  EXPECT_EQ(of(20).diff(of(21)).value().shared_blocks, 0);
}

TEST(Sequence, AnEditEqualsComputingTheEditedIdsAnew) {
  LLM llm = open_demo();
  const Ids ids = some_ids(90, 11);
  for (const auto& [start, stop, added] :
       std::vector<std::tuple<std::int64_t, std::int64_t, std::size_t>>{{40, 45, 5},
                                                                        {40, 40, 3},
                                                                        {0, 10, 0},
                                                                        {89, 90, 1},
                                                                        {90, 90, 4},
                                                                        {64, 90, 0},
                                                                        {0, 90, 2}}) {
    Sequence sequence = llm.sequence(ids).value();
    const Ids middle = some_ids(added, 99);
    Ids expected(ids.begin(), ids.begin() + start);
    expected = joined(joined(expected, middle), Ids(ids.begin() + stop, ids.end()));
    const double computed = stat(llm, "tokens_computed");
    ASSERT_TRUE(sequence.replace(start, stop, middle).ok());
    EXPECT_LE(stat(llm, "tokens_computed") - computed, expected.size() - start);
    EXPECT_EQ(sequence.tokens(), expected);
    EXPECT_EQ(sequence.logits().value(), cold_logits(llm, expected));
  }
  Sequence sequence = llm.sequence(ids).value();
  EXPECT_THAT(sequence.replace(5, 91, {}).error().message, HasSubstr("has 90"));
  EXPECT_THAT(sequence.replace(5, 6, Ids{1 << 30}).error().message, HasSubstr("vocabulary"));
  EXPECT_EQ(sequence.tokens(), ids);
}

TEST(Sequence, ErrorsLeaveItAsItWas) {
  LLM llm = open_demo({.kv_budget_bytes = 512 << 10, .prefix_cache = false});
  const double total = stat(llm, "blocks_total");
  const auto all = static_cast<std::size_t>(total) * 32;
  Sequence sequence = llm.sequence(some_ids(all / 2, 12)).value();
  const Ids before = sequence.tokens();
  const auto logits = sequence.logits().value();
  EXPECT_FALSE(sequence.append(some_ids(all, 13)).ok());
  EXPECT_EQ(sequence.tokens(), before);
  EXPECT_EQ(sequence.logits().value(), logits);
  EXPECT_FALSE(sequence.generate({.top_p = 3}).ok());
  EXPECT_EQ(sequence.tokens(), before);
  EXPECT_EQ(sequence.logits().value(), logits);
  sequence.close();
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
}

TEST(Sequence, AnInterruptedCallLeavesIt) {
  LLM llm = open_demo({.kv_budget_bytes = 256 << 20});
  Sequence sequence = llm.sequence(some_ids(40, 12)).value();
  const Status cancelled = sequence.append(some_ids(1900, 13), [] { return true; });
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(sequence.tokens(), some_ids(40, 12));
  EXPECT_EQ(stat(llm, "requests_running"), 0);
  EXPECT_TRUE(sequence.append(Ids{20}).ok());
}

TEST(Sequence, BehindACompositionItKeepsTheChunksAndTheirGrade) {
  ChunkedLLM llm = open_chunked();
  const std::string system =
      llm.register_chunk({.content = some_ids(20, 1), .type = ChunkType::kSystemPrompt}).value();
  const std::string first = llm.register_chunk({.content = some_ids(45, 2)}).value();
  const std::string second = llm.register_chunk({.content = some_ids(33, 3)}).value();
  const std::string query =
      llm.register_chunk({.content = some_ids(7, 4), .type = ChunkType::kQuery}).value();
  const CompositionSpec spec{
      .system_chunk_id = system, .context_chunk_ids = {first, second}, .query_chunk_id = query};
  const Ids whole = llm.generate_from_chunks(spec, seeded(12)).value().token_ids;
  Sequence sequence = llm.sequence(spec).value();
  EXPECT_EQ(sequence.grade(), ReuseGrade::kApproximate);
  EXPECT_EQ(sequence.num_tokens(), 105);
  const Mark mark = sequence.checkpoint().value();
  const Ids head = sequence.generate(seeded(5)).value().token_ids;
  EXPECT_EQ(joined(head, sequence.generate(seeded(7)).value().token_ids), whole);
  ASSERT_TRUE(sequence.rollback(mark).ok());
  EXPECT_EQ(sequence.generate(seeded(12)).value().token_ids, whole);
  // Into the second chunk: what stands there still, as it was.
  ASSERT_TRUE(sequence.rollback_to(80).ok());
  EXPECT_EQ(sequence.grade(), ReuseGrade::kApproximate);
  EXPECT_EQ(sequence.num_tokens(), 80);
  ASSERT_TRUE(sequence.append(some_ids(3, 5)).ok());
  EXPECT_TRUE(sequence.generate(greedy_to_length(3)).ok());
  // An edit within chunks is exact, so it makes a plain sequence.
  ASSERT_TRUE(sequence.replace(10, 12, some_ids(4, 6)).ok());
  EXPECT_EQ(sequence.grade(), ReuseGrade::kExact);
  EXPECT_EQ(sequence.logits().value(), cold_logits(llm.llm(), sequence.tokens()));
}

TEST(Sequence, SavedAndLoadedItGoesOnAsIfNothingHadHappened) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  const Ids ids = some_ids(75, 60);
  Ids next;
  {
    LLM llm = open_demo();
    Sequence sequence = llm.sequence(ids).value();
    ASSERT_TRUE(sequence.generate(seeded(5)).ok());
    ASSERT_TRUE(sequence.save(file).ok());
    next = sequence.generate(seeded(64)).value().token_ids;
  }
  LLM llm = open_demo();
  for (const bool cached : {false, true}) {  // with nothing known, and with the prefix cached
    const double computed = stat(llm, "tokens_computed");
    Sequence sequence = llm.load_sequence(file).value();
    EXPECT_EQ(stat(llm, "tokens_computed"), computed) << cached;
    EXPECT_EQ(sequence.num_tokens(), 80);
    EXPECT_EQ(sequence.grade(), ReuseGrade::kExact);
    EXPECT_EQ(sequence.logits().value(), cold_logits(llm, sequence.tokens()));
    EXPECT_EQ(sequence.generate(seeded(64)).value().token_ids, next);
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
}

TEST(Sequence, SavedBehindACompositionItKeepsItsChunks) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  ChunkedLLM llm = open_chunked();
  const CompositionSpec spec{
      .system_chunk_id =
          llm.register_chunk({.content = some_ids(20, 1), .type = ChunkType::kSystemPrompt})
              .value(),
      .context_chunk_ids = {llm.register_chunk({.content = some_ids(45, 2)}).value(),
                            llm.register_chunk({.content = some_ids(33, 3)}).value()},
      .query_chunk_id =
          llm.register_chunk({.content = some_ids(7, 4), .type = ChunkType::kQuery}).value()};
  Sequence sequence = llm.sequence(spec).value();
  ASSERT_TRUE(sequence.save(file).ok());
  LLM other = open_demo();
  Sequence loaded = other.load_sequence(file).value();
  EXPECT_EQ(loaded.tokens(), sequence.tokens());
  EXPECT_EQ(loaded.grade(), ReuseGrade::kApproximate);
  EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
  EXPECT_EQ(loaded.generate(greedy_to_length(20)).value().token_ids,
            sequence.generate(greedy_to_length(20)).value().token_ids);
}

// Loaded, the two uses of the chunk have blocks of their own, which may not decide how they merge.
TEST(Sequence, SavedBehindAChunkThatStandsTwiceItKeepsItsBits) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  ChunkedLLM llm = open_chunked();
  const std::string card =
      llm.register_chunk({.content = some_ids(45, 2), .options = {.anchor = ""}}).value();
  const CompositionSpec spec{
      .without_system = true,
      .context_chunk_ids = {card, card},
      .query_chunk_id =
          llm.register_chunk({.content = some_ids(7, 4), .type = ChunkType::kQuery}).value()};
  for (const std::int64_t length : {97, 80, 70, 60, 50}) {  // a part of the second one
    Sequence sequence = llm.sequence(spec).value();
    ASSERT_TRUE(sequence.rollback_to(length).ok());
    ASSERT_TRUE(sequence.save(file).ok());
    LLM other = open_demo();
    EXPECT_EQ(other.load_sequence(file).value().logits().value(), sequence.logits().value())
        << length;
  }
}

TEST(Sequence, AFileOfAnotherModelOrFormatIsRefusedWithTheReason) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  LLM llm = open_demo();
  ASSERT_TRUE(llm.sequence(some_ids(40, 61)).value().save(file).ok());
  LLM other = LLM::open(kModel, {.dtype = "float32", .threads = 2}).value();
  const auto refused = other.load_sequence(file);
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible) << refused.error().message;
  LLM blocks = open_demo({.block_tokens = 16});
  EXPECT_THAT(blocks.load_sequence(file).error().message, HasSubstr("16"));
  EXPECT_EQ(llm.load_sequence(file + "x").error().code, ErrorCode::kIo);
  EXPECT_EQ(stat(other, "blocks_in_use"), 0);
  EXPECT_EQ(llm.sequence(some_ids(4, 1)).value().save("/no/such/folder/file").error().code,
            ErrorCode::kIo);
}

// A sequence whose KV is in memory needs no file, but a caller who keeps a damaged one is told.
TEST(Sequence, ADamagedFileIsRefusedThoughItsKvIsInMemory) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  LLM llm = open_demo();
  const Ids ids = some_ids(100, 62);  // three full blocks and a part of one
  std::optional<Sequence> sequence = llm.sequence(ids).value();
  ASSERT_TRUE(sequence->save(file).ok());
  const double computed = stat(llm, "tokens_computed");
  const auto size = std::filesystem::file_size(file);
  // Blocks that the intact file takes.
  const auto taken = [&](const char* where) {
    const double used = stat(llm, "blocks_in_use");
    for (std::uintmax_t at = size / 160; at < size; at += size / 80) {
      flip_bit(file, at);
      const auto refused = llm.load_sequence(file);
      flip_bit(file, at);
      EXPECT_FALSE(refused.ok()) << where << ", byte " << at;
      EXPECT_TRUE(refused.ok() || refused.error().code == ErrorCode::kCorrupt) << where;
      EXPECT_EQ(stat(llm, "blocks_in_use"), used) << where;
    }
    const Sequence loaded = llm.load_sequence(file).value();
    EXPECT_EQ(loaded.tokens(), ids) << where;
    EXPECT_EQ(stat(llm, "tokens_computed"), computed) << where;
    return stat(llm, "blocks_in_use") - used;
  };
  EXPECT_EQ(taken("alive"), 1) << "that of the part: full blocks are shared";
  sequence.reset();
  EXPECT_EQ(taken("in the prefix cache"), 4);
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  EXPECT_EQ(taken("nowhere"), 4);
}

// State that a user of the operations keeps in mind: nothing but ids.
struct Copies {
  Ids ids;
  std::vector<std::pair<Mark, Ids>> marks;
};

TEST(Sequence, RandomOperationsEqualAProgramThatCopiesEverything) {
  LLM llm = open_demo({.kv_budget_bytes = 8 << 20});
  std::mt19937 random(20261121);
  const auto below = [&](std::size_t n) { return static_cast<std::int64_t>(random() % n); };
  {
    std::vector<std::pair<Sequence, Copies>> all;
    all.emplace_back(llm.sequence(some_ids(20, 1)).value(), Copies{.ids = some_ids(20, 1)});
    for (int step = 0; step < 1500; ++step) {
      auto& [sequence, copies] = all[static_cast<std::size_t>(below(all.size()))];
      const auto length = std::ssize(copies.ids);
      switch (below(9)) {
        case 0: {
          const Ids more = some_ids(static_cast<std::size_t>(below(12)), random());
          if (length < 150) {
            ASSERT_TRUE(sequence.append(more).ok());
            copies.ids = joined(copies.ids, more);
          }
          break;
        }
        case 1:
          if (length > 0 && length < 150) {
            const auto output = sequence.generate(seeded(static_cast<int>(below(4)))).value();
            copies.ids = joined(copies.ids, output.token_ids);
          }
          break;
        case 2:
          copies.marks.emplace_back(sequence.checkpoint().value(), copies.ids);
          break;
        case 3:
          if (!copies.marks.empty()) {
            const auto chosen = static_cast<std::size_t>(below(copies.marks.size()));
            ASSERT_TRUE(sequence.rollback(copies.marks[chosen].first).ok());
            copies.ids = copies.marks[chosen].second;
            copies.marks.resize(chosen + 1);
          }
          break;
        case 4:
          if (!copies.marks.empty()) {
            const auto chosen = static_cast<std::size_t>(below(copies.marks.size()));
            ASSERT_TRUE(sequence.commit(copies.marks[chosen].first).ok());
            copies.marks.resize(chosen);
          }
          break;
        case 5: {
          const std::int64_t to = below(static_cast<std::size_t>(length) + 1);
          ASSERT_TRUE(sequence.rollback_to(to).ok());
          copies.ids.resize(static_cast<std::size_t>(to));
          break;
        }
        case 6: {
          const std::int64_t start = below(static_cast<std::size_t>(length) + 1);
          const std::int64_t stop = std::min<std::int64_t>(length, start + below(5));
          const Ids middle = some_ids(static_cast<std::size_t>(below(4)), random());
          ASSERT_TRUE(sequence.replace(start, stop, middle).ok());
          Ids edited(copies.ids.begin(), copies.ids.begin() + start);
          edited = joined(joined(edited, middle), Ids(copies.ids.begin() + stop, copies.ids.end()));
          copies.ids = edited;
          break;
        }
        case 7:
          if (all.size() < 8) {
            Sequence fork = sequence.fork().value();
            Copies same = copies;
            all.emplace_back(std::move(fork), std::move(same));
          }
          break;
        default:
          if (all.size() > 1) {
            all.erase(all.begin() + below(all.size()));
          }
      }
      for (const auto& [other, its] : all) {
        ASSERT_EQ(other.tokens(), its.ids) << "step " << step;
      }
      auto& [checked, its] = all[static_cast<std::size_t>(below(all.size()))];
      if (step % 10 == 0 && !its.ids.empty()) {
        ASSERT_EQ(checked.logits().value(), cold_logits(llm, its.ids)) << "step " << step;
      }
    }
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
}

TEST(SequenceThreads, ManyForkAndGenerateFromOneSequence) {
  LLM llm = open_demo();
  const Ids ids = some_ids(50, 40);
  Sequence root = llm.sequence(ids).value();
  std::vector<Ids> outputs(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    threads.emplace_back([&, i] {
      Sequence fork = root.fork().value();
      ASSERT_TRUE(fork.append(Ids{static_cast<TokenId>(100 + i)}).ok());
      outputs[i] = fork.generate(greedy_to_length(6)).value().token_ids;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Ids prompt = joined(ids, {static_cast<TokenId>(100 + i)});
    EXPECT_EQ(outputs[i], llm.generate(prompt, greedy_to_length(6)).value().token_ids);
  }
}

TEST(SequenceThreads, ARefusedCallNeverFreesItForASecondOne) {
  LLM llm = open_demo({.kv_budget_bytes = 4 << 20});
  Sequence sequence = llm.sequence(some_ids(40, 41)).value();
  const std::int32_t room = static_cast<std::int32_t>(stat(llm, "blocks_total")) * 32 - 64;
  std::atomic<bool> done = false;
  std::thread refused([&] {
    while (!done) {
      EXPECT_FALSE(sequence.generate(greedy_to_length(room + 100)).ok());
    }
  });
  for (int streams = 0; streams < 30 && !HasFailure();) {
    if (const auto stream = sequence.stream(greedy_to_length(room)); stream.ok()) {
      ++streams;
      for (int tries = 0; tries < 20; ++tries) {
        EXPECT_FALSE(sequence.append(Ids{20}).ok()) << "while it generates";
        std::this_thread::yield();
      }
    }
  }
  done = true;
  refused.join();
}

TEST(Sequence, OutlivesItsEngineAsClosed) {
  std::optional<LLM> llm = open_demo();
  Sequence sequence = llm->sequence(some_ids(10, 50)).value();
  llm.reset();
  EXPECT_EQ(sequence.append(Ids{20}).error().code, ErrorCode::kClosed);
  EXPECT_EQ(sequence.fork().error().code, ErrorCode::kClosed);
  sequence.close();
}

}  // namespace
}  // namespace quire
