// Chunks of models whose layers carry a state, composed by their maps on that state. Oracles:
// compositions that transformers computed (tests/golden/model/make_compositions.py), and plain
// prompts where a composition leaves nothing out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/json.h"
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::HasSubstr;
using Logits = std::vector<float>;

class StateChunks : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static std::string path() {
    return source_path("tests/golden/model/") + GetParam();
  }
  [[nodiscard]] static ChunkedLLM open(LLMOptions options = {}, ChunkCacheOptions chunks = {}) {
    options.threads = 2;
    options.dtype = "float32";
    return must(ChunkedLLM::open(path(), options, chunks));
  }
};

std::string add(ChunkedLLM& llm, const Ids& ids, ChunkType type = ChunkType::kContext) {
  return must(llm.register_chunk({.content = ids, .type = type}));
}

// Registers the first of `pieces` as system chunk, the last as query.
CompositionSpec spec_of(ChunkedLLM& llm, const std::vector<Ids>& pieces, ReuseMode mode) {
  CompositionSpec spec{.mode = mode};
  spec.system_chunk_id = add(llm, pieces.front(), ChunkType::kSystemPrompt);
  for (std::size_t i = 1; i + 1 < pieces.size(); ++i) {
    spec.context_chunk_ids.push_back(add(llm, pieces[i]));
  }
  spec.query_chunk_id = add(llm, pieces.back(), ChunkType::kQuery);
  return spec;
}

std::vector<Ids> pieces_of(const std::vector<std::size_t>& lengths) {
  std::vector<Ids> pieces;
  for (const std::size_t length : lengths) {
    pieces.push_back(small_ids(length, 60 + static_cast<std::uint32_t>(pieces.size())));
  }
  return pieces;
}

Logits logits_of(ChunkedLLM& llm, const CompositionSpec& spec) {
  return must(llm.logits_from_chunks(spec)).logits;
}

// Returns the last rows of a plain prompt.
Logits plain_rows(ChunkedLLM& llm, const std::vector<Ids>& pieces) {
  Ids all;
  for (const Ids& ids : pieces) {
    all = joined(std::move(all), ids);
  }
  const Logits rows = must(llm.llm().forward(all, ForwardReuse::kNone)).logits;
  const std::size_t vocab = rows.size() / all.size();
  return {rows.end() - static_cast<std::ptrdiff_t>(pieces.back().size() * vocab), rows.end()};
}

base::Json json_of(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return base::parse_json(text, path).value();
}

std::int32_t layers_of(const std::string& folder) {
  const base::Json config = json_of(folder + "/config.json");
  const base::JsonView kinds = config.view().find("layers_block_type");  // of nemotron_h
  return kinds.is_array()
             ? static_cast<std::int32_t>(kinds.size())
             : static_cast<std::int32_t>(config.view().find("num_hidden_layers").as_int());
}

struct Golden {
  std::vector<Ids> pieces;
  Logits anchored, independent;
};

Golden golden_of(const std::string& folder) {
  const base::Json json = json_of(folder + "/composition.json");
  Golden golden;
  for (const base::JsonView piece : json.view().find("pieces").elements()) {
    golden.pieces.push_back(base::read_json_list<TokenId>(piece).value());
  }
  const auto rows = [&](const char* name) {
    Logits logits;
    for (const base::JsonView row : json.view().find(name).elements()) {
      for (const base::JsonView value : row.elements()) {
        logits.push_back(static_cast<float>(value.as_double()));
      }
    }
    return logits;
  };
  golden.anchored = rows("anchored");
  golden.independent = rows("independent");
  return golden;
}

TEST_P(StateChunks, ComposeToWhatTransformersComputes) {
  ChunkedLLM llm = open();
  const Golden golden = golden_of(path());
  CompositionSpec spec = spec_of(llm, golden.pieces, ReuseMode::kAnchored);
  EXPECT_LT(deviation(golden.anchored, logits_of(llm, spec)), 5e-5);
  spec.mode = ReuseMode::kIndependent;
  EXPECT_LT(deviation(golden.independent, logits_of(llm, spec)), 5e-5);
}

