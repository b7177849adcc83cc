// Two engines live through the same random operations in a pool that is always full. One guesses.
// Oracle: the other one. Both have said the same, hold the same blocks, have evicted as many, and
// know the same prefixes.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/base/test_length.h"
#include "quire/drafter.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"
#include "random_site.h"

namespace quire {
namespace {

constexpr std::int32_t kBlockTokens = 4;
constexpr std::int32_t kBlocks = 48;

// One operation, the same for both engines.
struct Move {
  std::uint32_t kind = 0;
  std::size_t which = 0;  // sequence
  Ids tokens;
  SamplingParams params;
};

// An engine with its sequences.
class Life {
 public:
  Life(const std::string& speculate, std::shared_ptr<Drafter> drafter)
      : llm_(must(LLM::open(kFolder, options(speculate, std::move(drafter))))) {}

  // Returns what the operation has given: ids, or how it was refused.
  std::pair<Ids, std::string> run(const Move& move) {
    if (move.kind < 4) {
      return said(llm_.generate(move.tokens, move.params));
    }
    if (move.kind == 4 || sequences_.empty()) {
      auto opened = llm_.sequence(move.tokens);
      if (opened.ok()) {
        sequences_.push_back(std::move(opened).value());
      }
      return {{}, opened.ok() ? "" : error_code_name(opened.error().code)};
    }
    const std::size_t at = move.which % sequences_.size();
    Sequence& sequence = sequences_[at];
    switch (move.kind) {
      case 5:
        return said(sequence.generate(move.params));
      case 6:
        return shown(sequence.append(move.tokens));
      case 7:
        return shown(sequence.rollback_to(1 + static_cast<std::int64_t>(move.which) %
                                                  sequence.num_tokens()));
      case 8:
        if (sequences_.size() < 4) {
          sequences_.push_back(must(sequence.fork()));
        }
        return {};
      default:
        sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(at));
        return {};
    }
  }

  // Returns tokens that the prefix cache holds of the text.
  [[nodiscard]] std::int64_t cached(const Ids& text) const {
    std::int64_t tokens = 0;
    for (const ReusePart& part : must(llm_.explain(text))) {
      tokens += part.hit ? part.tokens : 0;
    }
    return tokens;
  }

  [[nodiscard]] std::vector<double> counts() const {
    std::vector<double> all;
    for (const char* name : {"blocks_in_use", "blocks_cached", "blocks_free", "evictions"}) {
      all.push_back(stat(llm_, name));
    }
    return all;
  }

  [[nodiscard]] double drafted() const { return stat(llm_, "tokens_drafted"); }
  [[nodiscard]] double accepted() const { return stat(llm_, "tokens_accepted"); }

 private:
  static inline const std::string kFolder = source_path("tests/golden/model/llama_gqa");

  static LLMOptions options(const std::string& speculate, std::shared_ptr<Drafter> drafter) {
    LLMOptions plain = here({.block_tokens = kBlockTokens, .threads = 1});
    const auto block =
        static_cast<std::int64_t>(stat(must(LLM::open(kFolder, plain)), "block_bytes"));
    plain.kv_budget_bytes = kBlocks * block;
    plain.speculate = speculate;
    plain.drafter = std::move(drafter);
    return plain;
  }

  static std::pair<Ids, std::string> said(const Result<GenerationOutput>& output) {
    return output.ok() ? std::pair(output->token_ids, std::string())
                       : std::pair(Ids(), std::string(error_code_name(output.error().code)));
  }

  static std::pair<Ids, std::string> shown(const Status& status) {
    return {{}, status.ok() ? "" : error_code_name(status.error().code)};
  }

  LLM llm_;
  std::vector<Sequence> sequences_;
};

Move random_move(std::mt19937& random) {
  Move move{.kind = static_cast<std::uint32_t>(random() % 10), .which = random(), .tokens = {}};
  for (std::uint32_t part = 0; part < 1 + random() % 3; ++part) {  // few ones, that are met again
    const auto which = static_cast<std::uint32_t>(random() % 12);
    move.tokens = joined(std::move(move.tokens), small_ids(3 + which, which));
  }
  move.params = {.temperature = random() % 2 == 0 ? 0.0F : 1.0F,
                 .max_tokens = static_cast<std::int32_t>(1 + random() % 20),
                 .ignore_eos = true,
                 .seed = random()};
  return move;
}

using Method = std::pair<const char*, const char*>;
class GuessedIndex : public ::testing::TestWithParam<Method> {};

TEST_P(GuessedIndex, EqualsThatOfARunThatNeverGuessed) {
  const bool custom = std::string(GetParam().first) == "trees" && !on_gpu();
  if (std::string(GetParam().first) == "trees" && on_gpu()) {
    GTEST_SKIP() << "a GPU guesses chains alone";
  }
  Life plain("", nullptr);
  Life guessing(GetParam().second, custom ? std::make_shared<RandomTrees>() : nullptr);
  std::mt19937 random(20261201);
  std::vector<Ids> texts;
  const int moves = base::test_length(10'000, 1'500);
  int refused = 0;
  for (int i = 0; i < moves; ++i) {
    const Move move = random_move(random);
    const auto want = plain.run(move);
    ASSERT_EQ(guessing.run(move), want) << "move " << i << " of kind " << move.kind;
    ASSERT_EQ(guessing.counts(), plain.counts()) << "move " << i << " of kind " << move.kind;
    refused += want.second.empty() ? 0 : 1;
    texts.resize(std::min<std::size_t>(texts.size(), 40));
    texts.insert(texts.begin(), joined(move.tokens, want.first));
    for (const Ids& text : texts) {
      ASSERT_EQ(guessing.cached(text), plain.cached(text)) << "move " << i;
    }
  }
  EXPECT_GT(plain.counts()[3], moves / 4) << "blocks were evicted";
  EXPECT_LT(refused, moves / 4);
  EXPECT_GT(guessing.drafted(), moves / 3);
  EXPECT_GT(guessing.accepted(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, GuessedIndex,
    ::testing::Values(
        Method{"chains",
               R"({"method": "ngram", "min_match": 1, "max_tokens": 12, "adapt": false})"},
        Method{"suffixes", R"({"method": "suffix", "adapt": false})"},
        Method{"trees", R"({"method": "custom", "max_tokens": 6, "width": 3, "adapt": false})"}),
    [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace quire
