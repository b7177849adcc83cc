// Chunks with a KV format of their own in a pool of floats: equal to what an engine of that format
// registers, composed with chunks of other formats, narrowed, counted, saved and refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "desk.h"
#include "formats_scene.h"
#include "quire/api/test_support.h"
#include "quire/base/temporary_folder.h"
#include "quire/chunks.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/store.h"
#include "quire/llm.h"
#include "tiny_checkpoint.h"

namespace quire {
namespace {

using chunks::kFirstSecret;
using testing::ElementsAre;
using testing::HasSubstr;

// Returns all bytes of a saved chunk's KV, layer by layer.
std::vector<std::byte> saved_kv(const std::string& store, const std::string& id) {
  const kv_store::Store opened = kv_store::Store::open(store).value();
  const kv_store::KVFile file = opened.objects().open(id).value();
  std::vector<std::byte> all;
  const auto layers = static_cast<std::size_t>(file.content().geometry.layers);
  std::vector<std::byte> layer(static_cast<std::size_t>(file.payload_bytes()) / layers);
  for (std::size_t i = 0; i < layers; ++i) {
    EXPECT_TRUE(file.read_layer(0, static_cast<int>(i), 0, layer).ok());
    all.insert(all.end(), layer.begin(), layer.end());
  }
  EXPECT_FALSE(all.empty());
  return all;
}

// The anchor, the contexts and their errors are those of an engine whose pool is of int8, bit for
// bit, though its blocks lie in slabs among others.
TEST(ChunkFormats, AnInt8ChunkHasTheBitsThatAnInt8EngineRegisters) {
  for (const std::string pool : {"bfloat16", "float32"}) {
    const TemporaryFolder folder;
    const std::string own_store = folder.path() / "own", other_store = folder.path() / "other";
    std::vector<std::string> own_ids, other_ids;
    std::vector<KVError> own_errors, other_errors;
    const auto fill = [&](const std::string& kv_dtype, const std::string& store,
                          std::vector<std::string>& ids, std::vector<KVError>& errors) {
      ChunkedLLM llm = ChunkedLLM::open(kModel, {.dtype = pool, .kv_dtype = kv_dtype, .threads = 2},
                                        {.store = store})
                           .value();
      const CompositionSpec spec = register_all(llm, {"int8", "int8", "int8"});
      ids = spec.context_chunk_ids;
      ids.push_back(spec.system_chunk_id);
      for (const std::string& id : ids) {
        EXPECT_EQ(llm.get_chunk(id)->kv_dtype, "int8");
        errors.push_back(llm.get_chunk(id)->kv_error.value_or(KVError{}));
      }
    };
    fill("int8", own_store, own_ids, own_errors);
    fill(pool, other_store, other_ids, other_errors);
    ASSERT_EQ(own_ids.size(), other_ids.size());
    for (std::size_t i = 0; i < own_ids.size(); ++i) {
      EXPECT_NE(own_ids[i], other_ids[i]) << "chunks of two models";
      EXPECT_EQ(saved_kv(own_store, own_ids[i]), saved_kv(other_store, other_ids[i])) << pool;
      EXPECT_GT(own_errors[i].key, 0);
      EXPECT_EQ(own_errors[i].key, other_errors[i].key);
      EXPECT_EQ(own_errors[i].value, other_errors[i].value);
      EXPECT_EQ(own_errors[i].bits_per_value, other_errors[i].bits_per_value);
    }
  }
}

TEST(ChunkFormats, CompositionsOfSeveralFormatsAreCloseToThoseOfOneAndNotTheSame) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const std::vector<float> plain = logits(llm, register_all(llm, {}));
  for (const Formats& formats : {Formats{"", "int8", ""}, Formats{"", "", "int8"},
                                 Formats{"int8", "", ""}, Formats{"int8", "int8", "int8"}}) {
    const CompositionSpec spec = register_all(llm, formats);
    const std::vector<float> mixed = logits(llm, spec);
    ASSERT_EQ(mixed.size(), plain.size());
    EXPECT_GT(distance(plain, mixed), 0) << "it is other KV";
    EXPECT_LT(distance(plain, mixed), kMostDistance);
    EXPECT_EQ(logits(llm, spec), mixed) << "warm equals cold";
  }
}

// Decodes a composition of three formats beside others of other formats.
TEST(ChunkFormats, ABatchOfSeveralFormatsChangesNoTokenOfAnyRequest) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const std::vector<CompositionSpec> specs = {register_all(llm, {"", "int8", ""}),
                                              register_all(llm, {"int8", "int8", "int8"}),
                                              register_all(llm, {})};
  const SamplingParams greedy{.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  std::vector<Ids> alone;
  for (const CompositionSpec& spec : specs) {
    alone.push_back(llm.generate_from_chunks(spec, greedy).value().token_ids);
  }
  const auto together = llm.batch_generate_from_chunks(specs, {&greedy, 1}).value();
  ASSERT_EQ(together.size(), specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i].token_ids, alone[i]) << i;
  }
}