// KV in 16 bits rounds keys, values and maps. The bound is what rounding keys and values alone may
// cost, with maps twice that at most.
TEST_P(StateChunks, ComposeNearlyToThatFromMapsIn16Bits) {
  ChunkedLLM llm = open({.kv_dtype = "bfloat16"});
  const Golden golden = golden_of(path());
  CompositionSpec spec = spec_of(llm, golden.pieces, ReuseMode::kAnchored);
  EXPECT_LT(deviation(golden.anchored, logits_of(llm, spec)), 0.02);
  spec.mode = ReuseMode::kIndependent;
  EXPECT_LT(deviation(golden.independent, logits_of(llm, spec)), 0.02);
}

// A pool of codes opens some blocks as floats, so a chunk may have that format, too.
TEST_P(StateChunks, ComposeInPoolsOfCodesNearlyToThat) {
  const Golden golden = golden_of(path());
  for (const std::string kv_dtype : {"int8", "fp8", "int4"}) {
    ChunkedLLM llm = open({.kv_dtype = kv_dtype});
    CompositionSpec spec = spec_of(llm, golden.pieces, ReuseMode::kAnchored);
    EXPECT_LT(deviation(golden.anchored, logits_of(llm, spec)), 0.03) << kv_dtype;
    if (kv_dtype != "int8") {
      const ChunkContent plain{.content = golden.pieces[1], .options = {.kv_dtype = "float32"}};
      spec.context_chunk_ids[0] = must(llm.register_chunk(plain));
      EXPECT_LT(deviation(golden.anchored, logits_of(llm, spec)), 0.03) << kv_dtype;
    }
  }
}

TEST_P(StateChunks, ContinueBlocksOfAWholeChunkAlone) {
  ChunkedLLM llm = open();
  const CompositionSpec spec = spec_of(llm, pieces_of({20, 8}), ReuseMode::kAnchored);
  const Ids query = must(llm.get_chunk(spec.query_chunk_id)).token_ids;
  const SamplingParams params = greedy_to_length(6);
  const BlockList blocks = must(llm.chunk_blocks(spec.system_chunk_id));
  EXPECT_EQ(must(llm.llm().infer_from_blocks(blocks, query, params)).token_ids,
            must(llm.generate_from_chunks(spec, params)).token_ids);
  const auto refused = llm.llm().infer_from_blocks(must(blocks.first(19)), query, params);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().message, HasSubstr("use whole chunks"));
}

TEST_P(StateChunks, GiveThePlainPromptWhereOneContextStandsBehindItsAnchor) {
  ChunkedLLM llm = open();
  for (const std::size_t length : {1, 2, 3, 4, 17, 33, 70}) {
    const std::vector<Ids> pieces = pieces_of({5 + length % 7, length, 6});
    const CompositionSpec spec = spec_of(llm, pieces, ReuseMode::kAnchored);
    EXPECT_LT(distance(plain_rows(llm, pieces), logits_of(llm, spec)), 2e-5) << length;
  }
}

TEST_P(StateChunks, GiveThePlainPromptWhereEachContextStandsBehindAllBefore) {
  ChunkedLLM llm = open();
  const std::vector<Ids> pieces = pieces_of({7, 33, 3, 20, 6});
  CompositionSpec spec{.system_chunk_id = add(llm, pieces[0], ChunkType::kSystemPrompt)};
  std::vector<std::string> anchor = {spec.system_chunk_id};
  for (std::size_t i = 1; i + 1 < pieces.size(); ++i) {
    anchor.push_back(
        must(llm.register_chunk({.content = pieces[i], .options = {.anchor = anchor_of(anchor)}})));
    spec.context_chunk_ids.push_back(anchor.back());
  }
  spec.query_chunk_id = add(llm, pieces.back(), ChunkType::kQuery);
  EXPECT_LT(distance(plain_rows(llm, pieces), logits_of(llm, spec)), 2e-5);
}

TEST_P(StateChunks, HaveTheSameBitsWhateverWasRegisteredBeforeAndHowItWasCut) {
  const std::vector<Ids> pieces = pieces_of({30, 41, 3, 26, 9});
  ChunkedLLM cold = open();
  const CompositionSpec spec = spec_of(cold, pieces, ReuseMode::kAnchored);
  const Logits wanted = logits_of(cold, spec);
  EXPECT_EQ(logits_of(cold, spec), wanted) << "composed again";
  ChunkedLLM other = open({.block_tokens = 8, .max_batch_tokens = 7});
  (void)add(other, pieces[0], ChunkType::kSystemPrompt);
  for (const std::size_t piece : {3, 1, 2}) {
    (void)add(other, pieces[piece]);
  }
  (void)must(other.delete_chunk(spec.context_chunk_ids[1]));
  EXPECT_EQ(logits_of(other, spec_of(other, pieces, ReuseMode::kAnchored)), wanted);
}

