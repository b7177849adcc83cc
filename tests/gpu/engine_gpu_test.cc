// The whole engine on a GPU, on the demo model. Oracle: the same calls on the CPU, and for state
// the GPU's own run from scratch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/checkpoints.h"
#include "quire/chunks.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sampling/sampler.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {
namespace {

using testing::HasSubstr;

const SamplingParams kGreedy = {.temperature = 0, .max_tokens = 24, .ignore_eos = true};

LLMOptions on(const std::string& device, const std::string& dtype = "bfloat16") {
  return {.device = device, .dtype = dtype, .threads = 2};
}

LLM open(const std::string& device, const std::string& dtype = "bfloat16",
         const std::string& kv_dtype = "auto") {
  LLMOptions options = on(device, dtype);
  options.kv_dtype = kv_dtype;
  auto llm = LLM::open(kModel, options);
  EXPECT_TRUE(llm.ok()) << llm.error().message;
  return std::move(llm).value();
}

ChunkedLLM open_chunked(const std::string& device, const std::string& store = "") {
  auto llm = ChunkedLLM::open(kModel, on(device), {.store = store});
  EXPECT_TRUE(llm.ok()) << llm.error().message;
  return std::move(llm).value();
}

std::vector<float> last_logits(LLM& llm, const Ids& ids) {
  return llm.forward(ids, ForwardReuse::kNone, ForwardRows::kLast).value().logits;
}

Ids answer(LLM& llm, const Ids& prompt) { return llm.generate(prompt, kGreedy).value().token_ids; }

TEST(Gpu, LogitsAreAsCloseToFp32AsTheCpusTwiceOver) {
  LLM gpu = open("cuda"), cpu = open("cpu"), exact = open("cpu", "float32");
  for (const std::size_t length : {1, 5, 32, 33, 200, 700, 1500}) {
    const Ids ids = some_ids(length, static_cast<std::uint32_t>(length));
    const auto want = last_logits(exact, ids);
    const double ours = distance(want, last_logits(gpu, ids));
    const double theirs = distance(want, last_logits(cpu, ids));
    EXPECT_LE(ours, 2 * theirs + 1e-3) << length << " tokens";
  }
}

TEST(Gpu, GreedyIdsOfRealQuestionsEqualTheCpus) {
  LLM gpu = open("cuda"), cpu = open("cpu");
  const std::string cards =
      "Card 7. Ada trades in apples. Card 9. Ben lives in Oslo. Question: what does Ada trade in?";
  const SamplingParams params = {.temperature = 0, .max_tokens = 16};
  EXPECT_EQ(gpu.generate(cards, params).value().token_ids,
            cpu.generate(cards, params).value().token_ids);
}

void expect_a_warm_request_to_give_the_bits_of_a_cold_one(LLM& gpu) {
  const Ids prompt = some_ids(300, 1);
  const Ids longer = joined(prompt, some_ids(50, 2));
  const auto cold = last_logits(gpu, longer);
  (void)answer(gpu, prompt);
  const auto warm = gpu.forward(longer, ForwardReuse::kExact, ForwardRows::kLast).value();
  EXPECT_GT(stat(gpu, "tokens_reused"), 256);
  EXPECT_EQ(warm.logits, cold);
}

void expect_a_batch_to_give_what_each_prompt_gives_alone(LLM& gpu) {
  std::vector<Prompt> prompts;
  std::vector<Ids> alone;
  for (std::uint32_t i = 0; i < 12; ++i) {
    const Ids prompt = some_ids(20 + 37 * i, i);
    alone.push_back(answer(gpu, prompt));
    prompts.emplace_back(prompt);
  }
  EXPECT_TRUE(gpu.clear_prefix_cache().ok());
  const auto outputs = gpu.generate_batch(prompts, {&kGreedy, 1}).value();
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(outputs[i].token_ids, alone[i]) << i;
  }
}