TEST(ChunkFormats, EqualTextInTwoFormatsIsTwoChunksAndEachIsFoundAgain) {
  ChunkedLLM llm = open_chunked("bfloat16");
  ChunkContent card{.content = std::string("Card 7. Ada trades in apples."),
                    .type = ChunkType::kContext};
  const std::string plain = must_register(llm, card);
  card.options.kv_dtype = "int8";
  const std::string coded = must_register(llm, card);
  EXPECT_NE(coded, plain);
  const double computed = stat(llm, "tokens_computed");
  EXPECT_EQ(must_register(llm, card), coded);
  card.options.kv_dtype = "bfloat16";
  EXPECT_EQ(must_register(llm, card), plain) << "the pool's own format by its name";
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  EXPECT_EQ(llm.get_chunk(coded)->kv_dtype, "int8");
  EXPECT_EQ(llm.get_chunk(plain)->kv_dtype, "bfloat16");
  EXPECT_FALSE(llm.get_chunk(plain)->kv_error.has_value());
}

TEST(ChunkFormats, BytesAreThoseOfTheFormatAndComeBack) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const double block = stat(llm, "block_bytes");
  const double free = stat(llm, "blocks_free");
  const std::string id =
      must_register(llm, content_of(some_ids(70, 2), ChunkType::kContext, "int8"));
  const std::int64_t bytes = llm.get_chunk(id)->memory_bytes;
  EXPECT_NEAR(static_cast<double>(bytes), 3 * block * (8 + 16.0 / 64) / 16, 1);
  EXPECT_EQ(stat(llm, "bytes_in_use"), bytes);
  EXPECT_EQ(stat(llm, "blocks_in_use"), 2) << "in blocks of the pool's own format, rounded up";
  EXPECT_EQ(llm.chunk_stats()->memory_used_bytes, bytes);
  EXPECT_TRUE(llm.delete_chunk(id).value());
  EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
  EXPECT_EQ(stat(llm, "blocks_free"), free);
}

TEST(ChunkFormats, APreviewSaysEachFormatAndTheBytes) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const CompositionSpec spec = register_all(llm, {"", "int8", ""});
  const CompositionInfo info = llm.preview_composition(spec).value();
  std::vector<std::string> formats;
  std::int64_t bytes = 0;
  for (const CompositionInfo::Segment& segment : info.segments) {
    formats.push_back(segment.kv_dtype);
    EXPECT_EQ(segment.cached, segment.type != ChunkType::kQuery);
    bytes += segment.type == ChunkType::kQuery ? 0 : llm.get_chunk(segment.chunk_id)->memory_bytes;
  }
  EXPECT_THAT(formats, ElementsAre("bfloat16", "int8", "bfloat16", "bfloat16"));
  EXPECT_EQ(info.memory_bytes, bytes + static_cast<std::int64_t>(stat(llm, "block_bytes")))
      << "and a block for the query";
}

std::vector<std::string> formats_of(const CompositionInfo& info) {
  std::vector<std::string> formats;
  for (const CompositionInfo::Segment& segment : info.segments) {
    formats.push_back(segment.kv_dtype);
  }
  return formats;
}