TEST_P(StateChunks, ComposeInEachOrderAsIfNoOtherOrderWasThere) {
  ChunkedLLM llm = open();
  std::vector<Ids> pieces = pieces_of({12, 25, 3, 31, 7});
  CompositionSpec spec = spec_of(llm, pieces, ReuseMode::kIndependent);
  const Logits first = logits_of(llm, spec);
  std::swap(pieces[1], pieces[3]);
  std::swap(spec.context_chunk_ids[0], spec.context_chunk_ids[2]);
  const Logits swapped = logits_of(llm, spec);
  EXPECT_NE(first, swapped) << "a state depends on the order";
  ChunkedLLM other = open();
  EXPECT_EQ(logits_of(other, spec_of(other, pieces, ReuseMode::kIndependent)), swapped);
  spec.positions = Positions::kParallel;
  EXPECT_TRUE(llm.logits_from_chunks(spec).ok());
}

TEST_P(StateChunks, GiveTheSameIdsInBatchesForksAndRollbacks) {
  ChunkedLLM llm = open();
  const CompositionSpec spec = spec_of(llm, pieces_of({20, 33, 5, 8}), ReuseMode::kAnchored);
  const SamplingParams params = greedy_to_length(12);
  const GenerationOutput alone = must(llm.generate_from_chunks(spec, params));
  EXPECT_EQ(alone.reuse.grade, ReuseGrade::kApproximate);
  EXPECT_EQ(alone.usage.cached_tokens, 58);
  const std::vector<CompositionSpec> many(5, spec);
  for (const GenerationOutput& each : must(llm.batch_generate_from_chunks(many, {&params, 1}))) {
    EXPECT_EQ(each.token_ids, alone.token_ids);
  }
  Sequence sequence = must(llm.sequence(spec));
  const Logits before = must(sequence.logits());
  EXPECT_EQ(must(sequence.generate(params)).token_ids, alone.token_ids);
  Sequence fork = must(sequence.fork());
  ASSERT_TRUE(fork.rollback_to(std::ssize(fork.tokens()) - 12).ok());
  EXPECT_EQ(must(fork.logits()), before);
  EXPECT_EQ(must(fork.generate(params)).token_ids, alone.token_ids);
}

// Oracles: the plain prompt, since the first context has seen all that stands before it. And for
// the second one, the same tokens behind the blocks of those before it.
TEST_P(StateChunks, RollBackToEveryLengthAndComputeTheChunkThatIsCutAgain) {
  ChunkedLLM llm = open();
  const std::vector<Ids> pieces = pieces_of({20, 33, 25, 8});
  const CompositionSpec spec = spec_of(llm, pieces, ReuseMode::kAnchored);
  const auto last_row = [&](Sequence& sequence) { return must(sequence.logits()); };
  for (const std::int64_t length : {1, 7, 19, 20, 21, 40, 53, 54, 60, 78}) {
    Sequence sequence = must(llm.sequence(spec));
    const Ids ids = sequence.tokens();
    ASSERT_TRUE(sequence.rollback_to(length).ok()) << length;
    const Ids kept = sequence.tokens();
    EXPECT_EQ(kept, Ids(ids.begin(), ids.begin() + length));
    const std::int64_t whole_chunks = length > 53 ? 53 : length > 20 ? 20 : 0;
    EXPECT_LE(sequence.owed_tokens(), length - 1 - whole_chunks) << length;
    EXPECT_GT(sequence.owed_tokens(), length > 54 ? 0 : -1) << length;
    if (length <= 53) {
      const Logits plain =
          must(llm.llm().forward(kept, ForwardReuse::kNone, ForwardRows::kLast)).logits;
      EXPECT_LT(distance(plain, last_row(sequence)), 3e-5) << length;
    } else {
      Sequence whole = must(llm.sequence(spec));
      Sequence other = must(llm.llm().sequence(must(must(whole.blocks()).first(53)),
                                               Ids(kept.begin() + 53, kept.end())));
      EXPECT_LT(distance(last_row(other), last_row(sequence)), 3e-5) << length;
    }
    EXPECT_EQ(sequence.grade(), length <= 20 ? ReuseGrade::kExact : ReuseGrade::kApproximate);
    ASSERT_TRUE(sequence.append(small_ids(4, 1)).ok());
    EXPECT_EQ(sequence.num_tokens(), length + 4);
    EXPECT_EQ(sequence.owed_tokens(), 0);
  }
  EXPECT_EQ(stat(llm, "states_in_use"), 0);
}

