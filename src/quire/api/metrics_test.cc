// Metrics of an engine as operators read them: the flat numbers, and Prometheus' text format.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire {
namespace {

struct Family {
  std::string type;
  std::vector<std::pair<std::string, double>> samples;  // of the name with its labels
};

// Reads the text as strictly as version 0.0.4 allows: HELP, then TYPE, then all samples of a
// family, and no family twice. Lines that differ are failures.
std::map<std::string, Family> parse(const std::string& text) {
  static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) [^\\]+)");
  static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
  static const std::regex sample(
      R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{le="([^"\\]*)"\})? ([-+0-9.e]+))re");
  std::map<std::string, Family> families;
  std::string name;
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch part;
    if (std::regex_match(line, part, help)) {
      name = part[1];
      EXPECT_TRUE(families.emplace(name, Family{}).second) << line;
    } else if (std::regex_match(line, part, type)) {
      EXPECT_EQ(part[1], name) << line;
      EXPECT_TRUE(families[name].type.empty() && families[name].samples.empty()) << line;
      families[name].type = part[2];
    } else if (std::regex_match(line, part, sample)) {
      const std::string rest = part[1].str().substr(std::min(name.size(), part[1].str().size()));
      const bool histogram = families[name].type == "histogram";
      EXPECT_TRUE(part[1].str().starts_with(name)) << line;
      EXPECT_TRUE(histogram ? rest == "_bucket" || rest == "_sum" || rest == "_count"
                            : rest.empty())
          << line;
      EXPECT_EQ(part[2].matched, rest == "_bucket") << line;
      std::size_t end = 0;
      families[name].samples.emplace_back(rest + part[3].str(), std::stod(part[4], &end));
      EXPECT_EQ(end, part[4].str().size()) << line;
    } else {
      ADD_FAILURE() << "no line of the format: " << line;
    }
  }
  return families;
}

LLM asked(int requests) {
  LLM llm = LLM::open(kModel, here({.block_tokens = 8, .threads = 2})).value();
  for (int i = 0; i < requests; ++i) {
    EXPECT_TRUE(llm.generate(some_ids(20, 7u + static_cast<unsigned>(i)),
                             {.temperature = 0, .max_tokens = 3})
                    .ok());
  }
  return llm;
}

double gauge(const LLM& llm, const std::string& name) {
  return parse(llm.metrics_text().value()).at("quire_" + name).samples.front().second;
}

double count_of(const Family& histogram) { return histogram.samples.back().second; }

TEST(Metrics, EachStatisticIsInTheTextUnderItsName) {
  const LLM llm = asked(2);
  const std::map<std::string, Family> families = parse(llm.metrics_text().value());
  const Stats stats = llm.stats().value();
  std::set<std::string> names;
  for (const auto& [name, value] : stats) {
    const auto gauge = families.find("quire_" + name);
    const auto found = gauge == families.end() ? families.find("quire_" + name + "_total") : gauge;
    ASSERT_NE(found, families.end()) << name;
    EXPECT_EQ(found->second.type, gauge == families.end() ? "counter" : "gauge") << name;
    ASSERT_EQ(found->second.samples.size(), 1u) << name;
    EXPECT_EQ(found->second.samples.front().second, value) << name;
    names.insert(found->first);
  }
  names.insert({"quire_oldest_waiting_seconds", "quire_process_resident_memory_bytes"});
  for (const auto& [name, family] : families) {
    EXPECT_TRUE(names.contains(name) || family.type == "histogram") << name;
  }
}

TEST(Metrics, StatisticsStandStillWhileNothingIsComputed) {
  const LLM llm = asked(1);
  const Stats before = llm.stats().value();
  const std::vector<char> touched(std::size_t{64} << 20, 'x');  // memory of the process
  EXPECT_EQ(llm.stats().value(), before) << touched.size();
}