TEST(Gpu, AWarmRequestGivesTheBitsOfAColdOne) {
  LLM gpu = open("cuda");
  expect_a_warm_request_to_give_the_bits_of_a_cold_one(gpu);
}

TEST(Gpu, ABatchGivesWhatEachPromptGivesAlone) {
  LLM gpu = open("cuda");
  expect_a_batch_to_give_what_each_prompt_gives_alone(gpu);
}

// The first steps of a shape are launched kernel by kernel, the third as a graph: this many tokens
// pass through shapes several times.
TEST(Gpu, ManyStepsInBatchesOfAnySizeGiveWhatEachPromptGivesAlone) {
  LLM gpu = open("cuda");
  const SamplingParams longer = {.temperature = 0, .max_tokens = 70, .ignore_eos = true};
  std::vector<Prompt> prompts;
  std::vector<Ids> alone;
  for (std::uint32_t i = 0; i < 7; ++i) {
    const Ids prompt = some_ids(20 + 31 * i, 40 + i);
    alone.push_back(gpu.generate(prompt, longer).value().token_ids);
    prompts.emplace_back(prompt);
  }
  for (const std::size_t count : {2u, 3u, 5u, 7u}) {
    const auto outputs = gpu.generate_batch(std::span(prompts).first(count), {&longer, 1}).value();
    for (std::size_t i = 0; i < count; ++i) {
      EXPECT_EQ(outputs[i].token_ids, alone[i]) << i << " of " << count;
    }
  }
}

// No step with a penalty is launched ahead, also where it is too small to change a logit.
TEST(Gpu, StepsLaunchedAheadGiveTheTokensOfStepsOneAfterTheOther) {
  struct Answer {
    Ids ids;
    std::vector<TokenLogprobs> logprobs;
    bool operator==(const Answer&) const = default;
  };
  LLM gpu = open("cuda");
  std::vector<Prompt> prompts;
  std::vector<SamplingParams> params;
  const std::optional<std::int32_t> logprobs[] = {std::nullopt, 0, 3, 40, 1024};
  for (std::uint32_t i = 0; i < 9; ++i) {
    prompts.emplace_back(some_ids(20 + 31 * i, 70 + i));
    params.push_back({.temperature = i % 3 == 0 ? 0 : 1.2,
                      .max_tokens = 60 + static_cast<std::int32_t>(i) * 5,
                      .ignore_eos = true,
                      .seed = i,
                      .logprobs = logprobs[i % 5]});
  }
  const auto answers = [&](bool ahead) {
    EXPECT_TRUE(gpu.clear_prefix_cache().ok());
    std::vector<SamplingParams> each = params;
    for (SamplingParams& one : each) {
      one.presence_penalty = ahead ? 0 : 1e-300;
    }
    const double before = stat(gpu, "steps_ahead");
    std::vector<Answer> given;
    for (auto& output : gpu.generate_batch(prompts, each).value()) {
      given.push_back({std::move(output.token_ids), std::move(output.logprobs)});
    }
    EXPECT_EQ(stat(gpu, "blocks_in_use"), 0);
    EXPECT_EQ(stat(gpu, "steps_ahead") - before > 30, ahead);
    return given;
  };
  const std::vector<Answer> whole = answers(false);
  EXPECT_TRUE(answers(true) == whole);
  for (std::size_t i = 0; i < params.size(); i += 2) {  // these end while a step further runs
    params[i].stop_token_ids = {whole[i].ids[10 + 5 * i]};
  }
  const std::vector<Answer> stopped = answers(false);
  EXPECT_LT(stopped[2].ids.size(), whole[2].ids.size());
  EXPECT_TRUE(answers(true) == stopped);
}