TEST_P(StateChunks, GiveTheSameIdsWhenTheyArePreempted) {
  const std::vector<Ids> pieces = pieces_of({9, 14, 3, 8});
  const SamplingParams params = greedy_to_length(200);
  ChunkedLLM large = open();
  const Ids wanted =
      must(large.generate_from_chunks(spec_of(large, pieces, ReuseMode::kAnchored), params))
          .token_ids;
  ChunkedLLM llm = open({.block_tokens = 8, .kv_budget_bytes = std::int64_t{400} << 10});
  const std::vector<CompositionSpec> many(6, spec_of(llm, pieces, ReuseMode::kAnchored));
  for (const GenerationOutput& each : must(llm.batch_generate_from_chunks(many, {&params, 1}))) {
    EXPECT_EQ(each.token_ids, wanted);
  }
  EXPECT_GT(stat(llm, "preemptions"), 0);
}

TEST_P(StateChunks, CountTheirMapsInTheBudgetUntilTheyAreDeleted) {
  ChunkedLLM llm = open({.block_tokens = 16});
  const double free = stat(llm, "blocks_free");
  const double block_bytes = stat(llm, "block_bytes");
  const std::string id = add(llm, small_ids(33, 1), ChunkType::kSystemPrompt);
  const ChunkInfo info = must(llm.get_chunk(id));
  const double blocks = free - stat(llm, "blocks_free");
  EXPECT_GT(blocks, 3) << "three of KV, and the maps";
  EXPECT_EQ(static_cast<double>(info.memory_bytes), blocks * block_bytes);
  EXPECT_EQ(must(llm.chunk_stats()).memory_used_bytes, info.memory_bytes);
  const CompositionSpec spec{.system_chunk_id = id,
                             .query_chunk_id = add(llm, small_ids(4, 2), ChunkType::kQuery)};
  const CompositionInfo preview = must(llm.preview_composition(spec));
  EXPECT_EQ(preview.num_blocks, static_cast<std::int64_t>(blocks) + 1);
  EXPECT_EQ(preview.new_blocks, 1);
  EXPECT_EQ(preview.grade, ReuseGrade::kApproximate);
  ASSERT_TRUE(must(llm.delete_chunk(id)));
  EXPECT_EQ(stat(llm, "blocks_in_use"), 0);
  EXPECT_EQ(stat(llm, "states_in_use"), 0);
}

TEST_P(StateChunks, AreForeseenWithTheirMapsByAPreview) {
  ChunkedLLM llm = open();
  const CompositionSpec spec = spec_of(llm, pieces_of({20, 33, 5, 8}), ReuseMode::kIndependent);
  const CompositionInfo before = must(llm.preview_composition(spec));
  EXPECT_EQ(before.tokens_computed, 38 + 8) << "contexts stand behind their anchor so far";
  const double in_use = stat(llm, "blocks_in_use");
  (void)logits_of(llm, spec);
  EXPECT_EQ(stat(llm, "blocks_in_use") - in_use, static_cast<double>(before.new_blocks) - 1);
  const CompositionInfo after = must(llm.preview_composition(spec));
  EXPECT_EQ(after.new_blocks, 1);
  EXPECT_EQ(after.num_blocks, before.num_blocks);
}

