// Saved sequences and checkpoints of models whose layers carry a state. Oracle: the same tokens
// computed from the first one, without any reuse. Models: those of state_models_test.cc.
#include "quire/kv_store/saved_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/ids.h"
#include "quire/checkpoints.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

class SavedStatesOfModels : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static LLM open(LLMOptions options = {}) {
    options.threads = 2;
    options.dtype = "float32";
    return must(LLM::open(source_path("tests/golden/model/") + GetParam(), options));
  }
  [[nodiscard]] static std::vector<float> cold(LLM& llm, const Ids& ids) {
    return must(llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast)).logits;
  }
  [[nodiscard]] std::string file() const { return folder_ / "sequence.qkv"; }

  // Writes the file anew with what `edit` makes of its content.
  void rewrite(const std::function<void(kv_store::KVFileContent&)>& edit) const {
    const auto saved = must(kv_store::KVFile::open(file()));
    kv_store::KVFileContent content = saved.content();
    std::int64_t size = 0;
    for (tensor::StatePart& part : content.states.parts) {
      part.offset = size;
      size += part.bytes;
    }
    std::vector<std::vector<std::byte>> states;
    for (std::size_t i = 0; i < content.states.at.size(); ++i) {
      states.emplace_back(static_cast<std::size_t>(size));
      ASSERT_TRUE(saved.read_state(i, content.states.parts, states.back()).ok());
    }
    const auto count = content.runs[0].num_blocks(content.geometry.block_tokens);
    auto pool = must(kv_store::PagedPool::create(content.geometry, count));
    std::vector<std::vector<BlockId>> blocks(1);
    for (std::int32_t i = 0; i < count; ++i) {
      blocks[0].push_back({i});
    }
    for (int layer = 0; layer < content.geometry.layers; ++layer) {
      ASSERT_TRUE(saved.read_layer(0, layer, 0, blocks[0], pool).ok());
    }
    edit(content);
    const std::vector<std::span<const std::byte>> bytes(states.begin(), states.end());
    const Status written = kv_store::write_kv_file(
        file(), content, pool, blocks, {.states = std::span(bytes).last(content.states.at.size())});
    ASSERT_TRUE(written.ok()) << written.error().message;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_P(SavedStatesOfModels, AnotherLlmGoesOnWithTheBitsOfAColdRun) {
  for (const std::size_t length : {1, 2, 31, 32, 33, 90}) {
    Ids ids;
    {
      LLM llm = open();
      Sequence sequence = must(llm.sequence(small_ids(length, 3)));
      (void)must(sequence.generate(greedy_to_length(7)));
      ids = sequence.tokens();
      ASSERT_TRUE(sequence.save(file()).ok());
    }
    LLM llm = open();
    Sequence loaded = must(llm.load_sequence(file()));
    EXPECT_EQ(loaded.tokens(), ids);
    EXPECT_EQ(loaded.grade(), ReuseGrade::kExact);
    const double before = stat(llm, "tokens_computed");
    EXPECT_EQ(must(loaded.logits()), cold(llm, ids)) << length;
    EXPECT_EQ(stat(llm, "tokens_computed") - before, 1 + std::ssize(ids)) << "one of the sequence";
    const Ids answer = must(loaded.generate(greedy_to_length(9))).token_ids;
    LLM fresh = open();
    EXPECT_EQ(must(fresh.generate(ids, greedy_to_length(9))).token_ids, answer) << length;
    ASSERT_TRUE(loaded.append(small_ids(40, 8)).ok());
    EXPECT_EQ(must(loaded.logits()), cold(llm, loaded.tokens())) << length;
  }
}

TEST_P(SavedStatesOfModels, ASequenceWhoseKvWasAllCachedIsSavedWhole) {
  LLM llm = open();
  const Ids ids = small_ids(45, 6);
  (void)must(llm.generate(ids, greedy_to_length(1)));
  Sequence cached = must(llm.sequence(ids));  // its last block lies beside the point
  ASSERT_TRUE(cached.save(file()).ok());
  LLM other = open();
  Sequence loaded = must(other.load_sequence(file()));
  EXPECT_EQ(must(loaded.logits()), cold(other, ids));
  Sequence again = must(llm.load_sequence(file()));  // all of it is cached here
  EXPECT_EQ(must(again.logits()), cold(llm, ids));
  ASSERT_TRUE(again.append(small_ids(20, 7)).ok());
  EXPECT_EQ(must(again.logits()), cold(llm, again.tokens()));
}

TEST_P(SavedStatesOfModels, ALoadedSequenceRollsBackToPointsOfTheFile) {
  Ids ids;
  {
    LLM llm = open();
    Sequence sequence = must(llm.sequence(small_ids(150, 4)));
    for (std::uint32_t turn = 0; turn < 3; ++turn) {
      (void)must(sequence.generate(greedy_to_length(10)));
      ASSERT_TRUE(sequence.append(small_ids(60, 50 + turn)).ok());
    }
    ids = sequence.tokens();
    ASSERT_TRUE(sequence.save(file()).ok());
  }
  EXPECT_GT(must(kv_store::KVFile::open(file())).content().states.at.size(), 1U);
  LLM llm = open();
  Sequence loaded = must(llm.load_sequence(file()));
  EXPECT_GT(stat(llm, "restore_points"), 0);
  const double before = stat(llm, "tokens_computed");
  const Ids shorter(ids.begin(), ids.end() - 40);
  const ForwardOutput near = must(llm.forward(shorter, ForwardReuse::kExact, ForwardRows::kLast));
  EXPECT_GT(near.cached_tokens, 0) << "a point of the file";
  EXPECT_LT(stat(llm, "tokens_computed") - before, std::ssize(shorter));
  EXPECT_EQ(near.logits, cold(llm, shorter));
  for (const std::int64_t length : {std::ssize(ids) - 1, std::int64_t{200}, std::int64_t{3}}) {
    Sequence cut = must(loaded.fork());
    ASSERT_TRUE(cut.rollback_to(length).ok());
    EXPECT_EQ(must(cut.logits()), cold(llm, {ids.begin(), ids.begin() + length})) << length;
  }
}

TEST_P(SavedStatesOfModels, AFileWithoutAPartOrAStateIsRefusedByName) {
  LLM llm = open();
  Sequence sequence = must(llm.sequence(small_ids(50, 2)));
  ASSERT_TRUE(sequence.save(file()).ok());
  kv_store::KVFileContent whole;
  rewrite([&](kv_store::KVFileContent& content) { whole = content; });
  for (const tensor::StatePart& part : whole.states.parts) {
    rewrite([&](kv_store::KVFileContent& content) {
      std::erase_if(content.states.parts, [&](const tensor::StatePart& each) {
        return each.layer == part.layer && each.form == part.form;
      });
      if (content.states.parts.empty()) {
        content.states = {};
      }
    });
    const auto refused = llm.load_sequence(file());
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
    EXPECT_THAT(refused.error().message, HasSubstr(kv_store::part_name(part)));
    ASSERT_TRUE(sequence.save(file()).ok());
  }
  rewrite([](kv_store::KVFileContent& content) { content.states.at.back().tokens -= 1; });
  EXPECT_EQ(llm.load_sequence(file()).error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(llm.load_sequence(file()).error().message, HasSubstr("no state behind them"));
  ASSERT_TRUE(sequence.save(file()).ok());
  flip_bit(file(), std::filesystem::file_size(file()) - 1);
  EXPECT_EQ(llm.load_sequence(file()).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(must(sequence.logits()), cold(llm, sequence.tokens()));
}

TEST_P(SavedStatesOfModels, AStateOfOtherKernelsIsGradedAndFoundByNobodyElse) {
  const Ids ids = small_ids(70, 2);
  {
    LLM llm = open();
    Sequence sequence = must(llm.sequence(ids));
    ASSERT_TRUE(sequence.save(file()).ok());
  }
  rewrite([](kv_store::KVFileContent& content) {
    auto metadata = boost::json::parse(content.metadata_json).as_object();
    metadata["kernels"] = "of another machine";
    content.metadata_json = boost::json::serialize(metadata);
  });
  LLM llm = open();
  Sequence loaded = must(llm.load_sequence(file()));
  EXPECT_EQ(loaded.grade(), ReuseGrade::kEqualMath);
  const std::vector<ReusePart> parts = must(llm.explain(joined(ids, small_ids(5, 3))));
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_FALSE(parts[0].hit);
  EXPECT_THAT(parts[0].reason, HasSubstr("known up to token 69"));
  EXPECT_THAT(parts[0].reason, HasSubstr("of another form"));
  EXPECT_THAT(must(llm.explain(small_ids(80, 9)))[0].reason, HasSubstr("never seen"));
  EXPECT_EQ(must(llm.forward(ids, ForwardReuse::kExact, ForwardRows::kLast)).cached_tokens, 0);
  EXPECT_EQ(must(loaded.logits()), cold(llm, ids));
  ASSERT_TRUE(loaded.rollback_to(40).ok());
  EXPECT_EQ(must(loaded.logits()), cold(llm, {ids.begin(), ids.begin() + 40}));
  EXPECT_EQ(loaded.grade(), ReuseGrade::kEqualMath);
}

TEST_P(SavedStatesOfModels, CheckpointsBringBackSequencesAndForksOfThem) {
  std::vector<Ids> tokens;
  {
    LLM llm = open();
    CheckpointManager checkpoints = must(CheckpointManager::open(llm, folder_ / "store", {}));
    std::vector<Sequence> sequences;
    sequences.push_back(must(llm.sequence(small_ids(75, 1))));
    sequences.push_back(must(sequences[0].fork()));
    sequences.push_back(must(llm.sequence(Ids{5})));
    for (int save = 0; save < 3; ++save) {
      (void)must(sequences[0].generate(greedy_to_length(12)));
      ASSERT_TRUE(sequences[1].append(small_ids(9, 30 + static_cast<std::uint32_t>(save))).ok());
      const CheckpointInfo info = must(checkpoints.save(std::vector<NamedSequence>{
          {"a", &sequences[0]}, {"b", &sequences[1]}, {"c", &sequences[2]}}));
      EXPECT_GT(info.written_bytes, 0);
    }
    ASSERT_TRUE(checkpoints.compact("checkpoint-3").ok());
    for (const Sequence& sequence : sequences) {
      tokens.push_back(sequence.tokens());
    }
  }
  LLM llm = open();
  CheckpointManager checkpoints = must(CheckpointManager::open(llm, folder_ / "store", {}));
  for (const bool wait : {true, false}) {
    std::vector<LoadedSequence> loaded = must(checkpoints.load("", {}, {.wait = wait}));
    ASSERT_EQ(loaded.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(loaded[i].sequence.tokens(), tokens[i]);
      EXPECT_EQ(must(loaded[i].sequence.logits()), cold(llm, tokens[i])) << i;
    }
  }
  EXPECT_EQ(must(checkpoints.list()).size(), 3U);
  EXPECT_EQ(must(checkpoints.cleanup(1)), 2);
  EXPECT_TRUE(checkpoints.latest().ok());
}

TEST_P(SavedStatesOfModels, ADamagedStateOfACheckpointIsPassedOverForAnEarlierOne) {
  LLM llm = open();
  CheckpointManager checkpoints = must(CheckpointManager::open(llm, folder_ / "store", {}));
  Sequence sequence = must(llm.sequence(small_ids(40, 1)));
  std::set<std::filesystem::path> known;
  const auto save = [&] {
    EXPECT_TRUE(checkpoints.save(std::vector<NamedSequence>{{"a", &sequence}}).ok());
    std::vector<std::filesystem::path> added;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder_ / "store")) {
      if (each.path().extension() == ".qkv" && known.insert(each.path()).second) {
        added.push_back(each.path());
      }
    }
    return added;
  };
  (void)save();
  const Ids before = sequence.tokens();
  ASSERT_TRUE(sequence.append(small_ids(30, 9)).ok());
  for (const std::filesystem::path& object : save()) {
    if (must(kv_store::KVFile::open(object)).content().runs.empty()) {
      flip_bit(object, std::filesystem::file_size(object) - 1);
    }
  }
  EXPECT_EQ(checkpoints.load("checkpoint-2").error().code, ErrorCode::kCorrupt);
  auto loaded = must(checkpoints.load());
  EXPECT_EQ(loaded[0].sequence.tokens(), before);
  EXPECT_EQ(must(loaded[0].sequence.logits()), cold(llm, before));
}

INSTANTIATE_TEST_SUITE_P(Models, SavedStatesOfModels, testing::Values("lfm2", "qwen3_5"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