// Expects the tokens that the sampler makes of the logits of each prefix of the answer.
void expect_sampled_by_host(LLM& llm, const Ids& prompt, const SamplingParams& params,
                            const GenerationOutput& output) {
  sampling::Sampler sampler;
  ASSERT_EQ(output.logprobs.size(), output.token_ids.size());
  for (std::size_t i = 0; i < output.token_ids.size(); ++i) {
    const Ids before(output.token_ids.begin(),
                     output.token_ids.begin() + static_cast<std::ptrdiff_t>(i));
    std::vector<float> logits = last_logits(llm, joined(prompt, before));
    const auto want = sampler.sample(logits, {.params = &params,
                                              .seed = params.seed.value_or(0),
                                              .index = static_cast<std::int32_t>(i),
                                              .prompt = prompt,
                                              .output = before,
                                              .end_ids = params.stop_token_ids});
    ASSERT_TRUE(want.ok()) << want.error().message;
    EXPECT_EQ(output.token_ids[i], want->id) << "token " << i;
    ASSERT_EQ(output.logprobs[i].size(), want->logprobs.size()) << "token " << i;
    for (std::size_t place = 0; place < want->logprobs.size(); ++place) {
      EXPECT_EQ(output.logprobs[i][place].first, want->logprobs[place].first)
          << "token " << i << ", place " << place;
      EXPECT_NEAR(output.logprobs[i][place].second, want->logprobs[place].second, 1e-4)
          << "token " << i << ", place " << place;
    }
  }
}

TEST(Gpu, TokensAndLogProbabilitiesAreThoseOfTheHostsSamplerOverTheSameLogits) {
  LLM llm = open("cuda");
  const Ids prompt = some_ids(60, 5);
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1, .max_tokens = 40, .ignore_eos = true, .seed = 3},
        SamplingParams{
            .temperature = 0.8, .top_p = 0.9, .max_tokens = 40, .ignore_eos = true, .seed = 4},
        SamplingParams{.temperature = 1.5,
                       .top_k = 20,
                       .min_p = 0.05,
                       .max_tokens = 40,
                       .ignore_eos = true,
                       .seed = 5},
        SamplingParams{
            .temperature = 0, .repetition_penalty = 1.3, .max_tokens = 40, .ignore_eos = true},
        SamplingParams{.temperature = 1,
                       .repetition_penalty = 0.8,
                       .presence_penalty = 0.4,
                       .frequency_penalty = -0.2,
                       .max_tokens = 40,
                       .min_tokens = 30,
                       .stop_token_ids = {20, 300},
                       .ignore_eos = true,
                       .seed = 6,
                       .logit_bias = {{11, 4.0}, {12, -1e300}}}}) {
    for (const std::int32_t logprobs : {0, 5, 1024}) {
      SamplingParams told = params;
      told.logprobs = logprobs;
      const GenerationOutput output = llm.generate(prompt, told).value();
      expect_sampled_by_host(llm, prompt, told, output);
      EXPECT_EQ(llm.generate(prompt, params).value().token_ids, output.token_ids);
    }
  }
}

TEST(Gpu, ForksRollbacksAndEditsEqualRunsFromScratch) {
  LLM gpu = open("cuda");
  const Ids ids = some_ids(150, 4);
  Sequence sequence = gpu.sequence(ids).value();
  const Mark mark = sequence.checkpoint().value();
  const Ids first = sequence.generate(kGreedy).value().token_ids;
  EXPECT_EQ(first, answer(gpu, ids));
  ASSERT_TRUE(sequence.rollback(mark).ok());
  Sequence fork = sequence.fork().value();
  EXPECT_EQ(fork.generate(kGreedy).value().token_ids, first);
  ASSERT_TRUE(sequence.replace(40, 50, some_ids(7, 9)).ok());
  Ids edited(ids.begin(), ids.begin() + 40);
  edited = joined(joined(edited, some_ids(7, 9)), Ids(ids.begin() + 50, ids.end()));
  EXPECT_TRUE(gpu.clear_prefix_cache().ok());
  EXPECT_EQ(sequence.generate(kGreedy).value().token_ids, answer(gpu, edited));
}