TEST_P(StateChunks, MakeRoomForOthersWithTheirMaps) {
  ChunkedLLM llm = open({.block_tokens = 16, .kv_budget_bytes = std::int64_t{2} << 20});
  for (std::uint32_t i = 0; i < 40; ++i) {
    (void)add(llm, small_ids(40, i), ChunkType::kSystemPrompt);
  }
  const ChunkStats stats = must(llm.chunk_stats());
  EXPECT_LE(stats.memory_used_bytes, stats.memory_limit_bytes);
  const std::string pinned = must(llm.register_chunk({.content = small_ids(40, 50),
                                                      .type = ChunkType::kSystemPrompt,
                                                      .options = {.pinned = true}}));
  for (std::uint32_t i = 60; i < 100; ++i) {
    (void)add(llm, small_ids(40, i), ChunkType::kSystemPrompt);
  }
  EXPECT_TRUE(llm.get_chunk(pinned).ok());
  EXPECT_GT(must(llm.chunk_stats()).evictions, 0);
}

TEST_P(StateChunks, StandBehindABosSink) {
  ChunkedLLM llm = open();
  const std::vector<Ids> pieces = pieces_of({20, 33, 8});
  CompositionSpec spec = spec_of(llm, pieces, ReuseMode::kIndependent);
  const Logits without = logits_of(llm, spec);
  spec.bos_sink = true;
  const Logits with = logits_of(llm, spec);
  EXPECT_NE(with, without);
  EXPECT_EQ(logits_of(llm, spec), with);
}

TEST_P(StateChunks, ComeBackFromAStoreWithTheirMaps) {
  const TemporaryFolder folder;
  const std::vector<Ids> pieces = pieces_of({20, 33, 5, 8});
  const ChunkCacheOptions chunks{.store = folder.path().string()};
  CompositionSpec spec;
  Logits wanted;
  std::int64_t bytes = 0;
  {
    ChunkedLLM llm = open({}, chunks);
    spec = spec_of(llm, pieces, ReuseMode::kAnchored);
    wanted = logits_of(llm, spec);
    bytes = must(llm.get_chunk(spec.context_chunk_ids[0])).memory_bytes;
  }
  ChunkedLLM llm = open({}, chunks);
  EXPECT_EQ(must(llm.preview_composition(spec)).tokens_computed, 8);
  EXPECT_EQ(logits_of(llm, spec), wanted);
  EXPECT_EQ(stat(llm, "tokens_computed"), 8) << "the query alone";
  EXPECT_EQ(must(llm.get_chunk(spec.context_chunk_ids[0])).memory_bytes, bytes);
  spec.mode = ReuseMode::kIndependent;
  const Logits apart = logits_of(llm, spec);
  ChunkedLLM other = open();
  EXPECT_EQ(logits_of(other, spec_of(other, pieces, ReuseMode::kIndependent)), apart);
}

// Codes of KV alone: maps stay as they are. The oracle is what transformers computed, and a store.
TEST_P(StateChunks, HaveAFormatOfTheirOwnBesideMaps) {
  const Golden golden = golden_of(path());
  const TemporaryFolder folder;
  const ChunkCacheOptions stored{.store = folder.path().string()};
  const auto with = [&](ChunkedLLM& llm, const CompositionSpec& plain,
                        const std::string& kv_dtype) {
    CompositionSpec spec = plain;
    for (std::size_t i = 0; i < spec.context_chunk_ids.size(); ++i) {
      spec.context_chunk_ids[i] = must(
          llm.register_chunk({.content = golden.pieces[i + 1], .options = {.kv_dtype = kv_dtype}}));
    }
    return spec;
  };
  std::vector<Logits> computed;
  {
    ChunkedLLM llm = open({.block_tokens = 32}, stored);
    const CompositionSpec plain = spec_of(llm, golden.pieces, ReuseMode::kAnchored);
    const ChunkInfo own = must(llm.get_chunk(plain.context_chunk_ids[0]));
    for (const std::string kv_dtype : {"int8", "fp8", "int4"}) {
      const CompositionSpec spec = with(llm, plain, kv_dtype);
      computed.push_back(logits_of(llm, spec));
      EXPECT_LT(deviation(golden.anchored, computed.back()), 0.03) << kv_dtype;
      EXPECT_EQ(must(llm.preview_composition(spec)).grade, ReuseGrade::kApproximate);
      const ChunkInfo coded = must(llm.get_chunk(spec.context_chunk_ids[0]));
      EXPECT_EQ(coded.kv_dtype, kv_dtype);
      EXPECT_LT(coded.memory_bytes, own.memory_bytes) << kv_dtype;
      const std::string file = (folder.path() / ("sequence_" + kv_dtype)).string();
      Sequence behind = must(llm.sequence(spec));
      ASSERT_TRUE(behind.save(file).ok()) << kv_dtype;
      Sequence loaded = must(llm.llm().load_sequence(file));
      EXPECT_EQ(must(loaded.logits()), must(behind.logits())) << kv_dtype;
    }
    CompositionSpec narrowed = plain;
    for (std::string& id : narrowed.context_chunk_ids) {
      id = must(llm.update_chunk(id, {.kv_dtype = "int8"})).chunk_id;
    }
    EXPECT_LT(deviation(golden.anchored, logits_of(llm, narrowed)), 0.03);
  }
  ChunkedLLM llm = open({.block_tokens = 32}, stored);
  const CompositionSpec plain = spec_of(llm, golden.pieces, ReuseMode::kAnchored);
  const std::int64_t before = stat(llm, "tokens_computed");
  std::size_t i = 0;
  for (const std::string kv_dtype : {"int8", "fp8", "int4"}) {
    EXPECT_EQ(logits_of(llm, with(llm, plain, kv_dtype)), computed[i++]) << kv_dtype;
  }
  EXPECT_EQ(stat(llm, "tokens_computed") - before, 3 * std::ssize(golden.pieces.back()))
      << "queries alone";
}

