// Chunks on the demo model. Oracles: golden.jsonl (pieces of prompts, right answers), plain prompts
// of the same ids, and the rules of include/quire/chunks.h.
#include "quire/chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sequence.h"

namespace quire {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct GoldenChunks {
  std::string type;
  std::vector<Ids> pieces;  // system, cards, question
  Ids greedy;
  [[nodiscard]] Ids joined() const {
    Ids ids;
    for (const Ids& piece : pieces) {
      ids.insert(ids.end(), piece.begin(), piece.end());
    }
    return ids;
  }
};

Ids ids_in(const boost::json::value& list) { return boost::json::value_to<Ids>(list); }

std::vector<GoldenChunks> read_golden_chunks(std::size_t count) {
  std::ifstream in(kModel + "/golden.jsonl");
  std::vector<GoldenChunks> goldens;
  for (std::string line; goldens.size() < count && std::getline(in, line);) {
    const auto parsed = boost::json::parse(line);
    const auto& object = parsed.as_object();
    GoldenChunks golden{.type = object.at("type").as_string().c_str(),
                        .greedy = ids_in(object.at("greedy"))};
    for (const auto& piece : object.at("pieces").as_array()) {
      golden.pieces.push_back(ids_in(piece));
    }
    goldens.push_back(std::move(golden));
  }
  return goldens;
}

std::map<std::string, double> stats_of(ChunkedLLM& llm) {
  const Stats stats = must(llm.llm().stats());
  return {stats.begin(), stats.end()};
}

// Registers the pieces of a golden prompt as chunks, in a composition.
CompositionSpec register_pieces(ChunkedLLM& llm, const GoldenChunks& golden) {
  std::vector<ChunkContent> chunks;
  for (const Ids& piece : golden.pieces) {
    chunks.push_back({.content = piece});
  }
  chunks.front().type = ChunkType::kSystemPrompt;
  chunks.back().type = ChunkType::kQuery;
  const std::vector<std::string> ids = must(llm.register_chunks(chunks));
  return {.system_chunk_id = ids.front(),
          .context_chunk_ids = {ids.begin() + 1, ids.end() - 1},
          .query_chunk_id = ids.back()};
}

TEST(Chunks, AnchoredAnswersOfTheDemoModelAreRight) {
  ChunkedLLM llm = open_chunked();
  int right = 0;
  int asked = 0;
  for (const GoldenChunks& golden : read_golden_chunks(20)) {
    CompositionSpec spec = register_pieces(llm, golden);
    spec.computed_in_place = true;
    must(llm.generate_from_chunks(spec, greedy(1)));
    const GenerationOutput out = must(llm.generate_from_chunks(spec, greedy(48)));
    right += out.token_ids == golden.greedy ? 1 : 0;
    ++asked;
    EXPECT_EQ(out.prompt_token_ids, golden.joined());
    EXPECT_EQ(out.usage.cached_tokens, out.usage.prompt_tokens - std::ssize(golden.pieces.back()));
  }
  EXPECT_GE(right, asked - 1) << "the model is trained for cards computed apart";
}

TEST(Chunks, ExactModeIsAPlainPrompt) {
  ChunkedLLM llm = open_chunked();
  for (const GoldenChunks& golden : read_golden_chunks(5)) {
    CompositionSpec spec = register_pieces(llm, golden);
    spec.mode = ReuseMode::kExact;
    const GenerationOutput composed = must(llm.generate_from_chunks(spec, greedy(16)));
    const GenerationOutput plain = must(llm.llm().generate(golden.joined(), greedy(16)));
    EXPECT_EQ(composed.token_ids, plain.token_ids);
    EXPECT_EQ(composed.reuse.grade, ReuseGrade::kExact);
    const ForwardOutput rows = must(llm.logits_from_chunks(spec));
    const ForwardOutput all = must(llm.llm().forward(golden.joined(), ForwardReuse::kNone));
    ASSERT_EQ(rows.rows, std::ssize(golden.pieces.back()));
    EXPECT_TRUE(std::equal(rows.logits.begin(), rows.logits.end(),
                           all.logits.end() - std::ssize(rows.logits)));
  }
}

// Returns the last rows of `whole`, as many as `part` has.
std::vector<float> tail_of(const ForwardOutput& whole, const ForwardOutput& part) {
  return {whole.logits.end() - std::ssize(part.logits), whole.logits.end()};
}

TEST(Chunks, OneContextBehindTheSystemChunkIsAFullPrefillUpToRounding) {
  ChunkedLLM llm = open_chunked({}, {.dtype = exact_dtype()});
  GoldenChunks golden = read_golden_chunks(1).front();
  golden.pieces.erase(golden.pieces.begin() + 2, golden.pieces.end() - 1);
  const CompositionSpec spec = register_pieces(llm, golden);
  const ForwardOutput composed = must(llm.logits_from_chunks(spec));
  const ForwardOutput plain = must(llm.llm().forward(golden.joined(), ForwardReuse::kNone));
  ASSERT_EQ(composed.rows, std::ssize(golden.pieces.back()));
  EXPECT_LT(distance(tail_of(plain, composed), composed.logits), rounding());
  EXPECT_EQ(must(llm.generate_from_chunks(spec, greedy(1))).reuse.grade, ReuseGrade::kEqualMath);
}

TEST(Chunks, RegisteringAgainIsAUseAndNoPrefill) {
  ChunkedLLM llm = open_chunked();
  const ChunkContent chunk{.content = "You are the keeper of a card file. Answer from the cards.",
                           .type = ChunkType::kSystemPrompt,
                           .options = {.metadata_json = R"({"a": 1, "b": 2})"}};
  const std::string id = must(llm.register_chunk(chunk));
  EXPECT_EQ(id.size(), 64U);
  const double computed = stats_of(llm)["tokens_computed"];
  ChunkContent again = chunk;
  again.options.metadata_json = R"({"b": 3})";
  EXPECT_EQ(must(llm.register_chunk(again)), id);
  EXPECT_EQ(stats_of(llm)["tokens_computed"], computed);
  const ChunkInfo info = must(llm.get_chunk(id));
  EXPECT_EQ(info.metadata_json, R"({"a":1,"b":3})");
  EXPECT_EQ(info.access_count, 1);
  EXPECT_EQ(must(llm.chunk_stats()).cache_hits, 1);
  EXPECT_EQ(must(llm.chunk_stats()).cache_misses, 1);
}

TEST(Chunks, TotalsAreTheSumsOverAllTenants) {
  ChunkedLLM llm = open_chunked();
  ChunkStats sum;
  for (const char* const salt : {"ada", "lars"}) {
    must(llm.register_chunk(
        {.content = some_ids(20, 3), .type = ChunkType::kSystemPrompt, .options = {.salt = salt}}));
    must(llm.register_chunk({.content = some_ids(40, 4), .options = {.salt = salt}}));
  }
  must(llm.delete_chunk(must(llm.list_chunks(ChunkType::kContext, "{}", "lars")).front().chunk_id,
                        false, "lars"));
  for (const char* const salt : {"ada", "lars"}) {
    const ChunkStats stats = must(llm.chunk_stats(salt));
    sum.total_chunks += stats.total_chunks;
    sum.memory_used_bytes += stats.memory_used_bytes;
    sum.cache_misses += stats.cache_misses;
  }
  const ChunkStats totals = must(llm.chunk_totals());
  EXPECT_EQ(totals.total_chunks, 3);
  EXPECT_EQ(totals.system_chunks, 2);
  EXPECT_EQ(totals.context_chunks, 1);
  EXPECT_EQ(totals.total_chunks, sum.total_chunks);
  EXPECT_EQ(totals.memory_used_bytes, sum.memory_used_bytes);
  EXPECT_EQ(totals.cache_misses, sum.cache_misses);
}

TEST(Chunks, EqualOnesOfABatchAreOnePrefillAndAllThatWasSaid) {
  ChunkedLLM llm = open_chunked();
  std::vector<ChunkContent> twice(2, {.content = some_ids(70, 3)});
  twice[0].options.metadata_json = R"({"a": 1})";
  twice[1].options = {.metadata_json = R"({"b": 2})", .pinned = true};
  const auto ids = must(llm.register_chunks(twice));
  EXPECT_EQ(ids[0], ids[1]);
  const ChunkInfo info = must(llm.get_chunk(ids[0]));
  EXPECT_EQ(info.metadata_json, R"({"a":1,"b":2})");
  EXPECT_TRUE(info.pinned);
  EXPECT_EQ(must(llm.chunk_stats()).cache_hits, 1);
  EXPECT_EQ(must(llm.chunk_stats()).cache_misses, 1);
}

TEST(Chunks, BlocksComeBackWhenChunksGo) {
  ChunkedLLM llm = open_chunked({}, {.prefix_cache = false});
  const double free_blocks = stats_of(llm)["blocks_free"];
  const CompositionSpec spec = register_pieces(llm, read_golden_chunks(1).front());
  EXPECT_LT(stats_of(llm)["blocks_free"], free_blocks);
  must(llm.generate_from_chunks(spec, greedy(4)));
  EXPECT_TRUE(must(llm.delete_chunk(spec.system_chunk_id)));
  EXPECT_FALSE(must(llm.delete_chunk(spec.system_chunk_id)));
  const Result<GenerationOutput> gone = llm.generate_from_chunks(spec, greedy(4));
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(gone.error().chunk_id, spec.system_chunk_id);
  EXPECT_THAT(gone.error().message, HasSubstr("deleted"));
  EXPECT_GT(must(llm.clear_chunks()), 1);
  EXPECT_EQ(stats_of(llm)["blocks_free"], free_blocks);
}

TEST(Chunks, ExplainTellsOfEachPartWhetherItIsThereAlsoWhenOthersHaveGone) {
  ChunkedLLM llm = open_chunked();
  const CompositionSpec spec = register_pieces(llm, read_golden_chunks(1).front());
  const auto whole = must(llm.explain(spec));
  const auto expect_cached_but_for_the_query = [&](const std::vector<ReusePart>& parts) {
    ASSERT_EQ(parts.size(), whole.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const bool query = i + 1 == parts.size();
      EXPECT_EQ(parts[i].hit, !query) << i;
      EXPECT_EQ(parts[i].reason, query ? "a query is always computed" : "hit") << i;
      EXPECT_EQ(parts[i].chunk_id, whole[i].chunk_id) << i;
      EXPECT_EQ(parts[i].tokens, whole[i].tokens) << i;
    }
  };
  expect_cached_but_for_the_query(whole);
  EXPECT_TRUE(must(llm.delete_chunk(spec.context_chunk_ids[1])));
  auto left = must(llm.explain(spec));
  ASSERT_EQ(left.size(), whole.size());
  EXPECT_FALSE(left[2].hit);
  EXPECT_THAT(left[2].reason, HasSubstr("deleted"));
  left[2] = whole[2];
  expect_cached_but_for_the_query(left);
}

TEST(Chunks, AChunkUnderAnotherAnchorGetsAVariantAtItsFirstUse) {
  ChunkedLLM llm = open_chunked();
  const CompositionSpec spec = register_pieces(llm, read_golden_chunks(1).front());
  CompositionSpec other = spec;
  other.system_chunk_id = must(
      llm.register_chunk({.content = "Answer from the cards.", .type = ChunkType::kSystemPrompt}));
  const CompositionInfo before = must(llm.preview_composition(other));
  EXPECT_FALSE(before.segments[1].cached);
  EXPECT_EQ(before.grade, ReuseGrade::kApproximate);
  const double computed = stats_of(llm)["tokens_computed"];
  const GenerationOutput out = must(llm.generate_from_chunks(other, greedy(1)));
  EXPECT_EQ(stats_of(llm)["tokens_computed"] - computed,
            static_cast<double>(before.tokens_computed));
  EXPECT_EQ(out.usage.cached_tokens, before.tokens_reused);
  const CompositionInfo after = must(llm.preview_composition(other));
  EXPECT_TRUE(after.segments[1].cached);
  EXPECT_EQ(must(llm.get_chunk(spec.context_chunk_ids[0])).num_variants, 2);
  must(llm.generate_from_chunks(spec, greedy(1)));
}

TEST(Chunks, AnyOrderIsComputedFromTheSameBlocksAndABatchEqualsSingleCalls) {
  ChunkedLLM llm = open_chunked();
  CompositionSpec spec = register_pieces(llm, read_golden_chunks(1).front());
  std::vector<CompositionSpec> specs;
  for (int i = 0; i < 4; ++i) {
    std::rotate(spec.context_chunk_ids.begin(), spec.context_chunk_ids.begin() + 1,
                spec.context_chunk_ids.end());
    specs.push_back(spec);
    specs.back().context_chunk_ids.resize(spec.context_chunk_ids.size() - i);
  }
  specs.push_back(spec);
  specs.back().context_chunk_ids.push_back(spec.context_chunk_ids.front());  // twice
  specs.push_back(spec);
  specs.back().positions = Positions::kParallel;
  specs.push_back(spec);
  specs.back().mode = ReuseMode::kIndependent;
  specs.back().bos_sink = true;
  std::vector<GenerationOutput> alone;
  SamplingParams params = greedy(12);
  params.logprobs = 3;
  for (const CompositionSpec& one : specs) {
    alone.push_back(must(llm.generate_from_chunks(one, params)));
  }
  const double in_use = stats_of(llm)["blocks_in_use"];
  const auto together = must(llm.batch_generate_from_chunks(specs, {&params, 1}));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i].token_ids, alone[i].token_ids) << i;
    EXPECT_EQ(together[i].logprobs, alone[i].logprobs) << "to the bit";
  }
  EXPECT_EQ(stats_of(llm)["blocks_in_use"], in_use);
}

