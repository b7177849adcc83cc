// Chunks whose KV is stored block by block ("fp8" and "int4"): in a pool of floats they have the
// bits that a pool of that format gives them. They are composed, narrowed, counted and refused as
// others are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/temporary_folder.h"
#include "quire/chunk_types.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"
#include "tiny_checkpoint.h"

namespace quire {
namespace {

using testing::HasSubstr;

class SealedChunks : public testing::TestWithParam<std::string> {};

ChunkedLLM open_chunked(const std::string& kv_dtype, const std::string& store = "",
                        std::int64_t budget = std::int64_t{1} << 26, Compression compress = {}) {
  auto llm = ChunkedLLM::open(
      kModel,
      {.device = test_device(), .kv_dtype = kv_dtype, .kv_budget_bytes = budget, .threads = 2},
      {.store = store, .compress_store = compress});
  EXPECT_TRUE(llm.ok()) << (llm.ok() ? "" : llm.error().message);
  return std::move(llm).value();
}

std::string must_register(ChunkedLLM& llm, Ids ids, ChunkType type,
                          const std::string& kv_dtype = "") {
  ChunkContent content{.content = std::move(ids), .type = type};
  content.options.kv_dtype = kv_dtype;
  const auto id = llm.register_chunk(content);
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
  return id.ok() ? *id : std::string();
}

// Registers a system chunk and two contexts, of which one fills its blocks, in formats, and a
// query of less than a block.
CompositionSpec register_all(ChunkedLLM& llm, const std::vector<std::string>& formats,
                             ReuseMode mode) {
  CompositionSpec spec{.mode = mode};
  spec.system_chunk_id =
      must_register(llm, some_ids(40, 1), ChunkType::kSystemPrompt, formats.at(0));
  spec.context_chunk_ids = {
      must_register(llm, some_ids(75, 2), ChunkType::kContext, formats.at(1)),
      must_register(llm, some_ids(64, 3), ChunkType::kContext, formats.at(2))};
  spec.query_chunk_id = must_register(llm, some_ids(9, 4), ChunkType::kQuery);
  return spec;
}

std::vector<float> logits(ChunkedLLM& llm, const CompositionSpec& spec) {
  auto output = llm.logits_from_chunks(spec);
  EXPECT_TRUE(output.ok()) << (output.ok() ? "" : output.error().message);
  return output.ok() ? std::move(output->logits) : std::vector<float>();
}

// The order in which chunks are merged follows their ids, which name the pool's format. So logits
// are compared behind one chunk.
TEST_P(SealedChunks, InAPoolOfFloatsTheyHaveTheBitsOfAPoolOfTheirFormat) {
  ChunkedLLM own = open_chunked(GetParam());
  ChunkedLLM floats = open_chunked("bfloat16");
  const std::vector<std::string> formats(3, GetParam());
  CompositionSpec in_own = register_all(own, {"", "", ""}, ReuseMode::kAnchored);
  CompositionSpec in_floats = register_all(floats, formats, ReuseMode::kAnchored);
  const auto ids_of = [](const CompositionSpec& spec) {
    return std::vector<std::string>{spec.system_chunk_id, spec.context_chunk_ids[0],
                                    spec.context_chunk_ids[1]};
  };
  const std::vector<std::string> own_ids = ids_of(in_own), float_ids = ids_of(in_floats);
  for (std::size_t i = 0; i < own_ids.size(); ++i) {
    const ChunkInfo a = own.get_chunk(own_ids[i]).value();
    const ChunkInfo b = floats.get_chunk(float_ids[i]).value();
    EXPECT_EQ(a.kv_dtype, GetParam());
    EXPECT_EQ(b.kv_dtype, GetParam());
    EXPECT_GT(a.kv_error.value().key, 0);
    // A GPU adds up in any order.
    EXPECT_NEAR(a.kv_error->key, b.kv_error->key, on_gpu() ? 1e-9 : 0)
        << "of KV that was computed behind the anchor";
    EXPECT_NEAR(a.kv_error->value, b.kv_error->value, on_gpu() ? 1e-9 : 0);
    EXPECT_EQ(a.memory_bytes, b.memory_bytes) << "a last block that is not full is plain";
  }
  for (const std::size_t i : {0, 1}) {
    in_own.context_chunk_ids.clear();
    in_floats.context_chunk_ids.clear();
    if (i == 1) {
      in_own.mode = in_floats.mode = ReuseMode::kIndependent;
      in_own.system_chunk_id = in_floats.system_chunk_id = "";
      in_own.without_system = in_floats.without_system = true;
      in_own.context_chunk_ids = {own_ids[1]};
      in_floats.context_chunk_ids = {float_ids[1]};
    }
    const std::vector<float> want = logits(own, in_own);
    EXPECT_EQ(logits(floats, in_floats), want) << "the query is in an open block of both";
    EXPECT_EQ(logits(own, in_own), want) << "warm equals cold";
  }
}

TEST_P(SealedChunks, CompositionsWithThemAreCloseToPlainOnesAndNotTheSame) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const std::vector<float> plain =
      logits(llm, register_all(llm, {"", "", ""}, ReuseMode::kAnchored));
  const std::vector<float> mixed =
      logits(llm, register_all(llm, {"", GetParam(), "int8"}, ReuseMode::kAnchored));
  ASSERT_EQ(mixed.size(), plain.size());
  EXPECT_GT(distance(plain, mixed), 0);
  EXPECT_LT(distance(plain, mixed), 0.3);
}

TEST_P(SealedChunks, ABatchOfSeveralFormatsChangesNoTokenOfAnyRequest) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const std::string& format = GetParam();
  const std::vector<CompositionSpec> specs = {
      register_all(llm, {"", format, "int8"}, ReuseMode::kAnchored),
      register_all(llm, {format, format, format}, ReuseMode::kIndependent),
      register_all(llm, {"", "", ""}, ReuseMode::kAnchored)};
  const SamplingParams greedy{.temperature = 0, .max_tokens = 40, .ignore_eos = true};
  std::vector<Ids> alone;
  for (const CompositionSpec& spec : specs) {
    alone.push_back(llm.generate_from_chunks(spec, greedy).value().token_ids);
  }
  const auto together = llm.batch_generate_from_chunks(specs, {&greedy, 1}).value();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i].token_ids, alone[i]) << i;
  }
}

