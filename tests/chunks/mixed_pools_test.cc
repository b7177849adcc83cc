// Chunks of every format in pools of every format: registered, narrowed, composed, blended and
// saved. The CPU computes KV in float32, where codes are all that moves logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "desk.h"
#include "formats_scene.h"
#include "quire/api/test_support.h"
#include "quire/base/temporary_folder.h"
#include "quire/chunk_types.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "scene.h"
#include "tiny_checkpoint.h"

namespace quire {
namespace {

using testing::Each;
using testing::ElementsAre;

// By the formats of the pool and of chunks.
class MixedPools : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  [[nodiscard]] static std::string pool() { return std::get<0>(GetParam()); }
  [[nodiscard]] static std::string chunk() { return std::get<1>(GetParam()); }
};

ChunkedLLM open_pool(const std::string& kv_dtype, const std::string& store = "",
                     std::int32_t max_batch_tokens = 2048) {
  return must(ChunkedLLM::open(kModel,
                               here({.dtype = exact_dtype(),
                                     .kv_dtype = kv_dtype,
                                     .kv_budget_bytes = std::int64_t{1} << 26,
                                     .max_batch_tokens = max_batch_tokens,
                                     .threads = 2}),
                               {.store = store}));
}

// Returns by how much codes move logits, at most, as a share of the largest.
double noise_of(const std::string& kv_dtype) {
  const std::map<std::string, double> noise = {{"int4", 0.4}, {"fp8", 0.2}, {"int8", 0.05}};
  const auto found = noise.find(kv_dtype);
  return found == noise.end() ? 0.02 : found->second;
}

CompositionSpec blended(CompositionSpec spec, Blend how) {
  spec.mode = ReuseMode::kBlend;
  spec.blend = std::move(how);
  return spec;
}

// Tokens [first, first + count).
std::vector<std::int32_t> tokens_from(std::int32_t first, std::int32_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < count; ++i) {
    tokens.push_back(first + i);
  }
  return tokens;
}

constexpr std::int32_t kSystem = 40, kFirst = 75, kSecond = 64;  // tokens of register_all()

TEST_P(MixedPools, AChunkIsComposedWithTheBitsOfItsFormatWarmAndCold) {
  ChunkedLLM llm = open_pool(pool());
  const CompositionSpec spec = register_all(llm, {"", chunk(), ""});
  EXPECT_EQ(must(llm.get_chunk(spec.context_chunk_ids[0])).kv_dtype, chunk());
  const CompositionInfo info = must(llm.preview_composition(spec));
  std::vector<std::string> formats;
  for (const CompositionInfo::Segment& segment : info.segments) {
    formats.push_back(segment.kv_dtype);
  }
  EXPECT_THAT(formats, ElementsAre(pool(), chunk(), pool(), pool()));
  const std::vector<float> first = logits(llm, spec);
  EXPECT_EQ(logits(llm, spec), first);
  ChunkedLLM other = open_pool(pool(), "", 7);
  EXPECT_EQ(logits(other, register_all(other, {"", chunk(), ""})), first)
      << "however it is cut into steps";
  ChunkedLLM floats = open_pool(exact_dtype());
  const std::vector<float> exact = logits(floats, register_all(floats, {}));
  EXPECT_LT(distance(exact, first), noise_of(pool()) + noise_of(chunk()));
  ASSERT_TRUE(llm.clear_chunks().ok());
  ASSERT_TRUE(llm.llm().clear_prefix_cache().ok());
  EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
}

// The oracle is the definition: another grade than `approximate` needs KV that a plain prompt of
// the pool has, apart from how its floats are rounded.
TEST_P(MixedPools, ItsGradeSaysWhetherItsFormatChangesTheAnswer) {
  ChunkedLLM llm = open_pool(pool());
  CompositionSpec spec = register_all(llm, {"", chunk(), ""});
  spec.context_chunk_ids.pop_back();
  const bool finer = pool() == "bfloat16" && chunk() == "float32";
  const ReuseGrade want =
      chunk() == pool() || finer ? ReuseGrade::kEqualMath : ReuseGrade::kApproximate;
  const SamplingParams greedy{.temperature = 0, .max_tokens = 1, .ignore_eos = true};
  EXPECT_EQ(must(llm.preview_composition(spec)).grade, want);
  EXPECT_EQ(must(llm.generate_from_chunks(spec, greedy)).reuse.grade, want);
  spec.mode = ReuseMode::kExact;
  const ReuseGrade exact = chunk() == pool() ? ReuseGrade::kExact : want;
  EXPECT_EQ(must(llm.preview_composition(spec)).grade, exact);
  EXPECT_EQ(must(llm.generate_from_chunks(spec, greedy)).reuse.grade, exact);
}