TEST(ChunkFormats, ASegmentKeepsTheFormatOfItsChunkInEveryMode) {
  ChunkedLLM llm = open_chunked("bfloat16");
  for (const ReuseMode mode :
       {ReuseMode::kExact, ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kBlend}) {
    const CompositionSpec spec = register_all(llm, {"", "int8", ""}, mode);
    EXPECT_THAT(formats_of(llm.preview_composition(spec).value()),
                ElementsAre("bfloat16", "int8", "bfloat16", "bfloat16"));
    std::vector<std::string> explained;
    for (const ReusePart& part : llm.explain(spec).value()) {
      explained.push_back(part.kv_dtype);
    }
    EXPECT_THAT(explained, ElementsAre("bfloat16", "int8", "bfloat16", "bfloat16"));
  }
}

// The oracle joins the ids: a chunk of the first three stands before the last one.
TEST(ChunkFormats, ModeExactComputesCodedChunksBehindAllThatIsBeforeThem) {
  ChunkedLLM llm =
      ChunkedLLM::open(kModel, {.dtype = "float32", .kv_dtype = "float32", .threads = 2}, {})
          .value();
  const CompositionSpec exact = register_all(llm, {"int8", "int8", "int8"}, ReuseMode::kExact);
  CompositionSpec anchored = exact;
  anchored.mode = ReuseMode::kAnchored;
  CompositionSpec oracle = anchored;
  oracle.system_chunk_id = must_register(
      llm, content_of(joined(some_ids(40, 1), some_ids(75, 2)), ChunkType::kSystemPrompt, "int8"));
  oracle.context_chunk_ids = {
      must_register(llm, content_of(some_ids(64, 3), ChunkType::kContext, "int8"))};
  const std::vector<float> wanted = logits(llm, oracle);
  const double bytes = stat(llm, "bytes_in_use");
  const std::vector<float> computed = logits(llm, exact);
  EXPECT_EQ(stat(llm, "bytes_in_use"), bytes) << "KV of one composition goes with it";
  EXPECT_LT(distance(wanted, computed), 0.2 * distance(wanted, logits(llm, anchored)))
      << "apart from codes of numbers that were rounded otherwise";
  EXPECT_EQ(logits(llm, exact), computed) << "whatever was computed before";
  EXPECT_EQ(llm.preview_composition(exact)->grade, ReuseGrade::kApproximate);
  EXPECT_GT(distance(logits(llm, register_all(llm, {}, ReuseMode::kExact)), computed), 0);
}

TEST(ChunkFormats, ModeExactComputesWhatItsPreviewSays) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const CompositionSpec spec = register_all(llm, {"", "int8", ""}, ReuseMode::kExact);
  const CompositionInfo info = llm.preview_composition(spec).value();
  const double before = stat(llm, "tokens_computed");
  const SamplingParams greedy{.temperature = 0, .max_tokens = 1, .ignore_eos = true};
  const GenerationOutput output = llm.generate_from_chunks(spec, greedy).value();
  EXPECT_EQ(stat(llm, "tokens_computed") - before, info.tokens_computed);
  EXPECT_EQ(output.usage.cached_tokens, info.tokens_reused);
  EXPECT_EQ(output.reuse.grade, info.grade);
  Sequence sequence = llm.sequence(spec).value();
  EXPECT_EQ(sequence.generate(greedy).value().token_ids, output.token_ids);
  const CompositionSpec plain = register_all(llm, {}, ReuseMode::kExact);
  EXPECT_EQ(llm.preview_composition(plain)->grade, ReuseGrade::kExact);
}

TEST(ChunkFormats, BlendRecomputesTokensOfChunksInAnyFormat) {
  ChunkedLLM llm = open_chunked("bfloat16");
  for (const Selector selector :
       {Selector::kFirst, Selector::kValueDeviation, Selector::kQueryAttention}) {
    CompositionSpec spec = register_all(llm, {"", "int8", ""}, ReuseMode::kBlend);
    spec.blend = {.selector = selector, .share = 0.25};
    CompositionSpec exact = register_all(llm, {"", "", ""}, ReuseMode::kBlend);
    exact.blend = spec.blend;
    const std::vector<float> mixed = logits(llm, spec);
    EXPECT_GT(mixed.size(), 0U);
    EXPECT_LT(distance(logits(llm, exact), mixed), 0.2);
    EXPECT_EQ(logits(llm, spec), mixed);
  }
}

