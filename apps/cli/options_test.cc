#include "options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <string>

#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/sampling.h"

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

struct Parsed {
  Format format = Format::kText;
  std::string model;
  LLMOptions engine;
  SamplingParams sampling;
  ChatOptions chat;
  std::string error;  // empty when the line was accepted
};

Parsed parse(const std::string& line) {
  Parsed parsed;
  CLI::App app("test", "test");
  add_model(app, parsed.model);
  add_format(app, parsed.format);
  add_engine_options(app, parsed.engine);
  add_sampling_options(app, parsed.sampling);
  add_chat_options(app, parsed.chat);
  try {
    app.parse(line);
  } catch (const CLI::ParseError& error) {
    parsed.error = error.what();
  }
  return parsed;
}

TEST(Options, DefaultsAreThoseOfTheLibrary) {
  const Parsed parsed = parse("folder");
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.model, "folder");
  EXPECT_EQ(parsed.format, Format::kText);
  EXPECT_EQ(parsed.engine.block_tokens, LLMOptions().block_tokens);
  EXPECT_EQ(parsed.engine.kv_budget_bytes, LLMOptions().kv_budget_bytes);
  EXPECT_EQ(parsed.sampling.max_tokens, SamplingParams().max_tokens);
  EXPECT_FALSE(parsed.sampling.seed.has_value());
}

TEST(Options, EveryEngineOptionReachesItsField) {
  const LLMOptions engine =
      parse(
          "m --device cuda:1 --dtype float32 --quantize q4g32 --kv-dtype bfloat16 --block-tokens "
          "16 "
          "--kv-budget 512MiB --max-batch-tokens 64 --threads 3 --no-prefix-cache --store dir "
          "--cache-weights --not-deterministic --no-share-reads")
          .engine;
  EXPECT_EQ(engine.device, "cuda:1");
  EXPECT_EQ(engine.dtype, "float32");
  EXPECT_EQ(engine.quantize, "q4g32");
  EXPECT_EQ(engine.kv_dtype, "bfloat16");
  EXPECT_EQ(engine.block_tokens, 16);
  EXPECT_EQ(engine.kv_budget_bytes, std::int64_t{512} << 20);
  EXPECT_EQ(engine.max_batch_tokens, 64);
  EXPECT_EQ(engine.threads, 3);
  EXPECT_FALSE(engine.prefix_cache);
  EXPECT_EQ(engine.store, "dir");
  EXPECT_TRUE(engine.cache_weights);
  EXPECT_FALSE(engine.deterministic);
  EXPECT_FALSE(engine.share_reads);
}

// Returns the option for a field, --x, --no-x or --not-x; "" if the command has none.
template <class Field>
std::string option_for(const CLI::App& app, const Field& field) {
  std::string name = field.name;
  std::ranges::replace(name, '_', '-');
  for (const std::string& option : {"--" + name, "--no-" + name, "--not-" + name}) {
    if (app.get_option_no_throw(option) != nullptr) {
      return option;
    }
  }
  return "";
}

TEST(Options, EveryFieldHasAnOptionWithItsHelp) {
  CLI::App app("test", "test");
  LLMOptions engine;
  SamplingParams sampling;
  add_engine_options(app, engine);
  add_sampling_options(app, sampling);
  for (const LLMField& field : llm_fields()) {
    const std::string option = option_for(app, field);
    ASSERT_NE(option, "") << field.name;
    if (option != "--seed") {  // that of the request
      EXPECT_EQ(app.get_option(option)->get_description(), field.help);
    }
  }
  EXPECT_STREQ(sampling_fields().back().name, "speculate");
  for (const SamplingField& field : settable_fields()) {
    const std::string option = option_for(app, field);
    ASSERT_NE(option, "") << field.name;
    EXPECT_THAT(app.get_option(option)->get_description(), HasSubstr(field.help));
  }
}

TEST(Options, QuantizeNoneMeansNoQuantisation) {
  EXPECT_EQ(parse("m --quantize none").engine.quantize, "");
}

TEST(Options, EverySamplingOptionReachesItsField) {
  const SamplingParams params =
      parse(
          "m --max-tokens 9 --min-tokens 2 --temperature 0.5 --top-p 0.9 --top-k 40 --min-p 0.1 "
          "--repetition-penalty 1.1 --presence-penalty -0.5 --frequency-penalty 0.25 --seed 7 "
          "--logprobs 3 --stop END --stop . --stop-token-ids 2,5 --ignore-eos --logit-bias 4=-1.5 "
          "--logit-bias 6=2")
          .sampling;
  EXPECT_EQ(params.max_tokens, 9);
  EXPECT_EQ(params.min_tokens, 2);
  EXPECT_EQ(params.temperature, 0.5);
  EXPECT_EQ(params.top_p, 0.9);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.min_p, 0.1);
  EXPECT_EQ(params.repetition_penalty, 1.1);
  EXPECT_EQ(params.presence_penalty, -0.5);
  EXPECT_EQ(params.frequency_penalty, 0.25);
  EXPECT_EQ(params.seed, 7U);
  EXPECT_EQ(params.logprobs, 3);
  EXPECT_THAT(params.stop, ElementsAre("END", "."));
  EXPECT_THAT(params.stop_token_ids, ElementsAre(2, 5));
  EXPECT_TRUE(params.ignore_eos);
  EXPECT_THAT(params.logit_bias, ElementsAre(Pair(4, -1.5), Pair(6, 2.0)));
}

TEST(Options, ListOptionsDoNotSwallowWhatFollows) {
  const Parsed parsed = parse("--stop END --document a.txt --stop-token-ids 3 folder");
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.model, "folder");
  EXPECT_THAT(parsed.chat.document_files, ElementsAre("a.txt"));
}

TEST(Options, FormatIsTextOrJson) {
  EXPECT_EQ(parse("m --format json").format, Format::kJson);
  EXPECT_THAT(parse("m --format xml").error, HasSubstr("\"xml\""));
}

TEST(Options, BadValuesAreRefusedWithTheirText) {
  EXPECT_THAT(parse("m --kv-budget 5parsecs").error, HasSubstr("5parsecs"));
  EXPECT_THAT(parse("m --max-tokens many").error, HasSubstr("many"));
  EXPECT_THAT(parse("m --max-tokens 99999999999").error, HasSubstr("99999999999"));
  EXPECT_THAT(parse("m --seed -1").error, HasSubstr("-1"));
  EXPECT_THAT(parse("m --seed 18446744073709551616").error, HasSubstr("18446744073709551616"));
  for (const std::string list : {"1,,2", "1,", ",1", "1,x", "-1", "1,99999999999"}) {
    EXPECT_THAT(parse("m --stop-token-ids=" + list).error, HasSubstr("\"" + list + "\""));
  }
  EXPECT_THAT(parse("m --unheard-of").error, HasSubstr("--unheard-of"));
  for (const std::string bias : {"3", "=1", "3=", "x=1", "3=1x", "-1=2", "99999999999=1"}) {
    EXPECT_THAT(parse("m --logit-bias " + bias).error, HasSubstr("\"" + bias + "\""));
  }
}

}  // namespace
}  // namespace quire::cli