TEST_P(StateChunks, SayWhatIsUsedByKindOfLayer) {
  ChunkedLLM llm = open();
  CompositionSpec spec = spec_of(llm, pieces_of({20, 33, 8}), ReuseMode::kAnchored);
  const auto context = [&] { return must(llm.explain(spec))[1]; };
  EXPECT_THAT(context().layers, HasSubstr("attention: stored keys and values; "));
  EXPECT_THAT(context().layers, HasSubstr("inputs from behind the anchor"));
  EXPECT_TRUE(context().hit);
  spec.mode = ReuseMode::kIndependent;
  EXPECT_THAT(context().layers, HasSubstr("inputs of the chunk alone"));
  EXPECT_FALSE(context().hit);
  spec.mode = ReuseMode::kExact;
  EXPECT_EQ(context().layers, "");
}

// Oracle: the sequence that was not saved.
TEST_P(StateChunks, AreSavedAsPartOfASequence) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "sequence").string();
  const SamplingParams params = greedy_to_length(6);
  for (const std::size_t query : {8, 1}) {  // the last has no KV of its own
    ChunkedLLM llm = open();
    const CompositionSpec spec = spec_of(llm, pieces_of({20, 33, 5, query}), ReuseMode::kAnchored);
    Sequence sequence = must(llm.sequence(spec));
    if (query > 1) {
      must(sequence.generate(params));
    }
    ASSERT_TRUE(sequence.save(path).ok());
    ChunkedLLM other = open();
    Sequence loaded = must(other.llm().load_sequence(path));
    EXPECT_EQ(loaded.tokens(), sequence.tokens());
    EXPECT_EQ(loaded.grade(), ReuseGrade::kApproximate);
    EXPECT_EQ(stat(other, "tokens_computed"), 0);
    EXPECT_EQ(must(loaded.logits()), must(sequence.logits()));
    Sequence fork = must(loaded.fork());
    EXPECT_EQ(must(loaded.generate(params)).token_ids, must(sequence.generate(params)).token_ids);
    if (query > 1) {  // from the maps, which the file has too
      ASSERT_TRUE(fork.rollback_to(std::ssize(fork.tokens()) - 9).ok());
      ASSERT_TRUE(sequence.rollback_to(std::ssize(fork.tokens())).ok());
      EXPECT_EQ(must(fork.logits()), must(sequence.logits()));
    }
  }
}