TEST_P(SealedChunks, NarrowingStoresFullBlocksInTheFormatAndComputesNothing) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const double block = stat(llm, "block_bytes");
  CompositionSpec spec = register_all(llm, {"", "", "int8"}, ReuseMode::kAnchored);
  const std::vector<float> plain = logits(llm, spec);
  const double computed = stat(llm, "tokens_computed");
  const bool from_int8 = GetParam() == "int4";  // int8 and fp8 have the same number of bits
  for (const std::size_t i : {0, 1}) {
    if (i == 1 && !from_int8) {
      continue;
    }
    const ChunkInfo info =
        llm.update_chunk(spec.context_chunk_ids[i], {.kv_dtype = GetParam()}).value();
    EXPECT_EQ(info.kv_dtype, GetParam());
    EXPECT_GT(info.kv_error.value().key, 0);
    EXPECT_LT(info.kv_error->key, 0.2);
    const double full = 2 * block * info.kv_error->bits_per_value / 16;
    EXPECT_NEAR(static_cast<double>(info.memory_bytes), full + (i == 0 ? block : 0), 1);
    EXPECT_EQ(llm.get_chunk(spec.context_chunk_ids[i]).error().code, ErrorCode::kNotFound);
    spec.context_chunk_ids[i] = info.chunk_id;
  }
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  const std::vector<float> narrowed = logits(llm, spec);
  EXPECT_GT(distance(plain, narrowed), 0);
  EXPECT_LT(distance(plain, narrowed), 0.3);
}

TEST_P(SealedChunks, WideningIsRefusedAndTheChunkStaysAsItIs) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const std::string id = must_register(llm, some_ids(70, 2), ChunkType::kContext, GetParam());
  for (const std::string wider : {"bfloat16", "int8", "float32"}) {
    const auto refused = llm.update_chunk(id, {.kv_dtype = wider});
    ASSERT_FALSE(refused.ok()) << wider;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr('"' + wider + '"'));
  }
  EXPECT_EQ(llm.get_chunk(id)->kv_dtype, GetParam());
  if (GetParam() == "fp8") {
    const ChunkInfo narrower = must(llm.update_chunk(id, {.kv_dtype = "int4"}));
    EXPECT_EQ(narrower.kv_dtype, "int4");
    EXPECT_LT(narrower.kv_error.value().key, 0.2);
  }
}

