// KV that is stored block by block (kv_dtype "fp8" and "int4") on its way to files, checkpoints,
// host memory and stores, and back. Moving never stores it anew. The oracle is what was never
// saved, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/ids.h"
#include "quire/base/temporary_folder.h"
#include "quire/checkpoints.h"
#include "quire/context.h"
#include "quire/kv/format.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

std::string content_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Kind {
  std::string kv_dtype;
  std::string dtype;
  std::int32_t block_tokens;
};

class SealedFiles : public testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] static LLM open(LLMOptions options = {}) {
    options.dtype = GetParam().dtype;
    options.kv_dtype = options.kv_dtype == "auto" ? GetParam().kv_dtype : options.kv_dtype;
    options.block_tokens = GetParam().block_tokens;
    options.threads = 2;
    options.kv_budget_bytes = std::int64_t{64} << 20;
    return must(LLM::open(kModel, options));
  }
  static SamplingParams sampled() { return {.max_tokens = 40, .ignore_eos = true, .seed = 7}; }
  // Generates behind a fork, so that the sequence stays as it is.
  static Ids next_ids(const Sequence& sequence) {
    Sequence fork = must(sequence.fork());
    return must(fork.generate(sampled())).token_ids;
  }
  // Lengths on both sides of the ends of blocks, and in between.
  static std::vector<std::size_t> lengths() {
    const auto block = static_cast<std::size_t>(GetParam().block_tokens);
    return {1, 2, block, block + 1, block + 2, 3 * block - 1};
  }
  [[nodiscard]] std::string file() const { return folder_.path() / "sequence.qkv"; }

  const TemporaryFolder folder_;
};

TEST_P(SealedFiles, ASequenceOfAnyLengthGoesOnInAnotherEngineAsIfItHadNeverBeenSaved) {
  LLM llm = open();
  const Ids more = some_ids(static_cast<std::size_t>(GetParam().block_tokens) + 3, 5);
  for (const std::size_t length : lengths()) {
    Sequence sequence = must(llm.sequence(some_ids(length, 3)));
    ASSERT_TRUE(sequence.save(file()).ok());
    const std::vector<float> logits = must(sequence.logits());
    const Ids answer = next_ids(sequence);
    Sequence longer = must(sequence.fork());
    ASSERT_TRUE(longer.append(more).ok());
    for (const bool wait : {true, false}) {
      LLM other = open();
      Sequence loaded = must(other.load_sequence(file(), {.wait = wait}));
      EXPECT_EQ(loaded.tokens(), sequence.tokens());
      EXPECT_EQ(loaded.grade(), ReuseGrade::kExact);
      EXPECT_EQ(must(loaded.logits()), logits) << length;
      EXPECT_EQ(next_ids(loaded), answer) << length;
      ASSERT_TRUE(loaded.append(more).ok());
      EXPECT_EQ(must(loaded.logits()), must(longer.logits())) << length;
      EXPECT_EQ(next_ids(loaded), next_ids(longer)) << length;
      loaded.close();
      EXPECT_EQ(settled_stat(other, "bytes_in_use", 0), 0);
    }
  }
}

TEST_P(SealedFiles, EqualSequencesGiveEqualFilesAndALoadedOneIsSavedToTheSameBytes) {
  const Ids ids = some_ids(static_cast<std::size_t>(3 * GetParam().block_tokens - 2), 4);
  const std::string again = folder_.path() / "again.qkv";
  LLM llm = open();
  ASSERT_TRUE(must(llm.sequence(ids)).save(file()).ok());
  LLM other = open();
  ASSERT_TRUE(must(other.load_sequence(file())).save(again).ok());
  EXPECT_EQ(content_of(again), content_of(file()));
  Sequence steps = must(other.sequence(Ids(ids.begin(), ids.begin() + 5)));
  ASSERT_TRUE(steps.append(Ids(ids.begin() + 5, ids.end())).ok());
  ASSERT_TRUE(steps.save(again).ok());
  EXPECT_EQ(content_of(again), content_of(file()));
}

TEST_P(SealedFiles, AFileHasFullBlocksInTheFormatAndALastOneAsItWasComputed) {
  const auto block = static_cast<std::size_t>(GetParam().block_tokens);
  LLM llm = open();
  ASSERT_TRUE(must(llm.sequence(some_ids(2 * block + 3, 3))).save(file()).ok());
  const kv_store::KVFile saved = must(kv_store::KVFile::open(file()));
  const auto& runs = saved.content().runs;
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].tokens.size(), 2 * block);
  EXPECT_EQ(kv_store::kv_type_name(kv_store::kv_type_of(saved.content().geometry_of(0))),
            GetParam().kv_dtype);
  EXPECT_EQ(runs[1].tokens.size(), 2U);
  EXPECT_EQ(kv_store::kv_type_name(runs[1].type.value()), GetParam().dtype);
}