void expect_the_same_kv_back(const std::string& kv_dtype) {
  const TemporaryFolder folder;
  const std::string from_cpu = folder.path() / "cpu.qkv", from_gpu = folder.path() / "gpu.qkv";
  LLM gpu = open("cuda", "bfloat16", kv_dtype), cpu = open("cpu", "bfloat16", kv_dtype);
  const Ids ids = some_ids(333, 6);
  Sequence on_cpu = cpu.sequence(ids).value();
  ASSERT_TRUE(on_cpu.append(some_ids(3, 1)).ok());
  ASSERT_TRUE(on_cpu.save(from_cpu).ok());
  Sequence on_gpu = gpu.load_sequence(from_cpu).value();
  ASSERT_TRUE(on_gpu.save(from_gpu).ok());
  Sequence back = cpu.load_sequence(from_gpu).value();
  EXPECT_EQ(back.tokens(), on_cpu.tokens());
  EXPECT_EQ(back.generate(kGreedy).value().token_ids, on_cpu.generate(kGreedy).value().token_ids);
  EXPECT_EQ(on_gpu.generate(kGreedy).value().token_ids.size(), 24);
}

TEST(Gpu, AFileGoesFromCpuToGpuAndBackWithTheSameKvToTheBit) { expect_the_same_kv_back("auto"); }

TEST(Gpu, Int8KVGoesFromCpuToGpuAndBackToTheBit) { expect_the_same_kv_back("int8"); }

TEST(Gpu, OverCodesOfKVLogitsAreAsCloseToFp32AsTheCpusTwiceOver) {
  LLM exact = open("cpu", "float32");
  for (const std::string format : {"int8", "fp8", "int4"}) {
    LLM gpu = open("cuda", "bfloat16", format), half = open("cuda", "float16", format);
    LLM cpu = open("cpu", "bfloat16", format);
    for (const std::size_t length : {1, 5, 32, 33, 200, 700, 1500}) {
      const Ids ids = some_ids(length, static_cast<std::uint32_t>(length));
      const auto want = last_logits(exact, ids);
      const double most = 2 * distance(want, last_logits(cpu, ids)) + 1e-3;
      EXPECT_LE(distance(want, last_logits(gpu, ids)), most) << format << ", " << length;
      EXPECT_LE(distance(want, last_logits(half, ids)), most) << format << ", " << length;
    }
  }
}

// Rows of a batch are computed as many, as few and alone, behind blocks of whole and of parts.
TEST(Gpu, OverCodesOfKVAWarmRequestGivesTheBitsOfAColdOneAndABatchThoseOfEachAlone) {
  for (const std::string format : {"int8", "fp8", "int4"}) {
    for (const std::string dtype : {"bfloat16", "float16"}) {
      SCOPED_TRACE(format + ", " + dtype);
      LLM gpu = open("cuda", dtype, format);
      expect_a_warm_request_to_give_the_bits_of_a_cold_one(gpu);
      expect_a_batch_to_give_what_each_prompt_gives_alone(gpu);
    }
  }
}

TEST(Gpu, AChunkOverCodesSaysWhatItsFormatHasChanged) {
  for (const std::string format : {"int8", "fp8", "int4"}) {
    const auto error_on = [&](const std::string& device, bool of_the_pool) {
      LLMOptions options = on(device);
      options.kv_dtype = of_the_pool ? format : "auto";
      ChunkedLLM llm = ChunkedLLM::open(kModel, options, {}).value();
      ChunkContent content{.content = some_ids(140, 2)};
      content.options.kv_dtype = format;
      return llm.get_chunk(llm.register_chunk(content).value()).value().kv_error.value();
    };
    const KVError cpu = error_on("cpu", true);
    for (const bool of_the_pool : {true, false}) {
      const KVError gpu = error_on("cuda", of_the_pool);
      EXPECT_NEAR(gpu.key, cpu.key, 0.02 * cpu.key) << format;
      EXPECT_NEAR(gpu.value, cpu.value, 0.02 * cpu.value) << format;
    }
  }
}