// The KV of a chunk does not depend on the pool that it lies in: pools of floats say what it is. A
// pool of bfloat16 computes KV in that type.
TEST_P(MixedPools, ItsErrorsAndBytesAreThoseOfTheFormatInAnyPool) {
  ChunkedLLM llm = open_pool(pool());
  ChunkedLLM floats = open_pool(pool() == "bfloat16" ? "bfloat16" : exact_dtype());
  const ChunkContent content = content_of(some_ids(75, 2), ChunkType::kContext, chunk());
  const ChunkInfo here = must(llm.get_chunk(must_register(llm, content)));
  const ChunkInfo there = must(floats.get_chunk(must_register(floats, content)));
  EXPECT_EQ(here.memory_bytes, there.memory_bytes);
  ASSERT_EQ(here.kv_error.has_value(), there.kv_error.has_value());
  if (here.kv_error) {
    const double order = on_gpu() ? 1e-6 : 0;  // of the sums, which differs from run to run there
    EXPECT_NEAR(here.kv_error->key, there.kv_error->key, order);
    EXPECT_NEAR(here.kv_error->value, there.kv_error->value, order);
    EXPECT_EQ(here.kv_error->bits_per_value, there.kv_error->bits_per_value);
  }
}

TEST_P(MixedPools, ItIsNarrowedToAllFormatsOfFewerBits) {
  ChunkedLLM llm = open_pool(pool());
  std::map<std::string, int> bits = {{"bfloat16", 16}, {"int8", 8}, {"fp8", 8}, {"int4", 4}};
  if (!on_gpu()) {
    bits["float32"] = 32;
  }
  for (const auto& [to, to_bits] : bits) {
    const std::string id =
        must_register(llm, content_of(some_ids(75, 2), ChunkType::kContext, chunk()));
    const auto narrowed = llm.update_chunk(id, {.kv_dtype = to});
    if (to_bits >= bits.at(chunk()) && to != chunk()) {
      EXPECT_EQ(narrowed.error().code, ErrorCode::kInvalidArgument) << to;
      continue;
    }
    ASSERT_TRUE(narrowed.ok()) << to << ": " << narrowed.error().message;
    EXPECT_EQ(narrowed->kv_dtype, to);
    CompositionSpec spec{.without_system = true, .mode = ReuseMode::kIndependent};
    spec.context_chunk_ids = {narrowed->chunk_id};
    spec.query_chunk_id = must_register(llm, content_of(some_ids(9, 4), ChunkType::kQuery));
    CompositionSpec wide = spec;
    wide.context_chunk_ids = {
        must_register(llm, content_of(some_ids(75, 2), ChunkType::kContext, exact_dtype()))};
    EXPECT_LT(distance(logits(llm, wide), logits(llm, spec)),
              noise_of(pool()) + noise_of(chunk()) + noise_of(to))
        << to;
  }
}

TEST_P(MixedPools, AStoreGivesItBackAndASequenceBehindItIsSaved) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store", file = folder.path() / "sequence.qkv";
  const Formats formats = {chunk(), chunk(), ""};
  std::vector<float> want, longer;
  {
    ChunkedLLM llm = open_pool(pool(), store);
    const CompositionSpec spec = register_all(llm, formats);
    want = logits(llm, spec);
    Sequence sequence = must(llm.sequence(spec));
    ASSERT_TRUE(sequence.append(some_ids(40, 9)).ok());
    ASSERT_TRUE(sequence.save(file).ok());
    ASSERT_TRUE(sequence.append(some_ids(33, 10)).ok());
    longer = must(sequence.logits());
    ASSERT_TRUE(llm.flush_store().ok());
  }
  ChunkedLLM later = open_pool(pool(), store);
  const double computed = stat(later, "tokens_computed");
  EXPECT_EQ(logits(later, register_all(later, formats)), want);
  EXPECT_EQ(stat(later, "tokens_computed") - computed, 9) << "the query alone";
  Sequence loaded = must(later.llm().load_sequence(file));
  ASSERT_TRUE(loaded.append(some_ids(33, 10)).ok());
  EXPECT_EQ(must(loaded.logits()), longer);
}