TEST_P(SealedFiles, LoadedBlocksAreFoundByPlainPrompts) {
  const Ids ids = some_ids(static_cast<std::size_t>(3 * GetParam().block_tokens + 2), 4);
  std::vector<float> cold;
  {
    LLM llm = open();
    cold = must(llm.forward(ids, ForwardReuse::kExact, ForwardRows::kLast)).logits;
    ASSERT_TRUE(must(llm.sequence(ids)).save(file()).ok());
  }
  for (const bool wait : {true, false}) {
    LLM llm = open();
    const Sequence loaded = must(llm.load_sequence(file(), {.wait = wait}));
    ASSERT_TRUE(llm.stats().ok());
    const ForwardOutput warm = must(llm.forward(ids, ForwardReuse::kExact, ForwardRows::kLast));
    EXPECT_EQ(warm.logits, cold);
    if (wait) {
      EXPECT_EQ(warm.cached_tokens, 3 * GetParam().block_tokens);
      Sequence twice = must(llm.load_sequence(file()));
      EXPECT_EQ(must(twice.logits()), cold) << "its full blocks were there";
    }
  }
}

TEST_P(SealedFiles, AFileOfAnotherFormatIsRefusedWithBothNames) {
  LLM llm = open();
  const auto block = static_cast<std::size_t>(GetParam().block_tokens);
  for (const std::size_t length : {std::size_t{3}, 2 * block + 1, 2 * block + 4}) {
    ASSERT_TRUE(must(llm.sequence(some_ids(length, 3))).save(file()).ok());
    for (const std::string name : {"fp8", "int8", "bfloat16", "float32"}) {
      if (name == GetParam().kv_dtype) {
        continue;
      }
      LLM other = open({.kv_dtype = name});
      const auto refused = other.load_sequence(file());
      ASSERT_FALSE(refused.ok()) << name;
      EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
      EXPECT_THAT(refused.error().message, HasSubstr(GetParam().kv_dtype));
      EXPECT_THAT(refused.error().message, HasSubstr(name));
      EXPECT_EQ(stat(other, "bytes_in_use"), 0);
    }
  }
}

TEST_P(SealedFiles, AnyDamageIsATypedErrorAndChangesNothing) {
  LLM llm = open();
  const auto block = static_cast<std::size_t>(GetParam().block_tokens);
  ASSERT_TRUE(must(llm.sequence(some_ids(2 * block + 3, 3))).save(file()).ok());
  LLM other = open();
  const auto size = std::filesystem::file_size(file());
  for (std::uintmax_t at = 0; at < size; at += 1 + size / 23) {
    flip_bit(file(), at);
    const auto damaged = other.load_sequence(file());
    EXPECT_FALSE(damaged.ok()) << "byte " << at << " of " << size;
    flip_bit(file(), at);
  }
  EXPECT_EQ(stat(other, "bytes_in_use"), 0);
  EXPECT_TRUE(other.load_sequence(file()).ok());
  for (const std::uintmax_t left : {size - 1, size / 2, size / 5, std::uintmax_t{70}}) {
    std::filesystem::resize_file(file(), left);
    EXPECT_FALSE(other.load_sequence(file()).ok()) << left;
  }
  EXPECT_EQ(stat(other, "bytes_in_use"), 0);
}