TEST(Metrics, HistogramsAddUp) {
  const LLM llm = asked(4);
  ASSERT_TRUE(llm.stats().ok());
  const std::map<std::string, Family> families = parse(llm.metrics_text().value());
  int histograms = 0;
  for (const auto& [name, family] : families) {
    if (family.type != "histogram") {
      continue;
    }
    ++histograms;
    const auto& samples = family.samples;
    ASSERT_GT(samples.size(), 3u);
    EXPECT_EQ(samples.back().first, "_count") << name;
    EXPECT_EQ(samples[samples.size() - 2].first, "_sum") << name;
    EXPECT_EQ(samples[samples.size() - 3].first, "_bucket+Inf") << name;
    double before = 0, bound = 0;
    for (std::size_t i = 0; i + 3 < samples.size(); ++i) {
      const double next = std::stod(samples[i].first.substr(std::string("_bucket").size()));
      EXPECT_GT(next, bound) << name << " has bounds that rise";
      EXPECT_GE(samples[i].second, before) << name << " counts all that is not longer";
      bound = next;
      before = samples[i].second;
    }
    EXPECT_EQ(samples[samples.size() - 3].second, samples.back().second) << name;
    EXPECT_GT(samples[samples.size() - 2].second, 0) << name;
  }
  EXPECT_EQ(histograms, 3);
  EXPECT_EQ(count_of(families.at("quire_time_to_first_token_seconds")), 4);
  EXPECT_EQ(count_of(families.at("quire_queue_time_seconds")), 4);
  EXPECT_EQ(count_of(families.at("quire_step_time_seconds")), stat(llm, "steps"));
  const auto& steps = families.at("quire_step_time_seconds").samples;
  EXPECT_NEAR(steps[steps.size() - 2].second, stat(llm, "step_seconds"), 1e-9);
}

TEST(Metrics, AForwardPassHasNoFirstToken) {
  LLM llm = asked(0);
  ASSERT_TRUE(llm.forward(some_ids(20, 3)).ok());
  const std::map<std::string, Family> families = parse(llm.metrics_text().value());
  EXPECT_EQ(count_of(families.at("quire_queue_time_seconds")), 1);
  EXPECT_EQ(count_of(families.at("quire_time_to_first_token_seconds")), 0);
}

TEST(Metrics, TheAgeOfTheOldestWaitingRequestGrowsUntilItRuns) {
  constexpr std::int64_t kTokenBytes = 4096;
  LLM llm =
      LLM::open(kModel,
                here({.block_tokens = 8, .kv_budget_bytes = 2048 * kTokenBytes, .threads = 2}))
          .value();
  EXPECT_EQ(gauge(llm, "oldest_waiting_seconds"), 0);
  Stream runs =
      llm.stream(some_ids(700, 1), {.temperature = 0, .max_tokens = 1300, .ignore_eos = true})
          .value();
  ASSERT_TRUE(runs.next().value());
  Stream waits = llm.stream(some_ids(1500, 2), {.temperature = 0, .max_tokens = 1}).value();
  ASSERT_EQ(stat(llm, "requests_waiting"), 1);
  const double age = gauge(llm, "oldest_waiting_seconds");
  EXPECT_GT(age, 0);
  EXPECT_GT(gauge(llm, "oldest_waiting_seconds"), age);
  runs.close();
  while (waits.next().value()) {
  }
  EXPECT_EQ(gauge(llm, "oldest_waiting_seconds"), 0);
  EXPECT_GT(gauge(llm, "process_resident_memory_bytes"), 1 << 20);
}

TEST(Metrics, AClosedLLMHasNone) {
  LLM llm = asked(0);
  llm.close();
  EXPECT_EQ(llm.metrics_text().error().code, ErrorCode::kClosed);
  EXPECT_EQ(llm.explain_across_salts(some_ids(9, 1)).error().code, ErrorCode::kClosed);
}

}  // namespace
}  // namespace quire