// Returns these, and those that choose by the chunks' KV.
std::vector<Selector> looking_and(std::vector<Selector> selectors) {
  selectors.push_back(Selector::kQueryAttention);
  selectors.push_back(Selector::kValueDeviation);
  return selectors;
}

TEST(Chunks, BlendingNothingIsTheBaseModeAndBlendingAllIsAFullPrefill) {
  ChunkedLLM llm = open_chunked({}, {.dtype = exact_dtype(), .block_tokens = 8});
  for (const GoldenChunks& golden : read_golden_chunks(3)) {
    CompositionSpec spec = register_pieces(llm, golden);
    const ForwardOutput anchored = must(llm.logits_from_chunks(spec));
    const ForwardOutput plain = must(llm.llm().forward(golden.joined(), ForwardReuse::kNone));
    const double in_use = stats_of(llm)["blocks_in_use"];
    spec.mode = ReuseMode::kBlend;
    for (const Selector selector :
         looking_and({Selector::kFirst, Selector::kRandom, Selector::kNone})) {
      spec.blend = {.selector = selector, .share = 0};
      EXPECT_EQ(must(llm.logits_from_chunks(spec)).logits, anchored.logits)
          << selector_name(selector);
    }
    for (const Selector selector :
         looking_and({Selector::kFirst, Selector::kRandom, Selector::kAll})) {
      spec.blend = {.selector = selector, .share = 1};
      const ForwardOutput all = must(llm.logits_from_chunks(spec));
      EXPECT_LT(distance(tail_of(plain, all), all.logits), rounding()) << selector_name(selector);
    }
    EXPECT_EQ(stats_of(llm)["blocks_in_use"], in_use);
    EXPECT_EQ(must(llm.generate_from_chunks(spec, greedy(1))).reuse.recompute_share, 1);
  }
}

