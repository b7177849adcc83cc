// Sequences whose KV is still being read while they are used. The oracle is the same file loaded
// with everything there, and an LLM that computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

const LoadSequenceOptions kAtOnce{.wait = false};
// The last token has no KV.
constexpr std::size_t kTokens = 1205;      // a partly filled block at the end
constexpr std::size_t kFullBlocks = 1217;  // none

std::vector<char> bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

LLM open_demo(bool prefix_cache = true) {
  return LLM::open(kModel, here({.threads = 2, .prefix_cache = prefix_cache})).value();
}

// Expects every block free once reads in the background have ended.
void expect_no_block_left(const LLM& llm) {
  for (int tries = 0; tries < 500 && stat(llm, "blocks_in_use") > 0; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
}

class BackgroundLoad : public testing::Test {
 protected:
  explicit BackgroundLoad(std::size_t tokens = kTokens) : ids_(some_ids(tokens, 3)) {
    LLM llm = open_demo();
    Sequence sequence = llm.sequence(ids_).value();
    EXPECT_TRUE(sequence.save(file()).ok());
    logits_ = sequence.logits().value();
    next_ = sequence.generate(sampled_).value().token_ids;
  }

  [[nodiscard]] std::string file() const { return folder_ / "sequence.qkv"; }

  // The demo model with a window of 512 tokens.
  [[nodiscard]] std::string windowed_model() const {
    const std::filesystem::path model = folder_ / "windowed";
    if (!std::filesystem::create_directory(model)) {
      return model;
    }
    for (const auto& entry : std::filesystem::directory_iterator(kModel)) {
      if (entry.path().filename() != "config.json") {
        std::filesystem::create_symlink(std::filesystem::absolute(entry.path()),
                                        model / entry.path().filename());
      }
    }
    const std::vector<char> bytes = bytes_of(kModel + "/config.json");
    std::string config(bytes.begin(), bytes.end());
    config.replace(config.find("LlamaForCausalLM"), 16, "MistralForCausalLM");
    config.replace(config.find("\"llama\""), 7, "\"mistral\", \"sliding_window\": 512");
    std::ofstream(model / "config.json") << config;
    return model;
  }

  // Flips a byte of KV: `share` of the file before its end.
  [[nodiscard]] std::string damaged(double share) const {
    const std::string path = folder_ / "damaged.qkv";
    std::vector<char> bytes = bytes_of(file());
    bytes[bytes.size() - 1 - static_cast<std::size_t>(share * static_cast<double>(bytes.size()))] ^=
        1;
    std::ofstream(path, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

  const SamplingParams sampled_{.max_tokens = 64, .seed = 7};
  const Ids ids_;
  std::vector<float> logits_;
  Ids next_;
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

class DamagedLoad : public BackgroundLoad {
 protected:
  DamagedLoad() : BackgroundLoad(kFullBlocks) {}
};

TEST_F(BackgroundLoad, EverythingEqualsTheSequenceThatWasSaved) {
  for (const bool prefix_cache : {true, false}) {
    LLM llm = open_demo(prefix_cache);
    {
      Sequence loaded = llm.load_sequence(file(), kAtOnce).value();
      EXPECT_EQ(loaded.tokens(), ids_);
      EXPECT_EQ(loaded.grade(), ReuseGrade::kExact);
      Sequence fork = loaded.fork().value();
      EXPECT_EQ(loaded.logits().value(), logits_);
      EXPECT_EQ(loaded.generate(sampled_).value().token_ids, next_);
      EXPECT_EQ(fork.generate(sampled_).value().token_ids, next_);
    }
    expect_no_block_left(llm);
  }
}

TEST_F(BackgroundLoad, WaitedForOneThreadAndSeveralReadTheSame) {
  for (const int threads : {1, 2, 3}) {
    LLM llm = LLM::open(kModel, here({.threads = threads, .prefix_cache = false})).value();
    Sequence loaded = llm.load_sequence(file()).value();
    EXPECT_EQ(loaded.logits().value(), logits_) << threads;
    EXPECT_EQ(loaded.generate(sampled_).value().token_ids, next_) << threads;
  }
}

TEST_F(BackgroundLoad, SavingAtOnceGivesTheSameFile) {
  LLM llm = open_demo();
  const Sequence loaded = llm.load_sequence(file(), kAtOnce).value();
  const std::string again = folder_ / "again.qkv";
  ASSERT_TRUE(loaded.save(again).ok());
  EXPECT_EQ(bytes_of(again), bytes_of(file()));
}

TEST_F(BackgroundLoad, APlainPromptFindsTheKvOnceItIsThere) {
  LLM llm = open_demo();
  const Sequence loaded = llm.load_sequence(file(), kAtOnce).value();
  ASSERT_TRUE(loaded.save(folder_ / "waited.qkv").ok());
  EXPECT_EQ(llm.forward(ids_, ForwardReuse::kExact, ForwardRows::kLast).value().logits, logits_);
  EXPECT_LT(stat(llm, "tokens_computed"), 64);
}

TEST_F(BackgroundLoad, RollingBackIntoABlockThatIsBeingReadCopiesWhatIsRead) {
  LLM whole = open_demo();
  for (const std::int64_t length : {5, 600, 1200}) {
    LLM llm = open_demo(false);
    Sequence loaded = llm.load_sequence(file(), kAtOnce).value();
    ASSERT_TRUE(loaded.rollback_to(length).ok());
    ASSERT_TRUE(loaded.append(some_ids(9, 8)).ok());
    Sequence right = whole.load_sequence(file()).value();
    ASSERT_TRUE(right.rollback_to(length).ok());
    ASSERT_TRUE(right.append(some_ids(9, 8)).ok());
    EXPECT_EQ(loaded.logits().value(), right.logits().value()) << length;
  }
}

TEST_F(BackgroundLoad, BehindACompositionTooTheRunsAreRead) {
  ChunkedLLM chunked = ChunkedLLM::open(kModel, here({.threads = 2})).value();
  const CompositionSpec spec{
      .system_chunk_id =
          chunked.register_chunk({.content = some_ids(40, 1), .type = ChunkType::kSystemPrompt})
              .value(),
      .context_chunk_ids = {chunked.register_chunk({.content = some_ids(445, 2)}).value(),
                            chunked.register_chunk({.content = some_ids(333, 3)}).value()},
      .query_chunk_id =
          chunked.register_chunk({.content = some_ids(70, 4), .type = ChunkType::kQuery}).value()};
  Sequence sequence = chunked.sequence(spec).value();
  const std::string composed = folder_ / "composed.qkv";
  ASSERT_TRUE(sequence.save(composed).ok());
  LLM llm = open_demo();
  {
    Sequence loaded = llm.load_sequence(composed, kAtOnce).value();
    EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
    EXPECT_EQ(loaded.generate(sampled_).value().token_ids,
              sequence.generate(sampled_).value().token_ids);
  }
  expect_no_block_left(llm);
}

// Early and late layers, blocks in the midst and the last one; by a fork, by what is rolled back
// and appended, by saving.
TEST_F(DamagedLoad, WhoeverReadsADamagedBlockIsToldAndNobodyElse) {
  for (const double share : {0.01, 0.5, 0.9}) {
    const std::string path = damaged(share);
    LLM llm = open_demo();
    {
      Sequence loaded = llm.load_sequence(path, kAtOnce).value();
      Sequence fork = loaded.fork().value();
      EXPECT_EQ(loaded.generate(sampled_).error().code, ErrorCode::kCorrupt) << share;
      EXPECT_THAT(fork.logits().error().message, HasSubstr("checksum"));
      EXPECT_EQ(fork.save(folder_ / "x.qkv").error().code, ErrorCode::kCorrupt);
      EXPECT_EQ(loaded.append(some_ids(40, 1)).error().code, ErrorCode::kCorrupt);
      EXPECT_EQ(loaded.tokens(), ids_);
      Sequence other = llm.sequence(some_ids(50, 9)).value();
      EXPECT_TRUE(other.generate(sampled_).ok());
      const auto plain = llm.forward(ids_, ForwardReuse::kExact, ForwardRows::kLast);
      ASSERT_TRUE(plain.ok()) << share << ": " << plain.error().message;
      EXPECT_EQ(plain->logits, logits_);
    }
    expect_no_block_left(llm);
  }
}

TEST_F(DamagedLoad, WaitedForADamagedBlockFailsTheLoadWhicheverThreadHasReadIt) {
  LLM llm = open_demo();
  for (const double share : {0.01, 0.2, 0.4, 0.6, 0.8, 0.99}) {
    const auto loaded = llm.load_sequence(damaged(share));
    EXPECT_EQ(loaded.error().code, ErrorCode::kCorrupt) << share;
    EXPECT_THAT(loaded.error().message, HasSubstr("checksum")) << share;
    expect_no_block_left(llm);
  }
}

// The copy of a damaged block is damaged, though no file is read into it.
TEST_F(DamagedLoad, ACopyOfADamagedBlockIsDamaged) {
  const std::string path = damaged(0.3);
  for (std::int64_t length = 5; length < 1205; length += 96) {  // in the midst of a block
    LLM llm = open_demo(false);
    Sequence loaded = llm.load_sequence(path, kAtOnce).value();
    ASSERT_TRUE(loaded.rollback_to(length).ok());
    const Status appended = loaded.append(some_ids(40, 1));
    ASSERT_FALSE(appended.ok()) << length;
    EXPECT_EQ(appended.error().code, ErrorCode::kCorrupt);
  }
}

// A window would give up blocks while they are being filled.
TEST_F(BackgroundLoad, AModelWithASlidingWindowReadsEverythingBeforeTheLoadReturns) {
  LLM llm = LLM::open(windowed_model(), here({.threads = 2})).value();
  const Ids ids = some_ids(305, 4);
  const std::string path = folder_ / "windowed.qkv";
  Sequence sequence = llm.sequence(ids).value();
  ASSERT_TRUE(sequence.save(path).ok());
  LLM reader = LLM::open(windowed_model(), here({.threads = 2})).value();
  Sequence loaded = reader.load_sequence(path, kAtOnce).value();
  EXPECT_EQ(stat(reader, "tokens_computed"), 0);
  EXPECT_EQ(loaded.tokens(), ids);
  EXPECT_EQ(loaded.logits().value(), sequence.logits().value());
  const auto next = loaded.generate({.temperature = 0, .max_tokens = 300, .ignore_eos = true});
  EXPECT_EQ(next.value().token_ids,
            sequence.generate({.temperature = 0, .max_tokens = 300, .ignore_eos = true})->token_ids)
      << "beyond the window";
  std::filesystem::copy_file(path, file(), std::filesystem::copy_options::overwrite_existing);
  LLM other = LLM::open(windowed_model(), here({.threads = 2})).value();
  const auto refused = other.load_sequence(damaged(0.3), kAtOnce);
  ASSERT_FALSE(refused.ok()) << "nothing is left to be found later";
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
}

TEST_F(BackgroundLoad, ClosingTheEngineAbandonsWhatIsRead) {
  LLM llm = open_demo();
  std::vector<Sequence> loaded;
  loaded.reserve(5);
  for (int i = 0; i < 5; ++i) {
    loaded.push_back(llm.load_sequence(file(), kAtOnce).value());
  }
  llm.close();
  EXPECT_EQ(loaded.front().logits().error().code, ErrorCode::kClosed);
}

TEST_F(BackgroundLoad, ManyThreadsLoadAndGoOn) {
  LLM llm = open_demo();
  const std::string bad = damaged(0.6);
  const auto go_on = [&](bool damaged) {
    Sequence loaded = llm.load_sequence(damaged ? bad : file(), kAtOnce).value();
    const auto output = loaded.generate(sampled_);
    if (output.ok()) {  // also of the damaged file, when the prefix cache had it
      EXPECT_EQ(output->token_ids, next_);
    } else {
      EXPECT_TRUE(damaged);
      EXPECT_EQ(output.error().code, ErrorCode::kCorrupt);
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(6);
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&go_on, i] {
      for (int round = 0; round < 4; ++round) {
        go_on(i == 0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  expect_no_block_left(llm);
}

}  // namespace
}  // namespace quire