TEST(ChunkFormats, NarrowingMakesANewChunkOfWhatIsThereAndTheOldIdIsGone) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const CompositionSpec spec = register_all(llm, {});
  const std::string old = spec.context_chunk_ids[0];
  const double computed = stat(llm, "tokens_computed");
  const std::int64_t wide = llm.get_chunk(old)->memory_bytes;
  const ChunkInfo info = llm.update_chunk(old, {.priority = 3, .kv_dtype = "int8"}).value();
  EXPECT_NE(info.chunk_id, old);
  EXPECT_EQ(info.kv_dtype, "int8");
  EXPECT_EQ(info.priority, 3);
  EXPECT_LT(info.memory_bytes, 0.53 * static_cast<double>(wide));
  ASSERT_TRUE(info.kv_error.has_value());
  EXPECT_GT(info.kv_error->key, 0);
  EXPECT_LT(info.kv_error->key, 0.02);
  EXPECT_EQ(llm.get_chunk(old).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(stat(llm, "tokens_computed"), computed);
  EXPECT_EQ(llm.logits_from_chunks(spec).error().code, ErrorCode::kNotFound);
}

TEST(ChunkFormats, ANarrowedChunkIsComposedWithoutBeingComputedAgain) {
  ChunkedLLM llm = open_chunked("bfloat16");
  CompositionSpec spec = register_all(llm, {});
  const std::vector<float> plain = logits(llm, spec);
  const Ids text = llm.get_chunk(spec.context_chunk_ids[0])->token_ids;
  const std::string old = spec.context_chunk_ids[0];
  spec.context_chunk_ids[0] = llm.update_chunk(old, {.kv_dtype = "int8"})->chunk_id;
  const double computed = stat(llm, "tokens_computed");
  const std::vector<float> narrowed = logits(llm, spec);
  EXPECT_EQ(stat(llm, "tokens_computed") - computed, 9) << "the query alone";
  EXPECT_EQ(llm.preview_composition(spec)->grade, ReuseGrade::kApproximate);
  EXPECT_GT(distance(plain, narrowed), 0);
  EXPECT_LT(distance(plain, narrowed), kMostDistance);
  const std::string again = must_register(llm, content_of(text, ChunkType::kContext));
  EXPECT_EQ(again, old) << "registering gives the wide chunk";
  EXPECT_NE(must_register(llm, content_of(text, ChunkType::kContext, "int8")),
            spec.context_chunk_ids[0])
      << "converted KV is not what registering computes";
  EXPECT_EQ(llm.update_chunk(again, {.kv_dtype = "int8"})->chunk_id, spec.context_chunk_ids[0]);
}

// No prefill computes what narrowing makes, so mode exact does not take it. Ids of chunks decide in
// which order runs are merged, so a number that is rounded to 16 bits may differ now and then.
TEST(ChunkFormats, ANarrowedChunkIsComputedAnewInModeExact) {
  ChunkedLLM llm = open_chunked("bfloat16");
  CompositionSpec registered{.mode = ReuseMode::kExact};
  registered.system_chunk_id =
      must_register(llm, content_of(some_ids(40, 1), ChunkType::kSystemPrompt));
  registered.context_chunk_ids = {
      must_register(llm, content_of(some_ids(75, 2), ChunkType::kContext, "int8"))};
  registered.query_chunk_id = must_register(llm, content_of(some_ids(9, 4), ChunkType::kQuery));
  CompositionSpec narrowed = registered;
  const std::string wide = must_register(llm, content_of(some_ids(75, 2), ChunkType::kContext));
  narrowed.context_chunk_ids = {llm.update_chunk(wide, {.kv_dtype = "int8"})->chunk_id};
  const double computed = stat(llm, "tokens_computed");
  const std::vector<float> anew = logits(llm, narrowed);
  EXPECT_EQ(stat(llm, "tokens_computed") - computed, 75 + 9) << "the context and the query";
  EXPECT_LT(distance(anew, logits(llm, registered)), 0.02);
  EXPECT_EQ(llm.preview_composition(narrowed)->grade, ReuseGrade::kApproximate);
  narrowed.mode = registered.mode = ReuseMode::kAnchored;
  EXPECT_NE(logits(llm, narrowed), logits(llm, registered));
}