TEST(Gpu, SavedByAGpuItGoesOnBitForBit) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "gpu.qkv";
  const Ids ids = some_ids(200, 8);
  Ids want;
  {
    LLM gpu = open("cuda");
    Sequence sequence = gpu.sequence(ids).value();
    ASSERT_TRUE(sequence.save(file).ok());
    want = sequence.generate(kGreedy).value().token_ids;
  }
  LLM gpu = open("cuda");
  Sequence sequence = gpu.load_sequence(file).value();
  EXPECT_EQ(sequence.generate(kGreedy).value().token_ids, want);
  EXPECT_LT(stat(gpu, "tokens_computed"), 30);
}

// A system chunk, three cards and a question, all of ids.
CompositionSpec register_scene(ChunkedLLM& llm) {
  const auto add = [&](std::size_t count, std::uint32_t seed, ChunkType type) {
    return llm.register_chunk({.content = some_ids(count, seed), .type = type}).value();
  };
  CompositionSpec spec{.system_chunk_id = add(33, 1, ChunkType::kSystemPrompt)};
  for (std::uint32_t i = 0; i < 3; ++i) {
    spec.context_chunk_ids.push_back(add(40 + 31 * i, 10 + i, ChunkType::kContext));
  }
  spec.query_chunk_id = add(12, 99, ChunkType::kQuery);
  return spec;
}

TEST(Gpu, EveryModeOfComposingAgreesWithTheCpu) {
  ChunkedLLM gpu = open_chunked("cuda"), cpu = open_chunked("cpu");
  CompositionSpec spec = register_scene(gpu);
  ASSERT_EQ(register_scene(cpu).query_chunk_id, spec.query_chunk_id) << "ids name what KV means";
  std::vector<CompositionSpec> specs;
  for (const ReuseMode mode : {ReuseMode::kExact, ReuseMode::kAnchored, ReuseMode::kIndependent}) {
    spec.mode = mode;
    specs.push_back(spec);
  }
  spec.mode = ReuseMode::kBlend;
  spec.blend = {.selector = Selector::kQueryAttention, .share = 0.3};
  specs.push_back(spec);
  spec.blend = {.selector = Selector::kValueDeviation, .share = 0.3};
  specs.push_back(spec);
  spec.blend = {.selector = Selector::kFirst, .share = 1};
  specs.push_back(spec);
  for (const CompositionSpec& each : specs) {
    const auto ours = gpu.logits_from_chunks(each);
    const auto theirs = cpu.logits_from_chunks(each);
    ASSERT_TRUE(ours.ok()) << ours.error().message;
    EXPECT_LE(distance(theirs->logits, ours->logits), 0.03)
        << reuse_mode_name(each.mode) << " " << selector_name(each.blend.selector);
  }
}

TEST(Gpu, ChunksInAnyOrderAndManyAtOnceEqualEachAlone) {
  ChunkedLLM gpu = open_chunked("cuda");
  CompositionSpec spec = register_scene(gpu);
  std::vector<CompositionSpec> specs(6, spec);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    std::ranges::rotate(specs[i].context_chunk_ids, specs[i].context_chunk_ids.begin() + i % 3);
  }
  std::vector<Ids> alone;
  for (const CompositionSpec& each : specs) {
    alone.push_back(gpu.generate_from_chunks(each, kGreedy).value().token_ids);
  }
  const auto together = gpu.batch_generate_from_chunks(specs, {&kGreedy, 1}).value();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(together[i].token_ids, alone[i]) << i;
  }
}

TEST(Gpu, ChunksOutliveTheProcessAndChangeTheDevice) {
  const TemporaryFolder folder;
  const std::string store = folder.path() / "store";
  CompositionSpec spec;
  Ids want;
  {
    ChunkedLLM gpu = open_chunked("cuda", store);
    spec = register_scene(gpu);
    want = gpu.generate_from_chunks(spec, kGreedy).value().token_ids;
  }
  ChunkedLLM gpu = open_chunked("cuda", store);
  EXPECT_EQ(gpu.generate_from_chunks(spec, kGreedy).value().token_ids, want);
  EXPECT_LE(stat(gpu, "tokens_computed"), 12 + 24);
}