// Oracle: the sequence that was not saved.
TEST_P(StateChunks, AreSavedInCheckpointsOfSequences) {
  const TemporaryFolder folder;
  const std::string store = folder.path().string();
  const SamplingParams params = greedy_to_length(6);
  ChunkedLLM llm = open();
  const CompositionSpec spec = spec_of(llm, pieces_of({20, 33, 5, 8}), ReuseMode::kAnchored);
  Sequence sequence = must(llm.sequence(spec));
  must(sequence.generate(params));
  CheckpointManager checkpoints = must(CheckpointManager::open(llm.llm(), store));
  const NamedSequence named{.name = "a", .sequence = &sequence};
  const CheckpointInfo saved = must(checkpoints.save({&named, 1}));
  EXPECT_EQ(saved.sequences.at(0).tokens, std::ssize(sequence.tokens()) - 1);
  ChunkedLLM other = open();
  CheckpointManager read = must(CheckpointManager::open(other.llm(), store));
  std::vector<LoadedSequence> loaded = must(read.load());
  EXPECT_EQ(must(loaded.at(0).sequence.logits()), must(sequence.logits()));
  EXPECT_EQ(stat(other, "tokens_computed"), 1);
}

TEST_P(StateChunks, AreNotSavedAsPartOfASequenceInPoolsOfCodes) {
  ChunkedLLM llm = open({.kv_dtype = "int8"});
  const CompositionSpec spec = spec_of(llm, pieces_of({20, 33, 8}), ReuseMode::kAnchored);
  const TemporaryFolder folder;
  Sequence sequence = must(llm.sequence(spec));
  const Status refused = sequence.save((folder.path() / "sequence").string());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().message, HasSubstr("KV is stored as codes"));
}

TEST_P(StateChunks, EqualModeExactWithAllLayersComputedAgain) {
  ChunkedLLM llm = open({.max_batch_tokens = 16});
  const std::vector<Ids> pieces = pieces_of({20, 33, 5, 8});
  CompositionSpec spec = spec_of(llm, pieces, ReuseMode::kBlend);
  const std::int32_t layers = layers_of(path());
  spec.blend.layers = LayerRange{.first = 0, .last = layers};
  const Logits exact = plain_rows(llm, pieces);
  EXPECT_LT(distance(exact, logits_of(llm, spec)), 2e-5);
  spec.blend.base = ReuseMode::kIndependent;
  EXPECT_LT(distance(exact, logits_of(llm, spec)), 2e-5);
  spec.mode = ReuseMode::kAnchored;
  EXPECT_GT(distance(exact, logits_of(llm, spec)), 1e-4) << "there was something to bring back";
  EXPECT_EQ(stat(llm, "states_in_use"), 0);
}

// One context has seen everything before it, so what any layers compute again is what was there.
TEST_P(StateChunks, StayThePlainPromptWhateverLayersOneContextComputesAgain) {
  const std::vector<Ids> pieces = pieces_of({20, 33, 8});
  ChunkedLLM llm = open();
  const Logits plain = plain_rows(llm, pieces);
  const std::int32_t layers = layers_of(path());
  for (std::int32_t first = 0; first < layers; ++first) {
    CompositionSpec spec = spec_of(llm, {pieces.front(), pieces.back()}, ReuseMode::kBlend);
    ChunkContent content{.content = pieces[1]};
    if (first > 0) {
      content.options.keep_hidden = first;
    }
    spec.context_chunk_ids = {must(llm.register_chunk(content))};
    for (std::int32_t last = first + 1; last <= layers; ++last) {
      spec.blend.layers = LayerRange{.first = first, .last = last};
      EXPECT_LT(distance(plain, logits_of(llm, spec)), 3e-5) << first << " to " << last;
    }
    spec.blend.layers.reset();
    spec.blend.only_layer = first;
    EXPECT_LT(distance(plain, logits_of(llm, spec)), 3e-5) << "layer " << first;
    (void)must(llm.delete_chunk(spec.context_chunk_ids.front()));
  }
}

TEST_P(StateChunks, AreNotBlendedByTokens) {
  ChunkedLLM llm = open();
  CompositionSpec spec = spec_of(llm, pieces_of({20, 33, 8}), ReuseMode::kBlend);
  spec.blend.share = 0.5;
  const auto refused = llm.compose(spec);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
  EXPECT_THAT(refused.error().message, HasSubstr("mode blend"));
  EXPECT_THAT(refused.error().message, HasSubstr("carry a state"));
  EXPECT_THAT(refused.error().message, HasSubstr("use mode anchored, independent or exact"));
}

INSTANTIATE_TEST_SUITE_P(Models, StateChunks,
                         testing::Values("lfm2", "granitemoehybrid", "nemotron_h", "qwen3_5",
                                         "qwen3_5_moe", "qwen3_next"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