// A later process reads what the first one computed, and computes nothing.
TEST_P(SealedChunks, AStoreGivesThemBackWithEqualBitsWhateverItsCodec) {
  const TemporaryFolder folder;
  for (const std::string& pool : {std::string("bfloat16"), GetParam()}) {
    for (const Compression compress :
         {Compression(), Compression(Compression::kZstd), Compression(Compression::kLz4)}) {
      const std::string format = pool == GetParam() ? "" : GetParam();
      const std::string store =
          folder.path() / (pool + std::to_string(static_cast<int>(compress.codec())));
      std::vector<float> want;
      std::vector<ChunkInfo> chunks;
      CompositionSpec spec;
      {
        ChunkedLLM llm = open_chunked(pool, store, std::int64_t{1} << 26, compress);
        spec = register_all(llm, {format, format, format}, ReuseMode::kAnchored);
        want = logits(llm, spec);
        ASSERT_TRUE(llm.flush_store().ok());
        chunks = must(llm.list_chunks());
      }
      ChunkedLLM later = open_chunked(pool, store);
      const double computed = stat(later, "tokens_computed");
      EXPECT_EQ(logits(later, spec), want) << pool;
      EXPECT_EQ(stat(later, "tokens_computed") - computed, 9) << "the query alone";
      for (const ChunkInfo& chunk : chunks) {
        const ChunkInfo now = must(later.get_chunk(chunk.chunk_id));
        EXPECT_EQ(now.kv_dtype, chunk.kv_dtype);
        EXPECT_EQ(now.memory_bytes, chunk.memory_bytes);
        EXPECT_EQ(now.kv_error.has_value(), chunk.kv_error.has_value());
      }
      ASSERT_TRUE(later.clear_chunks().ok());
      EXPECT_EQ(stat(later, "bytes_in_use"), 0);
    }
  }
}

TEST_P(SealedChunks, AStoreOfAnotherFormatIsAMissAndDamageIsComputedAgain) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  CompositionSpec spec;
  std::vector<float> want;
  {
    ChunkedLLM llm = open_chunked(GetParam(), store);
    spec = register_all(llm, {"", "", ""}, ReuseMode::kAnchored);
    want = logits(llm, spec);
    ASSERT_TRUE(llm.flush_store().ok());
  }
  {
    ChunkedLLM other = open_chunked("bfloat16", store);
    EXPECT_TRUE(must(other.list_chunks()).empty());
    const CompositionSpec own = register_all(other, {"", "", ""}, ReuseMode::kAnchored);
    EXPECT_NE(own.system_chunk_id, spec.system_chunk_id);
    EXPECT_GT(stat(other, "tokens_computed"), 0);
    ASSERT_TRUE(other.flush_store().ok());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(store)) {
    if (entry.path().extension() == ".qkv") {
      flip_bit(entry.path(), entry.file_size() - 40);
    }
  }
  ChunkedLLM later = open_chunked(GetParam(), store);
  EXPECT_EQ(register_all(later, {"", "", ""}, ReuseMode::kAnchored).system_chunk_id,
            spec.system_chunk_id);
  EXPECT_EQ(logits(later, spec), want);
  EXPECT_GT(stat(later, "tokens_computed"), 9);
}

TEST_P(SealedChunks, ANarrowedChunkIsInTheStoreUnderItsOwnId) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  std::vector<float> want;
  CompositionSpec spec;
  {
    ChunkedLLM llm = open_chunked("bfloat16", store);
    spec = register_all(llm, {"", "", ""}, ReuseMode::kAnchored);
    spec.context_chunk_ids[0] =
        must(llm.update_chunk(spec.context_chunk_ids[0], {.kv_dtype = GetParam()})).chunk_id;
    want = logits(llm, spec);
    ASSERT_TRUE(llm.flush_store().ok());
  }
  ChunkedLLM later = open_chunked("bfloat16", store);
  const double computed = stat(later, "tokens_computed");
  EXPECT_EQ(logits(later, spec), want);
  EXPECT_EQ(stat(later, "tokens_computed") - computed, 9);
  EXPECT_EQ(must(later.get_chunk(spec.context_chunk_ids[0])).kv_dtype, GetParam());
}