TEST(Gpu, ItemsOfAContextMoveToTheHostAndBack) {
  LLM gpu = open("cuda");
  const TemporaryFolder folder;
  ContextManager context = ContextManager::open(gpu, {.store = folder.path() / "store"}).value();
  const std::string card = context.add("Card 7. Ada trades in apples.").value();
  const auto ask = [&] {
    const auto answer = context.infer("What does Ada trade in?", kGreedy).value();
    EXPECT_TRUE(context.erase(answer.user_id).ok());
    EXPECT_TRUE(context.erase(answer.output_id).ok());
    return answer.output.token_ids;
  };
  const Ids before = ask();
  ASSERT_TRUE(context.unload(card).ok());
  EXPECT_EQ(context.show(card).value().tier, Tier::kHost);
  const double computed = stat(gpu, "tokens_computed");
  ASSERT_TRUE(context.restore(card).ok());
  EXPECT_EQ(stat(gpu, "tokens_computed"), computed);
  EXPECT_EQ(ask(), before);
  ASSERT_TRUE(context.save(card).ok());
  ASSERT_TRUE(context.unload(card, true).ok());
  ASSERT_TRUE(context.restore(card).ok());
  EXPECT_EQ(ask(), before);
}

TEST(Gpu, WithoutADtypeItComputesInBfloat16) {
  LLM chosen = open("cuda", "bfloat16"), left_open = open("cuda", "auto");
  const Ids ids = some_ids(50, 9);
  EXPECT_EQ(answer(left_open, ids), answer(chosen, ids));
  EXPECT_EQ(last_logits(left_open, ids), last_logits(chosen, ids));
}

// fp16 has 3 bits more than bf16, so its logits are nearer to fp32's than bf16's by most of 8: half
// of that is asked for.
TEST(Gpu, InFloat16LogitsAreNearerToFp32ThanInBfloat16) {
  LLM half = open("cuda", "float16"), gpu = open("cuda"), exact = open("cpu", "float32");
  double ours = 0, theirs = 0;
  for (const std::size_t length : {1, 5, 32, 33, 200, 700, 1500}) {
    const Ids ids = some_ids(length, static_cast<std::uint32_t>(length));
    const auto want = last_logits(exact, ids);
    ours = std::max(ours, distance(want, last_logits(half, ids)));
    theirs = std::max(theirs, distance(want, last_logits(gpu, ids)));
  }
  EXPECT_LE(ours, theirs / 4);
}

TEST(Gpu, InFloat16GreedyIdsAreThoseOfTheCpusFp32) {
  LLMOptions fast = on("cuda", "float16");
  fast.deterministic = false;
  const std::string cards =
      "Card 7. Ada trades in apples. Card 9. Ben lives in Oslo. Question: what does Ada trade in?";
  const SamplingParams params = {.temperature = 0, .max_tokens = 16};
  const Ids want = open("cpu", "float32").generate(cards, params).value().token_ids;
  EXPECT_EQ(open("cuda", "float16").generate(cards, params).value().token_ids, want);
  EXPECT_EQ(LLM::open(kModel, fast).value().generate(cards, params).value().token_ids, want);
}

TEST(Gpu, InFloat16AWarmRequestGivesTheBitsOfAColdOneAndABatchThoseOfEachAlone) {
  LLM gpu = open("cuda", "float16");
  const Ids prompt = some_ids(300, 1);
  const Ids longer = joined(prompt, some_ids(50, 2));
  const auto cold = last_logits(gpu, longer);
  const Ids alone = answer(gpu, prompt);
  EXPECT_EQ(gpu.forward(longer, ForwardReuse::kExact, ForwardRows::kLast).value().logits, cold);
  const std::vector<Prompt> prompts = {Prompt(some_ids(77, 3)), Prompt(prompt)};
  EXPECT_EQ(gpu.generate_batch(prompts, {&kGreedy, 1}).value()[1].token_ids, alone);
}

