#include "repl_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "options.h"
#include "quire/fields.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(Settings, AreTheFieldsOfSamplingInTheirOrder) {
  std::vector<std::string> names;
  for (const SamplingField& field : settable_fields()) {
    names.emplace_back(field.name);
  }
  EXPECT_EQ(setting_names(), names);
}

TEST(Settings, ListingShowsAllOrOne) {
  const SamplingParams params{
      .temperature = 0.5, .stop = {"a", "b"}, .seed = 7, .logit_bias = {{4, -1.5}, {6, 2.0}}};
  EXPECT_EQ(settings_listing(params, "").value(),
            "temperature: 0.5\n"
            "top_p: 1\n"
            "top_k: 0\n"
            "min_p: 0\n"
            "repetition_penalty: 1\n"
            "presence_penalty: 0\n"
            "frequency_penalty: 0\n"
            "max_tokens: 256\n"
            "min_tokens: 0\n"
            "stop: a, b\n"
            "stop_token_ids: none\n"
            "ignore_eos: false\n"
            "seed: 7\n"
            "logprobs: none\n"
            "logit_bias: 4=-1.5, 6=2.0\n");
  EXPECT_EQ(settings_listing(params, "max-tokens").value(), "max_tokens: 256\n");
  EXPECT_EQ(settings_listing(params, "max_token").error().message,
            "no setting \"max_token\"; did you mean /set max_tokens? /set lists them");
  EXPECT_EQ(settings_listing(params, "temprature=0").error().message,
            "no setting \"temprature=0\"; did you mean /set temperature 0? /set lists them");
  EXPECT_EQ(settings_listing(params, "colour").error().message,
            "no setting \"colour\"; /set lists them");
}

TEST(Settings, ReplaceWhatTheCommandLineSaid) {
  const SamplingParams base{.stop = {"a"}, .logit_bias = {{4, -1.5}}};
  const SamplingParams params =
      with_settings(base, {{"stop", "b"}, {"logit-bias", "6=2"}, {"ignore-eos", "true"}}).value();
  EXPECT_THAT(params.stop, ElementsAre("b"));
  EXPECT_THAT(params.logit_bias, ElementsAre(Pair(6, 2.0)));
  EXPECT_TRUE(params.ignore_eos);
  EXPECT_EQ(with_settings(base, {{"top-k", "many"}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(with_settings(base, {{"help", ""}}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire::cli