// The bytes are whole and the writer lied.
TEST_P(SealedFiles, RunsThatAreNoSequenceAreRefusedAndChangeNothing) {
  const auto block = static_cast<std::size_t>(GetParam().block_tokens);
  LLM llm = open();
  ASSERT_TRUE(must(llm.sequence(some_ids(2 * block + 4, 3))).save(file()).ok());
  kv_store::KVFileContent content;
  std::vector<std::vector<BlockId>> blocks = {{{0}, {1}}, {}};
  const kv_store::KVFile saved = must(kv_store::KVFile::open(file()));
  auto pool = must(kv_store::PagedPool::create(saved.content().geometry, 40));
  const kv::FormatId open_blocks = must(pool.add_format(saved.content().geometry_of(1)));
  blocks[1].push_back({pool.num_blocks(open_blocks) - 1});
  for (int layer = 0; layer < pool.geometry().layers; ++layer) {
    ASSERT_TRUE(saved.read_layer(0, layer, 0, blocks[0], pool).ok());
    ASSERT_TRUE(saved.read_layer(1, layer, 0, blocks[1], pool).ok());
  }
  LLM other = open();
  const auto outcome = [&](const auto& edit) -> std::optional<ErrorCode> {
    content = saved.content();
    auto metadata = boost::json::parse(content.metadata_json).as_object();
    edit(content, metadata);
    content.metadata_json = boost::json::serialize(metadata);
    const Status written = kv_store::write_kv_file(file(), content, pool, blocks);
    EXPECT_TRUE(written.ok()) << written.error().message;
    auto loaded = other.load_sequence(file());
    return loaded.ok() ? std::nullopt : std::optional(loaded.error().code);
  };
  using Content = kv_store::KVFileContent;
  using Object = boost::json::object;
  EXPECT_EQ(outcome([](Content&, Object&) {}), std::nullopt);
  EXPECT_EQ(outcome([](Content&, Object& o) { o.erase("parts"); }), ErrorCode::kCorrupt);
  EXPECT_EQ(outcome([](Content&, Object& o) { o["parts"] = boost::json::array({1, 1}); }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(outcome([](Content&, Object& o) { o["parts"] = boost::json::array({3}); }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(outcome([](Content&, Object& o) { o["parts"] = "two"; }), ErrorCode::kCorrupt);
  EXPECT_EQ(outcome([](Content&, Object& o) { o["tail"] = boost::json::array({20, 21}); }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(outcome([](Content&, Object& o) { o["kv_dtype"] = "int8"; }), ErrorCode::kIncompatible);
  EXPECT_EQ(outcome([](Content& c, Object&) { c.runs[0].tokens.pop_back(); }), ErrorCode::kCorrupt);
  EXPECT_EQ(outcome([](Content& c, Object&) { ++c.runs[1].start_position; }), ErrorCode::kCorrupt);
  EXPECT_EQ(outcome([&](Content& c, Object&) { c.runs[1].tokens = some_ids(block, 3); }),
            ErrorCode::kCorrupt);
  EXPECT_EQ(stat(other, "bytes_in_use"), 0);
  // Scales of K come first in both formats.
  const auto head = pool.head_blocks(0, 0, {1});
  std::fill_n(head.begin() + pool.geometry().scale_offset(), 4, std::byte{0xff});
  EXPECT_EQ(outcome([](Content&, Object&) {}), ErrorCode::kCorrupt) << "a scale that is NaN";
  EXPECT_EQ(stat(other, "bytes_in_use"), 0);
}

// Damage that is read in the background is the error of what reads it.
TEST_P(SealedFiles, DamageThatIsReadInTheBackgroundFailsItsReaders) {
  LLM llm = open();
  const auto block = static_cast<std::size_t>(GetParam().block_tokens);
  ASSERT_TRUE(must(llm.sequence(some_ids(2 * block + 3, 3))).save(file()).ok());
  for (const std::uintmax_t from_end :
       {std::uintmax_t{16}, std::filesystem::file_size(file()) / 2}) {
    const std::uintmax_t at = std::filesystem::file_size(file()) - from_end;
    flip_bit(file(), at);
    LLM other = open();
    {
      auto loaded = other.load_sequence(file(), {.wait = false});
      EXPECT_FALSE(loaded.ok() && loaded->logits().ok()) << from_end;
    }
    EXPECT_TRUE(other.generate(some_ids(9, 1), sampled()).ok());
    EXPECT_EQ(stat(other, "bytes_in_use"), 0);
    flip_bit(file(), at);
  }
}

TEST_P(SealedFiles, CheckpointsWriteWhatIsNewAndGoOnWithEqualBits) {
  const auto block = static_cast<std::size_t>(GetParam().block_tokens);
  const std::filesystem::path store = folder_.path() / "store";
  LLM llm = open();
  CheckpointManager manager =
      must(CheckpointManager::open(llm, store, {.keep = 0, .compress = Compression(true)}));
  Sequence sequence = must(llm.sequence(some_ids(2 * block + 3, 3)));
  std::vector<Ids> answers;
  for (int i = 0; i < 3; ++i) {
    const NamedSequence named{"a", &sequence};
    const CheckpointInfo info = must(manager.save({&named, 1}));
    EXPECT_LE(info.written_objects, 2) << "full blocks are written once";
    answers.push_back(next_ids(sequence));
    ASSERT_TRUE(sequence.append(some_ids(block / 2 + 1, static_cast<std::uint32_t>(i))).ok());
  }
  for (const bool compacted : {false, true}) {
    LLM other = open();
    CheckpointManager reader = must(CheckpointManager::open(other, store));
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const std::string name = "checkpoint-" + std::to_string(i + 1);
      if (compacted) {
        EXPECT_TRUE(reader.compact(name).ok());
      }
      const auto loaded = must(reader.load(name));
      EXPECT_EQ(next_ids(loaded[0].sequence), answers[i]) << name;
    }
  }
  LLM floats = open({.kv_dtype = GetParam().dtype});
  const auto refused = must(CheckpointManager::open(floats, store)).load();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().message, HasSubstr(GetParam().kv_dtype));
  EXPECT_THAT(refused.error().message, HasSubstr(GetParam().dtype));
}

// Cutting inside of a run that a sequence is behind of leaves a block of codes that is used in
// part.
TEST_P(SealedFiles, ASequenceThatUsesAPartOfABlockOfCodesKeepsItsBits) {
  const auto block = static_cast<std::size_t>(GetParam().block_tokens);
  LLM llm = open();
  const Sequence a = must(llm.sequence(some_ids(3 * block, 6)));
  const Sequence b = must(llm.sequence(some_ids(2 * block + 2, 7)));
  const auto part = static_cast<std::int64_t>(block + block / 2);
  const std::vector<BlockList> lists = {must(must(a.blocks()).first(part)), must(b.blocks())};
  Sequence sequence = must(llm.sequence(must(BlockList::join(lists)), some_ids(3, 7)));
  ASSERT_TRUE(sequence.save(file()).ok());
  LLM other = open();
  Sequence loaded = must(other.load_sequence(file()));
  EXPECT_EQ(must(loaded.logits()), must(sequence.logits()));
  EXPECT_EQ(next_ids(loaded), next_ids(sequence));
}

class SealedItems : public SealedFiles {
 protected:
  static std::string card(int number) {
    std::string text = "Card " + std::to_string(number) + ".";
    for (int i = 0; i < 12; ++i) {
      text += " Ada keeps a goose.";
    }
    return text;
  }
  static Ids ask(ContextManager& context) {
    const auto answer =
        must(context.infer("Who?", {.temperature = 0, .max_tokens = 8, .ignore_eos = true}));
    EXPECT_TRUE(context.erase(answer.user_id).ok());
    EXPECT_TRUE(context.erase(answer.output_id).ok());
    return answer.output.token_ids;
  }
};

TEST_P(SealedItems, GoToHostMemoryAndToTheStoreAndComeBackWithEqualBits) {
  LLM llm = open();
  const std::string store = folder_.path() / "store";
  ContextManager context = must(ContextManager::open(llm, {.store = store}));
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(must(context.add(card(i))));
  }
  ids.push_back(must(context.add("Bo.")));
  const Ids want = ask(context);
  const double computed = stat(llm, "tokens_computed");
  for (const std::string& id : ids) {
    const std::int64_t bytes = must(context.show(id)).memory_bytes;
    ASSERT_TRUE(context.unload(id).ok());
    EXPECT_EQ(must(context.show(id)).tier, Tier::kHost);
    EXPECT_EQ(must(context.show(id)).memory_bytes, bytes);
    ASSERT_TRUE(context.save(id).ok()) << "from host memory";
    ASSERT_TRUE(context.restore(id).ok());
  }
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  EXPECT_EQ(ask(context), want);
  for (const std::string& id : ids) {
    ASSERT_TRUE(context.unload(id, true).ok());
    EXPECT_EQ(must(context.show(id)).tier, Tier::kDisk);
  }
  const double before = stat(llm, "tokens_computed");
  for (const std::string& id : ids) {
    ASSERT_TRUE(context.restore(id).ok());
  }
  EXPECT_EQ(stat(llm, "tokens_computed"), before);
  EXPECT_EQ(ask(context), want);
}

INSTANTIATE_TEST_SUITE_P(Formats, SealedFiles,
                         testing::Values(Kind{"int4", "float32", 32}, Kind{"int4", "bfloat16", 64},
                                         Kind{"fp8", "bfloat16", 16}, Kind{"fp8", "float32", 7}),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return info.param.kv_dtype + "_" + info.param.dtype + "_" +
                                  std::to_string(info.param.block_tokens);
                         });
INSTANTIATE_TEST_SUITE_P(Formats, SealedItems,
                         testing::Values(Kind{"int4", "float32", 32}, Kind{"fp8", "bfloat16", 16}),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return info.param.kv_dtype + "_" + info.param.dtype + "_" +
                                  std::to_string(info.param.block_tokens);
                         });

}  // namespace
}  // namespace quire