TEST(Gpu, Float16KvGoesOnWhereItFitsAndIsRefusedByNameElsewhere) {
  const TemporaryFolder folder;
  const std::string file = folder.path() / "half.qkv", again = folder.path() / "again.qkv";
  Ids want;
  {
    LLM half = open("cuda", "float16");
    Sequence sequence = half.sequence(some_ids(200, 8)).value();
    ASSERT_TRUE(sequence.save(file).ok());
    want = sequence.generate(kGreedy).value().token_ids;
  }
  LLM half = open("cuda", "float16");
  Sequence sequence = half.load_sequence(file).value();
  ASSERT_TRUE(sequence.save(again).ok());
  EXPECT_EQ(sequence.generate(kGreedy).value().token_ids, want);
  EXPECT_LT(stat(half, "tokens_computed"), 30);
  for (const char* const device : {"cpu", "cuda"}) {
    LLM other = open(device);
    const auto refused = other.load_sequence(file);
    ASSERT_FALSE(refused.ok()) << device;
    EXPECT_EQ(refused.error().code, ErrorCode::kIncompatible);
    EXPECT_THAT(refused.error().message, HasSubstr("dtype is float16, here it is bfloat16"));
  }
}

TEST(Gpu, InFloat16ChunksGiveTheLogitsOfTheCpusFp32) {
  const auto open_as = [](const char* device, const char* dtype) {
    return ChunkedLLM::open(kModel, on(device, dtype), {}).value();
  };
  ChunkedLLM half = open_as("cuda", "float16"), exact = open_as("cpu", "float32");
  CompositionSpec spec = register_scene(half), theirs = register_scene(exact);
  EXPECT_NE(spec.query_chunk_id, theirs.query_chunk_id) << "ids name the format too";
  for (const Selector selector : {Selector::kQueryAttention, Selector::kValueDeviation}) {
    for (CompositionSpec* const each : {&spec, &theirs}) {
      each->mode = ReuseMode::kBlend;
      each->blend = {.selector = selector, .share = 0.3};
    }
    EXPECT_LE(distance(exact.logits_from_chunks(theirs).value().logits,
                       half.logits_from_chunks(spec).value().logits),
              0.03);
  }
}

TEST(Gpu, WhatItCannotDoIsATypedError) {
  EXPECT_EQ(LLM::open(kModel, on("cuda:99")).error().code, ErrorCode::kDevice);
  EXPECT_EQ(LLM::open(kModel, on("cuda", "float32")).error().code, ErrorCode::kUnsupported);
  LLMOptions mixed = on("cuda", "bfloat16");
  mixed.kv_dtype = "float16";
  const auto refused = LLM::open(kModel, mixed);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message, HasSubstr("KV has the type of the weights"));
  LLMOptions large = on("cuda");
  large.kv_budget_bytes = std::int64_t{1} << 39;
  EXPECT_EQ(LLM::open(kModel, large).error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(LLM::open(kModel, {.device = "tpu"}).error().code, ErrorCode::kInvalidArgument);
}

TEST(Gpu, FasterWithoutDeterminismItStillAnswersRight) {
  LLMOptions options = on("cuda");
  options.deterministic = false;
  LLM gpu = LLM::open(kModel, options).value();
  LLM exact = open("cpu", "float32"), cpu = open("cpu");
  const Ids ids = some_ids(900, 3);
  const auto want = last_logits(exact, ids);
  EXPECT_LE(distance(want, last_logits(gpu, ids)),
            2 * distance(want, last_logits(cpu, ids)) + 1e-3);
  EXPECT_EQ(gpu.generate(ids, kGreedy).value().reuse.grade, ReuseGrade::kEqualMath);
}

}  // namespace
}  // namespace quire