TEST_P(MixedPools, BlendHasTheSameBitsWarmAndColdAndInAnyPass) {
  ChunkedLLM llm = open_pool(pool());
  ChunkedLLM narrow = open_pool(pool(), "", 5);
  const CompositionSpec base = register_all(llm, {"", chunk(), chunk()});
  const CompositionSpec there = register_all(narrow, {"", chunk(), chunk()});
  const std::vector<float> stored = logits(llm, base);
  const double in_use = stat(llm, "bytes_in_use");
  EXPECT_EQ(logits(llm, blended(base, {.selector = Selector::kNone})), stored);
  for (const Selector selector : {Selector::kFirst, Selector::kRandom, Selector::kValueDeviation,
                                  Selector::kQueryAttention, Selector::kAll}) {
    const Blend how{.selector = selector, .share = 0.3, .seed = 3};
    const double before = stat(llm, "tokens_computed");
    const std::vector<float> first = logits(llm, blended(base, how));
    const CompositionInfo info = must(llm.preview_composition(blended(base, how)));
    EXPECT_EQ(stat(llm, "tokens_computed") - before, info.tokens_computed);
    EXPECT_EQ(info.segments[1].kv_dtype, chunk());
    EXPECT_EQ(logits(llm, blended(base, how)), first) << selector_name(selector);
    EXPECT_EQ(logits(narrow, blended(there, how)), first) << selector_name(selector);
    EXPECT_NE(first, stored) << selector_name(selector);
  }
  EXPECT_EQ(logits(llm, base), stored) << "blending has touched the chunks";
  EXPECT_EQ(stat(llm, "bytes_in_use"), in_use);
}

// A context behind its anchor has seen all that is before it. So computed again it is a chunk of
// the pool's own format.
TEST_P(MixedPools, RowsThatAreComputedAgainHaveThePoolsFormat) {
  ChunkedLLM llm = open_pool(pool());
  const CompositionSpec coded = register_all(llm, {"", chunk(), chunk()});
  CompositionSpec want = register_all(llm, {"", "", chunk()});
  const Blend first{.selector = Selector::kExplicit, .tokens = tokens_from(kSystem, kFirst)};
  const std::vector<float> right = logits(llm, want);
  const double apart = distance(right, logits(llm, coded));
  // Numbers that are rounded otherwise may have another code now and then.
  const double near =
      pool() == exact_dtype() ? rounding() : 0.2 * std::max(apart, noise_of(pool()));
  EXPECT_LT(distance(right, logits(llm, blended(coded, first))), near);
  if (chunk() != pool() && chunk() != exact_dtype()) {
    EXPECT_GT(apart, 1e-4) << "proves nothing";
  }
}

// All rows computed again are what a plain prompt of the pool is, where blocks begin at the same
// tokens. A prompt's keys are rotated further before they become codes, and so have other ones.
TEST_P(MixedPools, AllRowsComputedAgainAreAPlainPrompt) {
  ChunkedLLM llm = open_pool(pool());
  CompositionSpec spec;
  spec.system_chunk_id = must_register(llm, content_of(some_ids(64, 1), ChunkType::kSystemPrompt));
  spec.context_chunk_ids = {
      must_register(llm, content_of(some_ids(96, 2), ChunkType::kContext, chunk())),
      must_register(llm, content_of(some_ids(64, 3), ChunkType::kContext, chunk()))};
  spec.query_chunk_id = must_register(llm, content_of(some_ids(9, 4), ChunkType::kQuery));
  const std::vector<float> base = logits(llm, spec);
  const std::vector<float> all = logits(llm, blended(spec, {.selector = Selector::kAll}));
  CompositionSpec plain = spec;
  plain.mode = ReuseMode::kExact;
  for (std::size_t i = 0; i < 2; ++i) {
    const Ids ids = must(llm.get_chunk(spec.context_chunk_ids[i])).token_ids;
    plain.context_chunk_ids[i] = must_register(llm, content_of(ids, ChunkType::kContext));
  }
  const std::vector<float> exact = logits(llm, plain);
  EXPECT_LT(distance(exact, all), pool() == exact_dtype() ? rounding() : noise_of(pool()));
  EXPECT_GT(distance(exact, base), 1e-3) << "proves nothing";
}

TEST_P(MixedPools, ABatchOfBlendsChangesNoTokenOfAnyRequest) {
  ChunkedLLM llm = open_pool(pool());
  const CompositionSpec base = register_all(llm, {"", chunk(), ""});
  const std::vector<CompositionSpec> specs = {
      base, blended(base, {.selector = Selector::kFirst, .share = 0.2}),
      blended(base, {.selector = Selector::kRandom, .share = 0.5, .seed = 2})};
  const SamplingParams greedy{.temperature = 0, .max_tokens = 40, .ignore_eos = true};
  std::vector<Ids> alone;
  for (const CompositionSpec& spec : specs) {
    alone.push_back(must(llm.generate_from_chunks(spec, greedy)).token_ids);
  }
  const auto together = must(llm.batch_generate_from_chunks(specs, {&greedy, 1}));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i].token_ids, alone[i]) << i;
  }
}