// Returns the blocks that a run of `spec` takes, but for those of what it generated by then. The
// engine has blocks of 8 tokens.
double blocks_taken(ChunkedLLM& llm, const CompositionSpec& spec, const CompositionInfo& info) {
  const auto before = stats_of(llm);
  Stream stream = must(
      llm.stream_from_chunks(spec, {.temperature = 0, .max_tokens = 1000, .ignore_eos = true}));
  must(stream.next());
  const auto running = stats_of(llm);
  EXPECT_EQ(running.at("requests_running"), 1);
  const auto blocks_for = [](double tokens) { return std::ceil(tokens / 8); };
  const auto own = static_cast<double>(
      info.mode == ReuseMode::kExact ? info.total_tokens : info.segments.back().num_tokens);
  const double generated = running.at("tokens_generated") - before.at("tokens_generated");
  return running.at("blocks_in_use") - before.at("blocks_in_use") -
         blocks_for(own + generated - 1) + blocks_for(own);
}

TEST(Chunks, ThePreviewNamesTheBlocksThatTheRunThenTakes) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const CompositionSpec plain = register_pieces(llm, read_golden_chunks(1).front());
  const auto made = [&](auto change) {
    CompositionSpec spec = plain;
    change(spec);
    return spec;
  };
  const auto blended = [&](Selector selector, double share) {
    return made([&](CompositionSpec& spec) {
      spec.mode = ReuseMode::kBlend;
      spec.blend = {.selector = selector, .share = share};
    });
  };
  CompositionSpec twice = plain;
  twice.context_chunk_ids.push_back(twice.context_chunk_ids.front());
  CompositionSpec picked = blended(Selector::kExplicit, 0);
  picked.blend.tokens = {60, 61, 100, 3, 100};
  const std::vector<CompositionSpec> specs = {
      plain,
      twice,
      picked,
      blended(Selector::kFirst, 0.2),
      blended(Selector::kRandom, 0.1),
      blended(Selector::kAll, 0),
      blended(Selector::kNone, 0),
      made([](CompositionSpec& spec) { spec.mode = ReuseMode::kIndependent; }),
      made([](CompositionSpec& spec) { spec.computed_in_place = true; })};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const CompositionInfo info = must(llm.preview_composition(specs[i]));
    EXPECT_EQ(blocks_taken(llm, specs[i], info), info.new_blocks) << i;
    EXPECT_EQ(info.memory_bytes, info.num_blocks * stats_of(llm).at("block_bytes")) << i;
  }
  for (const Selector selector : looking_and({})) {
    const CompositionSpec spec = blended(selector, 0.1);
    const CompositionInfo info = must(llm.preview_composition(spec));
    EXPECT_LE(blocks_taken(llm, spec, info), info.new_blocks);
  }
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    const auto refused = llm.preview_composition(blended(Selector::kRandom, share));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Chunks, ThePreviewOfAnExactCompositionNamesTheBlocksThatTheRunThenHolds) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  CompositionSpec spec = register_pieces(llm, read_golden_chunks(1).front());
  spec.mode = ReuseMode::kExact;
  // The system chunk's whole blocks are in use already, for its KV is that of the prompt.
  CompositionInfo info = must(llm.preview_composition(spec));
  EXPECT_LT(info.new_blocks, info.num_blocks);
  EXPECT_EQ(blocks_taken(llm, spec, info), info.new_blocks);
  // Without it nobody uses a block of the prompt, found again or not.
  spec.system_chunk_id.clear();
  spec.without_system = true;
  for (const bool cached : {false, true}) {
    info = must(llm.preview_composition(spec));
    EXPECT_EQ(info.new_blocks < info.num_blocks, cached);
    EXPECT_EQ(blocks_taken(llm, spec, info), info.num_blocks);
  }
}

