// Frequencies against those of transformers, for every golden variant, and what is refused.
#include "quire/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/mapped_file.h"
#include "quire/model/config.h"

namespace quire::model {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

TEST(Rope, FrequenciesEqualTransformers) {
  int variants = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(QUIRE_SOURCE_DIR) / "tests/golden/model")) {
    if (!fs::exists(entry.path() / "config.json")) {
      continue;
    }
    ++variants;
    const auto config = config_from_hf(base::read_file(entry.path() / "config.json").value(), "");
    ASSERT_TRUE(config.ok()) << entry.path() << ": " << config.error().message;
    const base::Json parsed =
        base::parse_json(base::read_file(entry.path() / "golden.json").value(), "golden").value();
    const base::JsonView golden = parsed;
    const base::JsonView frequencies = golden.find("inv_freq");
    ASSERT_EQ(config->rotary.inverse_frequencies.size(), frequencies.size()) << entry.path();
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double expected = frequencies[i].as_double();  // computed in fp32
      EXPECT_NEAR(config->rotary.inverse_frequencies[i], expected, 2e-6 * expected)
          << entry.path() << " " << i;
    }
    EXPECT_NEAR(config->rotary.scale, golden.find("rope_scale").as_double(), 1e-9);
  }
  EXPECT_GE(variants, 20);
}

RopeSpec spec_of(std::string type) {
  return {.type = std::move(type), .rotary_dim = 8, .context_length = 1024};
}

TEST(Rope, LongropeWithEqualFactorsServesEveryPosition) {
  RopeSpec spec = spec_of("longrope");
  spec.original_context_length = 256;
  spec.short_factor = spec.long_factor = {1, 2, 3, 4};
  const auto rope = make_rope(spec);
  ASSERT_TRUE(rope.ok());
  EXPECT_EQ(rope->context_length, 1024);
  EXPECT_DOUBLE_EQ(rope->rotary.inverse_frequencies[3], 1e-3 / 4);
}

TEST(Rope, LongropeWithTwoSetsOfFactorsStopsAtTheOriginalLength) {
  RopeSpec spec = spec_of("longrope");
  spec.original_context_length = 256;
  spec.short_factor = {1, 1, 1, 1};
  spec.long_factor = {1, 2, 3, 4};
  EXPECT_EQ(make_rope(spec)->context_length, 256);
}

// vLLM takes the same lengths; transformers has no limit.
TEST(Rope, StretchedPositionsAreServedWhereTheFileDoesNotStateThem) {
  const auto positions = [](const char* type, std::int32_t stated, double factor,
                            std::optional<double> original) {
    RopeSpec spec = spec_of(type);
    spec.context_length = stated;
    spec.factor = factor;
    spec.original_context_length = original;
    spec.low_freq_factor = 1;
    spec.high_freq_factor = 4;
    return make_rope(spec).value().context_length;
  };
  EXPECT_EQ(positions("yarn", 64, 4.0, 64), 256);
  EXPECT_EQ(positions("yarn", 256, 4.0, 64), 256);
  EXPECT_EQ(positions("yarn", 300, 4.0, 64), 300);
  EXPECT_EQ(positions("yarn", 40960, 4.0, 32768), 131072);  // Qwen3's README
  EXPECT_EQ(positions("yarn", 100, 1.5, 33), 100);
  EXPECT_EQ(positions("linear", 64, 4.0, std::nullopt), 256);
  EXPECT_EQ(positions("linear", 64, 2.5, std::nullopt), 160);
  EXPECT_EQ(positions("linear", 64, 0.5, std::nullopt), 64);
  EXPECT_EQ(positions("llama3", 131072, 32.0, 8192), 131072);  // Llama 3.2 states fewer
  EXPECT_EQ(positions("llama3", 8192, 8.0, 8192), 65536);
  EXPECT_EQ(positions("default", 64, 4.0, 64), 64);
  EXPECT_EQ(positions("linear", 64, 1e300, std::nullopt), INT32_MAX);
}

TEST(Rope, DivisorsDivide) {
  RopeSpec spec = spec_of("default");
  spec.divisors = {1, 1, 1, 8};
  EXPECT_DOUBLE_EQ(make_rope(spec)->rotary.inverse_frequencies[3], 1e-3 / 8);
}

TEST(Rope, SenselessNumbersAreRefusedByName) {
  const auto message = [](const RopeSpec& spec) {
    const auto rope = make_rope(spec);
    return rope.ok() ? std::string("accepted") : rope.error().message;
  };
  RopeSpec odd = spec_of("default");
  odd.rotary_dim = 7;
  EXPECT_THAT(message(odd), HasSubstr("7 values"));
  RopeSpec llama3 = spec_of("llama3");
  llama3.factor = 8;
  llama3.low_freq_factor = 4;
  llama3.high_freq_factor = 4;
  llama3.original_context_length = 8192;
  EXPECT_THAT(message(llama3), HasSubstr("high_freq_factor"));
  RopeSpec longrope = spec_of("longrope");
  longrope.original_context_length = 1;  // log(1) = 0 divides
  longrope.short_factor = longrope.long_factor = {1, 1, 1, 1};
  EXPECT_THAT(message(longrope), HasSubstr("attention factor"));
  RopeSpec few = spec_of("default");
  few.divisors = {1, 1};
  EXPECT_THAT(message(few), HasSubstr("2 values for 4"));
}

}  // namespace
}  // namespace quire::model