TEST_P(MixedPools, ASequenceBehindABlendIsSavedAndGoesOn) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "sequence.qkv";
  ChunkedLLM llm = open_pool(pool());
  const CompositionSpec spec = blended(register_all(llm, {"", chunk(), ""}),
                                       {.selector = Selector::kRandom, .share = 0.1, .seed = 5});
  Sequence sequence = must(llm.sequence(spec));
  ASSERT_TRUE(sequence.append(some_ids(40, 9)).ok());
  ASSERT_TRUE(sequence.save(file).ok());
  ChunkedLLM other = open_pool(pool());
  Sequence loaded = must(other.llm().load_sequence(file));
  EXPECT_EQ(loaded.tokens(), sequence.tokens());
  for (Sequence* const one : {&loaded, &sequence}) {
    ASSERT_TRUE(one->append(some_ids(33, 10)).ok());
  }
  EXPECT_EQ(must(loaded.logits()), must(sequence.logits()));
  loaded.close();
  EXPECT_EQ(stat(other, "bytes_in_use"), 0);
}

// A GPU computes KV in bfloat16 here, and has no other floats beside it.
std::vector<std::tuple<std::string, std::string>> pairs() {
  if (on_gpu()) {
    return {{"bfloat16", "int8"}, {"bfloat16", "fp8"},  {"bfloat16", "int4"}, {"int8", "bfloat16"},
            {"int8", "int8"},     {"int8", "fp8"},      {"int8", "int4"},     {"fp8", "bfloat16"},
            {"fp8", "int4"},      {"int4", "bfloat16"}, {"int4", "int8"},     {"int4", "int4"}};
  }
  return {{"float32", "bfloat16"}, {"float32", "int8"},  {"float32", "fp8"},   {"float32", "int4"},
          {"bfloat16", "float32"}, {"bfloat16", "int4"}, {"int8", "bfloat16"}, {"int8", "int8"},
          {"int8", "fp8"},         {"int8", "int4"},     {"fp8", "float32"},   {"fp8", "int4"},
          {"int4", "bfloat16"},    {"int4", "int8"},     {"int4", "int4"}};
}

INSTANTIATE_TEST_SUITE_P(Formats, MixedPools, testing::ValuesIn(pairs()), [](const auto& info) {
  return std::get<1>(info.param) + "In" + std::get<0>(info.param);
});

// A dense transformer says what blending gives. Codes move its logits less than other rows would.
TEST(BlendOfCodes, IsNearTheOracleOfItsRowsAndFarFromThatOfOthers) {
  chunks::Desk desk(chunks::write_checkpoint("coded_blend", {}), chunks::most_exact(32));
  chunks::Dice dice(4);
  chunks::Scene scene = chunks::make_scene(dice, 3, 32);
  scene.mode = ReuseMode::kAnchored;
  scene.place(Positions::kConcat);
  CompositionSpec plain = desk.compose(scene, Positions::kConcat);
  CompositionSpec coded = plain;
  for (std::size_t i = 0; i < coded.context_chunk_ids.size(); ++i) {
    ChunkContent content =
        content_of(scene.contexts[i].ids, ChunkType::kContext, i % 2 == 0 ? "int8" : "fp8");
    content.options.anchor = coded.system_chunk_id;
    coded.context_chunk_ids[i] = must_register(desk.llm, content);
  }
  const std::int32_t first = scene.first_context(), count = scene.num_context_tokens();
  for (const std::int32_t step : {1, 2, 3, 7, 31}) {
    scene.recomputed.clear();
    for (std::int32_t token = first; token < first + count; token += step) {
      scene.recomputed.push_back(token);
    }
    const Blend how{.selector = Selector::kExplicit, .tokens = scene.recomputed};
    const chunks::Matrix want = scene.logits(desk.oracle);
    const double exact =
        chunks::distance(must(desk.llm.logits_from_chunks(blended(plain, how))), want);
    const double off =
        chunks::distance(must(desk.llm.logits_from_chunks(blended(coded, how))), want);
    EXPECT_LE(exact, chunks::tolerance()) << step;
    EXPECT_LT(off, step == 1 ? chunks::tolerance() : 0.08) << step;
    const double base = chunks::distance(must(desk.llm.logits_from_chunks(coded)), want);
    EXPECT_LT(off, base) << step << ": " << off;
  }
}

}  // namespace
}  // namespace quire