TEST(Chunks, AQueryAloneRunsAgainAndBehindThePlainPromptThatItEquals) {
  ChunkedLLM llm = open_chunked({}, {.block_tokens = 8});
  const Ids query = read_golden_chunks(1).front().joined();
  const auto plain = must(llm.llm().generate(query, greedy(8))).token_ids;
  CompositionSpec spec{.without_system = true};
  spec.query_chunk_id = must(llm.register_chunk({.content = query, .type = ChunkType::kQuery}));
  for (const ReuseMode mode : {ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kBlend}) {
    spec.mode = mode;
    EXPECT_EQ(must(llm.generate_from_chunks(spec, greedy(8))).token_ids, plain);
    EXPECT_EQ(must(llm.generate_from_chunks(spec, greedy(8))).token_ids, plain);
  }
}

TEST(Chunks, WhatTheQueryLooksAtBringsAnswersBack) {
  ChunkedLLM llm = open_chunked();
  int base = 0;
  int blended = 0;
  for (const GoldenChunks& golden : read_golden_chunks(100)) {
    if (golden.type != "split_adj") {
      continue;
    }
    CompositionSpec spec = register_pieces(llm, golden);
    base += must(llm.generate_from_chunks(spec, greedy(8))).token_ids == golden.greedy ? 1 : 0;
    spec.mode = ReuseMode::kBlend;
    spec.blend = {.selector = Selector::kQueryAttention, .share = 0.3};
    blended += must(llm.generate_from_chunks(spec, greedy(8))).token_ids == golden.greedy ? 1 : 0;
  }
  std::printf("split_adj: anchored %d, query_attn 30 %% %d\n", base, blended);
  EXPECT_GT(blended, base);
}