TEST_P(SealedChunks, ASequenceBehindThemIsSavedAndGoesOnInAnotherProcess) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "sequence.qkv";
  for (const std::string& pool : {std::string("bfloat16"), GetParam()}) {
    const std::string format = pool == GetParam() ? "" : GetParam();
    ChunkedLLM llm = open_chunked(pool);
    Sequence sequence =
        must(llm.sequence(register_all(llm, {format, format, ""}, ReuseMode::kAnchored)));
    EXPECT_TRUE(sequence.append(some_ids(40, 9)).ok());
    ASSERT_TRUE(sequence.save(path).ok());
    for (const bool wait : {true, false}) {
      ChunkedLLM other = open_chunked(pool);
      Sequence loaded = must(other.llm().load_sequence(path, {.wait = wait}));
      EXPECT_EQ(must(loaded.logits()), must(sequence.logits())) << pool;
      EXPECT_TRUE(loaded.append(some_ids(40, 10)).ok());
      Sequence longer = must(sequence.fork());
      EXPECT_TRUE(longer.append(some_ids(40, 10)).ok());
      EXPECT_EQ(must(loaded.logits()), must(longer.logits())) << pool;
      loaded.close();
      EXPECT_EQ(stat(other, "bytes_in_use"), 0);
    }
  }
}

TEST_P(SealedChunks, ASmallPoolServesThemBesideRequestsAndGivesEverythingBack) {
  ChunkedLLM probe = open_chunked("bfloat16");
  const auto budget = static_cast<std::int64_t>(24 * stat(probe, "block_bytes"));
  ChunkedLLM llm = open_chunked("bfloat16", "", budget);
  const SamplingParams greedy{.temperature = 0, .max_tokens = 4, .ignore_eos = true};
  const std::string formats[] = {"", GetParam(), "int8"};
  for (std::uint32_t i = 0; i < 24; ++i) {
    must_register(llm, some_ids(40 + 13 * (i % 5), i), ChunkType::kContext, formats[i % 3]);
    ASSERT_TRUE(llm.llm().generate(some_ids(90, 100 + i), greedy).ok());
  }
  ASSERT_TRUE(llm.clear_chunks().ok());
  EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
}

// An int4 group has fp16 scales, which do not reach so far. fp8 has fp32 scales, which do.
TEST(SealedKVThatCannotBeHeld, FailsItsRequestWhenTheBlockIsFullAndNothingOfItStays) {
  const std::filesystem::path model =
      chunks::write_checkpoint("refused_block", {.with_secrets = true, .secret_values = 1e9f});
  Ids bad(40, 7);
  bad[20] = chunks::kFirstSecret;
  const Ids good(40, 7);
  const SamplingParams greedy{.temperature = 0, .max_tokens = 4, .ignore_eos = true};
  const auto options = [](const std::string& kv_dtype) {
    return LLMOptions{
        .device = test_device(), .dtype = exact_dtype(), .kv_dtype = kv_dtype, .threads = 2};
  };
  LLM llm = LLM::open(model, options("int4")).value();
  const Ids want = llm.generate(good, greedy).value().token_ids;
  ASSERT_TRUE(llm.clear_prefix_cache().ok());
  const auto refused = llm.generate(bad, greedy);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("cannot hold"));
  EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
  EXPECT_EQ(stat(llm, "blocks_cached"), 0);
  EXPECT_EQ(llm.generate(good, greedy).value().token_ids, want);
  EXPECT_TRUE(llm.generate(Ids(bad.begin(), bad.begin() + 25), greedy).ok())
      << "a block that is not full is plain";
  LLM wide = LLM::open(model, options("fp8")).value();
  EXPECT_TRUE(wide.generate(bad, greedy).ok());
  ChunkedLLM floats = ChunkedLLM::open(model, options("auto"), {}).value();
  ChunkContent content{.content = bad, .type = ChunkType::kContext};
  const std::string chunk = floats.register_chunk(content).value();
  EXPECT_EQ(floats.update_chunk(chunk, {.kv_dtype = "int4"}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(floats.get_chunk(chunk)->kv_dtype, exact_dtype());
  content.options.kv_dtype = "int4";
  EXPECT_EQ(floats.register_chunk(content).error().code, ErrorCode::kUnsupported);
}

INSTANTIATE_TEST_SUITE_P(Formats, SealedChunks, testing::Values("fp8", "int4"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

}  // namespace
}  // namespace quire