TEST(ChunkFormats, ANarrowedAnchorLeavesTheContextsThatStandBehindIt) {
  ChunkedLLM llm = open_chunked("bfloat16");
  CompositionSpec spec = register_all(llm, {});
  const ChunkInfo before = llm.get_chunk(spec.context_chunk_ids[0]).value();
  const ChunkInfo anchor = llm.update_chunk(spec.system_chunk_id, {.kv_dtype = "int8"}).value();
  const ChunkInfo after = llm.get_chunk(spec.context_chunk_ids[0]).value();
  EXPECT_EQ(after.memory_bytes, before.memory_bytes);
  EXPECT_EQ(after.num_variants, before.num_variants);
  spec.system_chunk_id = anchor.chunk_id;
  EXPECT_FALSE(logits(llm, spec).empty()) << "computed under the new anchor";
}

TEST(ChunkFormats, FormatsThatThePoolHasNotAreRefusedAndNothingStays) {
  ChunkedLLM llm = open_chunked("bfloat16");
  for (const std::string name : {"float16", "int3"}) {
    const auto refused = llm.register_chunk(content_of(some_ids(5, 1), ChunkType::kContext, name));
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().code,
              name == "int3" ? ErrorCode::kInvalidArgument : ErrorCode::kUnsupported);
    EXPECT_THAT(refused.error().message, HasSubstr('"' + name + '"'));
    EXPECT_THAT(refused.error().message, HasSubstr("\"bfloat16\""));
    EXPECT_THAT(refused.error().message, HasSubstr("\"int8\""));
  }
  const std::string id = must_register(llm, content_of(some_ids(5, 1), ChunkType::kContext));
  EXPECT_EQ(llm.update_chunk(id, {.kv_dtype = "float32"}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(llm.get_chunk(id)->chunk_id, id);
}

// Chunks of a system prompt and two contexts of `format`, all ids below 200.
CompositionSpec register_small(ChunkedLLM& llm, const std::string& format) {
  CompositionSpec spec;
  const Ids all = chunks::Dice(5).ids(150, 3, 200);
  const auto add = [&](std::ptrdiff_t first, std::ptrdiff_t end, ChunkType type) {
    return must_register(llm, content_of(Ids(all.begin() + first, all.begin() + end), type,
                                         type == ChunkType::kContext ? format : ""));
  };
  spec.system_chunk_id = add(0, 30, ChunkType::kSystemPrompt);
  spec.context_chunk_ids = {add(30, 80, ChunkType::kContext), add(80, 141, ChunkType::kContext)};
  spec.query_chunk_id = add(141, 150, ChunkType::kQuery);
  return spec;
}

// Chunks keep all KV, also where layers have windows or differ in their KV, in the format of each.
// A store gives it back.
TEST(ChunkFormats, ChunksOfModelsWithWindowsOrUnevenLayersHaveTheirOwn) {
  for (const std::string name :
       {"gemma3", "gemma4", "gemma4_moe", "mistral_window", "phi3", "qwen2_window"}) {
    if (!computes_here(name)) {
      continue;
    }
    std::map<std::string, std::vector<float>> found;
    for (const std::string format : {"float32", "int8", "fp8", "int4"}) {
      const TemporaryFolder folder;
      for (const int life : {0, 1}) {
        ChunkedLLM llm =
            must(ChunkedLLM::open(source_path("tests/golden/model/" + name),
                                  {.dtype = "float32", .threads = 2}, {.store = folder.path()}));
        const CompositionSpec spec = register_small(llm, format);
        EXPECT_EQ(must(llm.get_chunk(spec.context_chunk_ids[0])).kv_dtype, format);
        const double computed = stat(llm, "tokens_computed");
        const std::vector<float> here = logits(llm, spec);
        EXPECT_EQ(stat(llm, "tokens_computed") - computed, 9)
            << "the query alone, " << name << ", " << format << ", life " << life;
        EXPECT_EQ(here, life == 0 ? here : found[format]) << name << ", " << format;
        found[format] = here;
        ASSERT_TRUE(llm.flush_store().ok());
      }
    }
    EXPECT_LT(distance(found["float32"], found["int8"]), 0.15) << name;
    EXPECT_LT(distance(found["float32"], found["fp8"]), 0.4) << name;
    EXPECT_LT(distance(found["float32"], found["int4"]), 0.8) << name;
    EXPECT_NE(found["float32"], found["int8"]) << name;
  }
}

TEST(ChunkFormats, ARunningRequestKeepsTheKVOfAChunkThatIsNarrowed) {
  ChunkedLLM llm = open_chunked("bfloat16");
  const CompositionSpec spec = register_all(llm, {});
  const SamplingParams greedy{.temperature = 0, .max_tokens = 200, .ignore_eos = true};
  const Ids alone = llm.generate_from_chunks(spec, greedy).value().token_ids;
  Stream stream = llm.stream_from_chunks(spec, greedy).value();
  Ids ids = stream.next().value()->token_ids;
  for (const std::string& id : spec.context_chunk_ids) {
    ASSERT_TRUE(llm.update_chunk(id, {.kv_dtype = "int8"}).ok());
  }
  for (auto delta = stream.next().value(); delta; delta = stream.next().value()) {
    ids = joined(ids, delta->token_ids);
  }
  EXPECT_EQ(ids, alone);
}

TEST(ChunkFormats, AChunkFromTheStoreGivesTheLogitsOfTheOneThatWasSaved) {
  for (const Compression compress : {Compression(), Compression(Compression::kZstd)}) {
    const TemporaryFolder folder;
    const auto in_process = [&] {
      ChunkedLLM llm =
          ChunkedLLM::open(kModel, {.kv_dtype = "bfloat16", .threads = 2},
                           {.store = folder.path() / "store", .compress_store = compress})
              .value();
      return logits(llm, register_all(llm, {"int8", "int8", ""}));
    };
    const std::vector<float> first = in_process();
    EXPECT_EQ(in_process(), first);
  }
}

TEST(ChunkFormats, KVThatCodesCannotHoldFailsItsRegistrationAlone) {
  const std::filesystem::path model =
      chunks::write_checkpoint("refused_chunk", {.with_secrets = true, .secret_values = 1e9f});
  ChunkedLLM llm = ChunkedLLM::open(model, {.dtype = "float32", .threads = 2}, {}).value();
  Ids bad(40, 7);
  bad[35] = kFirstSecret;
  const auto refused = llm.register_chunk(content_of(bad, ChunkType::kContext, "int8"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("cannot hold"));
  EXPECT_TRUE(llm.list_chunks().value().empty());
  EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
  const std::string wide = must_register(llm, content_of(bad, ChunkType::kContext));
  EXPECT_EQ(llm.update_chunk(wide, {.kv_dtype = "int8"}).error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(llm.get_chunk(wide)->kv_dtype, "float32") << "it stays as it is";
}

TEST(ChunkFormats, ASavedChunkComesBackInItsFormatAndIsAMissElsewhere) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  const ChunkContent content = content_of(some_ids(70, 5), ChunkType::kSystemPrompt, "int8");
  std::string id;
  KVError error;
  {
    ChunkedLLM llm = open_chunked("bfloat16", store);
    id = must_register(llm, content);
    error = llm.get_chunk(id)->kv_error.value();
  }
  {
    ChunkedLLM llm = open_chunked("bfloat16", store);
    EXPECT_EQ(must_register(llm, content), id);
    EXPECT_EQ(stat(llm, "tokens_computed"), 0);
    EXPECT_EQ(llm.get_chunk(id)->kv_dtype, "int8");
    EXPECT_EQ(llm.get_chunk(id)->kv_error->key, error.key);
    EXPECT_EQ(stat(llm, "bytes_in_use"), llm.get_chunk(id)->memory_bytes);
  }
  ChunkedLLM coded = open_chunked("int8", store);
  EXPECT_EQ(coded.get_chunk(id).error().code, ErrorCode::kNotFound);
  EXPECT_NE(must_register(coded, content), id);
  EXPECT_GT(stat(coded, "tokens_computed"), 0);
}

TEST(ChunkFormats, ANarrowedChunkReplacesItselfInTheStore) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  std::string old, narrowed;
  {
    ChunkedLLM llm = open_chunked("bfloat16", store);
    old = must_register(llm, content_of(some_ids(70, 6), ChunkType::kSystemPrompt));
    narrowed = llm.update_chunk(old, {.kv_dtype = "int8"})->chunk_id;
  }
  ChunkedLLM llm = open_chunked("bfloat16", store);
  EXPECT_EQ(llm.get_chunk(old).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(llm.get_chunk(narrowed)->kv_dtype, "int8");
  EXPECT_TRUE(llm.get_chunk(narrowed)->saved);
}

// Narrowed KV is what was stored, converted: nothing that a prefill computes has its id.
TEST(ChunkFormats, ANarrowedChunkIsReadFromItsStoreOrRefusedButNeverComputed) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  const auto open = [&](std::int32_t block_tokens) {
    return must(ChunkedLLM::open(
        kModel, here({.kv_dtype = "bfloat16", .block_tokens = block_tokens, .threads = 2}),
        {.store = store}));
  };
  CompositionSpec spec{.without_system = true, .mode = ReuseMode::kIndependent};
  std::vector<float> want;
  for (const std::int32_t block_tokens : {32, 32, 64}) {
    ChunkedLLM llm = open(block_tokens);
    spec.query_chunk_id = must_register(llm, content_of(some_ids(9, 4), ChunkType::kQuery));
    if (want.empty()) {
      const std::string wide = must_register(llm, content_of(some_ids(70, 6), ChunkType::kContext));
      spec.context_chunk_ids = {must(llm.update_chunk(wide, {.kv_dtype = "int4"})).chunk_id};
      want = logits(llm, spec);
    } else if (block_tokens == 32) {
      EXPECT_EQ(logits(llm, spec), want);
    } else {
      const double computed = stat(llm, "tokens_computed");
      const auto refused = llm.logits_from_chunks(spec);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
      EXPECT_EQ(refused.error().chunk_id, spec.context_chunk_ids[0]);
      EXPECT_THAT(refused.error().message, HasSubstr("block_tokens"));
      EXPECT_EQ(stat(llm, "tokens_computed"), computed);
      spec.mode = ReuseMode::kExact;
      EXPECT_FALSE(logits(llm, spec).empty()) << "mode exact computes every chunk anew";
      spec.mode = ReuseMode::kIndependent;
      const std::string wide = must_register(llm, content_of(some_ids(70, 6), ChunkType::kContext));
      EXPECT_EQ(must(llm.update_chunk(wide, {.kv_dtype = "int4"})).chunk_id,
                spec.context_chunk_ids[0]);
      EXPECT_FALSE(logits(llm, spec).empty()) << "the way out that the error names";
    }
    ASSERT_TRUE(llm.flush_store().ok());
  }
}

TEST(ChunkFormats, RefusedNarrowingSaysWhyAndTheWayOut) {
  const auto message = [](std::int32_t block_tokens, const std::string& kv_dtype) {
    ChunkedLLM llm = must(ChunkedLLM::open(
        kModel, here({.kv_dtype = "bfloat16", .block_tokens = block_tokens, .threads = 2}), {}));
    const std::string id = must_register(llm, content_of(some_ids(5, 1), ChunkType::kContext));
    const auto refused = llm.update_chunk(id, {.kv_dtype = kv_dtype});
    EXPECT_FALSE(refused.ok());
    return refused.ok() ? std::string() : refused.error().message;
  };
  EXPECT_THAT(message(16, "int4"), HasSubstr("open the model with block_tokens=32"));
  EXPECT_THAT(message(32, "float32"), HasSubstr("register the chunk's text with that kv_dtype"));
}

// Fills a small pool with chunks of both formats beside requests, again and again.
TEST(ChunkFormats, ASmallPoolServesBothFormatsInTurn) {
  ChunkedLLM probe = open_chunked("bfloat16");
  const auto budget = static_cast<std::int64_t>(24 * stat(probe, "block_bytes"));
  ChunkedLLM llm = open_chunked("bfloat16", "", budget);
  const SamplingParams greedy{.temperature = 0, .max_tokens = 4, .ignore_eos = true};
  for (std::uint32_t i = 0; i < 24; ++i) {
    const auto registered = llm.register_chunk(
        content_of(some_ids(40 + 13 * (i % 5), i), ChunkType::kContext, i % 3 == 0 ? "" : "int8"));
    ASSERT_TRUE(registered.ok()) << registered.error().message;
    ASSERT_TRUE(llm.llm().generate(some_ids(90, 100 + i), greedy).ok());
  }
  EXPECT_GT(llm.chunk_stats()->evictions, 0);
  ASSERT_TRUE(llm.clear_chunks().ok());
  EXPECT_EQ(stat(llm, "bytes_in_use"), 0);
}

}  // namespace
}  // namespace quire