// One for each chunk and layer; tokens of the query are rows of all of them. On the CPU the last
// layer attends for those with logits alone.
TEST(Chunks, RunsThatAttentionReadsAreCounted) {
  ChunkedLLM llm = open_chunked();
  const GoldenChunks golden = read_golden_chunks(1).front();
  const CompositionSpec spec = register_pieces(llm, golden);
  const CompositionInfo info = must(llm.preview_composition(spec));
  auto before = stats_of(llm);
  must(llm.generate_from_chunks(spec, greedy(1)));
  auto after = stats_of(llm);
  const std::int64_t layers = 8;
  const std::int64_t tokens = info.segments.back().num_tokens;
  const std::int64_t rows = (layers - 1) * tokens + (on_gpu() ? tokens : 1);
  EXPECT_EQ(info.num_levels, std::ssize(info.segments));
  EXPECT_EQ(after["attention_entries"] - before["attention_entries"], layers * info.num_levels);
  EXPECT_EQ(after["attention_rows"] - before["attention_rows"], info.num_levels * rows);
}

TEST(Chunks, SharedReadsChangeNoBitOfPlainPromptsWithACommonBeginning) {
  std::vector<Prompt> prompts;
  Ids common;
  for (const GoldenChunks& golden : read_golden_chunks(4)) {
    const Ids ids = golden.joined();
    common.insert(common.end(), ids.begin(), ids.end());
  }
  ASSERT_GT(common.size(), 900U);
  for (const std::size_t shared : {900, 900, 600, 600, 300, 100}) {
    Ids prompt(common.begin(), common.begin() + static_cast<std::ptrdiff_t>(shared));
    for (TokenId own = 0; own < 5; ++own) {
      prompt.push_back(300 + own + static_cast<TokenId>(prompts.size()));
    }
    prompts.emplace_back(prompt);
  }
  std::vector<std::vector<GenerationOutput>> outputs;
  std::vector<double> blocks_read;
  for (const bool share : {false, true}) {
    ChunkedLLM llm = open_chunked({}, {.share_reads = share});
    must(llm.llm().forward(common));
    SamplingParams params = greedy(24);
    params.ignore_eos = true;
    params.logprobs = 2;
    const double before = stats_of(llm)["attention_blocks_read"];
    outputs.push_back(must(llm.llm().generate_batch(prompts, {&params, 1})));
    blocks_read.push_back(stats_of(llm)["attention_blocks_read"] - before);
  }
  // A GPU that keeps bits shares longer ranges than these.
  EXPECT_LT(blocks_read[1], (on_gpu() ? 1.01 : 0.6) * blocks_read[0]);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(outputs[0][i].token_ids, outputs[1][i].token_ids) << i;
    EXPECT_EQ(outputs[0][i].logprobs, outputs[1][i].logprobs) << i;
  }
}

