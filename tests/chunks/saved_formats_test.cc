// Sequences behind chunks in other formats than the pool's, in files and checkpoints. Oracle: the
// sequence that was saved, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "formats_scene.h"
#include "quire/api/test_support.h"
#include "quire/base/temporary_folder.h"
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/kv_store/kv_file.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;

LLM open_plain(const std::string& kv_dtype) {
  return LLM::open(kModel, {.kv_dtype = kv_dtype, .threads = 2}).value();
}

// Returns a sequence behind chunks in bfloat16, int8 and bfloat16, with a few tokens of its own.
Sequence mixed_sequence(ChunkedLLM& llm) {
  Sequence sequence = llm.sequence(register_all(llm, {"", "int8", ""})).value();
  EXPECT_TRUE(sequence.append(some_ids(40, 9)).ok());
  return sequence;
}

Ids next_ids(Sequence& sequence) {
  return must(sequence.generate({.max_tokens = 40, .ignore_eos = true, .seed = 7})).token_ids;
}

// Saves in one engine, and goes on in another one that knows none of the chunks.
TEST(SavedFormats, ASequenceBehindAnInt8ChunkGoesOnInAnotherProcessWithEqualBits) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "sequence.qkv", again = folder.path() / "again.qkv";
  std::vector<float> logits;
  Ids ids;
  double bytes = 0;
  {
    ChunkedLLM llm = open_chunked("bfloat16");
    Sequence sequence = mixed_sequence(llm);
    ASSERT_TRUE(sequence.save(path).ok());
    logits = must(sequence.logits());
    bytes = stat(llm, "bytes_in_use");
    ids = next_ids(sequence);
  }
  for (const bool wait : {true, false}) {
    LLM llm = open_plain("bfloat16");
    Sequence loaded = must(llm.load_sequence(path, {.wait = wait}));
    Sequence fork = must(loaded.fork());
    EXPECT_EQ(must(loaded.logits()), logits) << wait;
    EXPECT_EQ(next_ids(loaded), ids) << wait;
    EXPECT_EQ(next_ids(fork), ids) << wait;
    loaded.close();
    fork.close();
    EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
  }
  LLM llm = open_plain("bfloat16");
  Sequence loaded = must(llm.load_sequence(path));
  EXPECT_LE(stat(llm, "bytes_in_use"), bytes) << "it is stored in the formats that it had";
  ASSERT_TRUE(loaded.save(again).ok());
  EXPECT_EQ(must(kv_store::KVFile::open(again)).payload_bytes(),
            must(kv_store::KVFile::open(path)).payload_bytes());
}

TEST(SavedFormats, AFileNamesTheFormatOfEachRun) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "sequence.qkv";
  ChunkedLLM llm = open_chunked("bfloat16");
  ASSERT_TRUE(mixed_sequence(llm).save(path).ok());
  const kv_store::KVFile file = must(kv_store::KVFile::open(path));
  std::vector<std::string> formats;
  for (std::size_t run = 0; run < file.content().runs.size(); ++run) {
    const tensor::KVGeometry geometry = file.content().geometry_of(run);
    formats.push_back(tensor::kv_format_name(geometry.format, geometry.dtype));
  }
  EXPECT_THAT(formats, testing::ElementsAre("bfloat16", "int8", "bfloat16", "bfloat16"));
  EXPECT_TRUE(file.verify().ok());
  flip_bit(path, std::filesystem::file_size(path) / 2);
  LLM other = open_plain("bfloat16");
  EXPECT_FALSE(other.load_sequence(path).ok()) << "damage is found in every format";
  EXPECT_EQ(stat(other, "bytes_in_use"), 0);
}

TEST(SavedFormats, ASequenceOfAnotherPoolIsRefusedWithBothFormats) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "sequence.qkv";
  {
    ChunkedLLM llm = open_chunked("bfloat16");
    ASSERT_TRUE(mixed_sequence(llm).save(path).ok());
  }
  for (const std::string other : {"int8", "float32"}) {
    LLM llm = open_plain(other);
    const auto refused = llm.load_sequence(path);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
    EXPECT_THAT(refused.error().message, HasSubstr("bfloat16"));
    EXPECT_THAT(refused.error().message, HasSubstr(other));
    EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
  }
}

class CheckpointsOfFormats : public testing::Test {
 protected:
  CheckpointManager open(const LLM& llm, const CheckpointOptions& options = {}) {
    return must(CheckpointManager::open(llm, folder_.path() / "store", options));
  }
  static CheckpointInfo save(CheckpointManager& manager, const Sequence& sequence) {
    const NamedSequence named{"a", &sequence};
    return must(manager.save({&named, 1}));
  }

 private:
  const TemporaryFolder folder_;
};

TEST_F(CheckpointsOfFormats, WriteWhatIsNewAndGoOnWithEqualBits) {
  Ids ids;
  {
    ChunkedLLM llm = open_chunked("bfloat16");
    Sequence sequence = mixed_sequence(llm);
    CheckpointManager manager = open(llm.llm(), {.compress = Compression(Compression::kZstd)});
    const std::int64_t full = save(manager, sequence).written_bytes;
    EXPECT_TRUE(sequence.append(some_ids(40, 10)).ok());
    EXPECT_LT(save(manager, sequence).written_bytes, full);
    ids = next_ids(sequence);
  }
  for (const bool compacted : {false, true}) {
    LLM llm = open_plain("bfloat16");
    CheckpointManager manager = open(llm);
    if (compacted) {
      EXPECT_TRUE(manager.compact("checkpoint-2").ok());
    }
    auto loaded = must(manager.load("checkpoint-2"));
    EXPECT_EQ(next_ids(loaded[0].sequence), ids) << compacted;
  }
  for (const std::string other : {"int8", "float32"}) {
    LLM llm = open_plain(other);
    const auto refused = open(llm).load("checkpoint-2");
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
    EXPECT_THAT(refused.error().message, HasSubstr("bfloat16"));
    EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
  }
}

// All KV of the sequence is in int8, as chunks of a pool of floats may be, and its own is none.
TEST_F(CheckpointsOfFormats, ASequenceOfAnInt8PoolDoesNotGoOnInAPoolOfFloats) {
  {
    ChunkedLLM llm = open_chunked("int8");
    Sequence sequence = must(llm.sequence(register_all(llm, {})));
    CheckpointManager manager = open(llm.llm());
    save(manager, sequence);
  }
  LLM llm = open_plain("bfloat16");
  const auto refused = open(llm).load();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().message, HasSubstr("int8"));
  EXPECT_THAT(refused.error().message, HasSubstr("bfloat16"));
}

}  // namespace
}  // namespace quire