TEST(Chunks, WrongKindsAndNumbersAreRefusedByName) {
  ChunkedLLM llm = open_chunked();
  const CompositionSpec good = register_pieces(llm, read_golden_chunks(1).front());
  const auto code_of = [&](const CompositionSpec& spec) {
    const auto out = llm.generate_from_chunks(spec, greedy(1));
    return out.ok() ? ErrorCode::kInternal : out.error().code;
  };
  CompositionSpec bad = good;
  bad.system_chunk_id = "";
  EXPECT_EQ(code_of(bad), ErrorCode::kInvalidComposition);
  bad = good;
  bad.query_chunk_id = "";
  EXPECT_EQ(code_of(bad), ErrorCode::kInvalidComposition);
  bad = good;
  bad.system_chunk_id = good.query_chunk_id;
  EXPECT_EQ(code_of(bad), ErrorCode::kInvalidComposition);
  bad = good;
  bad.context_chunk_ids.push_back(good.system_chunk_id);
  EXPECT_EQ(code_of(bad), ErrorCode::kInvalidComposition);
  bad = good;
  bad.context_chunk_ids.push_back(std::string(64, '0'));
  EXPECT_EQ(code_of(bad), ErrorCode::kNotFound);
  bad = good;
  bad.positions = Positions::kFixed;
  bad.fixed = {0, 1};
  EXPECT_EQ(code_of(bad), ErrorCode::kInvalidComposition);
  const auto empty = llm.register_chunk({.content = ""});
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(empty.error().code, ErrorCode::kInvalidArgument);
}

TEST(Chunks, TheLeastRecentlyUsedOneGoesWhenRoomIsNeeded) {
  ChunkedLLM llm = open_chunked({.max_chunks = 3});
  const auto add = [&](TokenId id) {
    return must(llm.register_chunk({.content = Ids{4, id}, .options = {.anchor = ""}}));
  };
  const std::string a = add(300);
  const std::string b = add(301);
  const std::string c = add(302);
  add(300);  // a use
  const std::string d = add(303);
  std::vector<std::string> left;
  for (const ChunkInfo& chunk : must(llm.list_chunks())) {
    left.push_back(chunk.chunk_id);
  }
  EXPECT_THAT(left, ElementsAre(a, c, d));
  const auto gone = llm.get_chunk(b);
  ASSERT_FALSE(gone.ok());
  EXPECT_THAT(gone.error().message, HasSubstr("evicted"));
}

TEST(Chunks, WithoutDeduplicationEveryRegistrationHasItsOwnBlocks) {
  ChunkedLLM llm = open_chunked({.enable_deduplication = false}, {.prefix_cache = false});
  const double free_blocks = stats_of(llm)["blocks_free"];
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(must(llm.register_chunk({.content = "Card 7. Ada trades in apples."})));
  }
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_NE(ids[1], ids[2]);
  EXPECT_EQ(free_blocks - stats_of(llm)["blocks_free"], 3);
  for (const std::string& id : ids) {
    EXPECT_TRUE(must(llm.delete_chunk(id)));
  }
  EXPECT_EQ(stats_of(llm)["blocks_free"], free_blocks);
}

}  // namespace
}  // namespace quire
