// A hundred thousand random operations on sequences, chunks, contexts and their tiers, in a pool
// that is too small for them, equal a program that copies everything (copies_oracle.h). After each
// one exactly those blocks are in use that something alive holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "copies_oracle.h"
#include "quire/api/llm_impl.h"
#include "quire/api/test_support.h"
#include "quire/base/test_length.h"
#include "quire/chunks.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "random_chunks.h"
#include "random_contexts.h"
#include "random_sequences.h"
#include "random_site.h"

namespace quire {
namespace {

const int kSteps = base::test_length(100'000, 5'000);

// One engine with everything that lives in it.
class World {
 public:
  World(const Scenario& scenario, Oracle& oracle, Disk& disk, Counts& counts, std::uint32_t seed)
      : site_(scenario, oracle, disk, seed), counts_(counts) {
    operations_ = sequences_.operations();
    if (!scenario.sequences_only) {
      for (auto&& some : {chunks_.operations(), contexts_.operations()}) {
        operations_.insert(operations_.end(), some.begin(), some.end());
      }
    }
    operations_.push_back({"drop everything", 1, [this] {
                             drop_everything();
                             return true;
                           }});
    for (const Operation& operation : operations_) {
      weights_.push_back(operation.weight);
    }
  }

  // One operation and all checks behind it.
  void step(bool with_logits) {
    const Operation* operation = nullptr;
    std::discrete_distribution<std::size_t> choose(weights_.begin(), weights_.end());
    site_.was_refused = false;
    do {
      operation = &operations_[choose(site_.random)];
    } while (!operation->run());
    auto& [done, refused] = counts_[operation->name];
    ++(site_.was_refused ? refused : done);
    SCOPED_TRACE(operation->name);
    sequences_.check(with_logits);
    chunks_.check();
    contexts_.check();
    if (!site_.scenario.counts_blocks()) {  // ids of two formats are the same numbers
      check_holders();
      return;
    }
    BlockSet held;
    sequences_.add_blocks(held);
    chunks_.add_blocks(held);
    contexts_.add_blocks(held);
    expect_blocks_in_use(held.size() + contexts_.num_blocks());
    ASSERT_FALSE(testing::Test::HasFailure());
  }

  void drop_everything() {
    sequences_.clear();
    chunks_.clear();
    contexts_.clear();
    expect_blocks_in_use(0);
    ASSERT_EQ(stat(site_.llm, "requests_running"), 0);
  }

  // Chunks that are in a store outlive the engine.
  void end() {
    sequences_.clear();
    contexts_.clear();
  }

 private:
  void expect_blocks_in_use(std::int64_t expected) {
    site_.in_use = static_cast<std::int64_t>(
        settled_stat(site_.llm, "blocks_in_use", static_cast<double>(expected)));
    EXPECT_EQ(site_.in_use, expected);
  }

  // Counts all blocks from their holders (kv/README.md).
  void check_holders() {
    const auto runtime = site_.llm.llm().impl().open().value();
    const Status right = runtime->engine().thread().call([&] {
      const Status checked = runtime->engine().core().ledger.check();
      EXPECT_TRUE(checked.ok()) << checked.error().message;
    });
    ASSERT_TRUE(right.ok());
    site_.in_use = static_cast<std::int64_t>(stat(site_.llm, "blocks_in_use"));
    ASSERT_FALSE(testing::Test::HasFailure());
  }

  Site site_;
  RandomSequences sequences_{site_};
  RandomChunks chunks_{site_, sequences_};
  RandomContexts contexts_{site_};
  std::vector<Operation> operations_;
  std::vector<int> weights_;
  Counts& counts_;
};

// Two engines after one another, so that the second finds what the first has saved.
void live_twice(const Scenario& scenario, std::uint32_t seed, Counts& counts) {
  const TemporaryFolder folder;
  Disk disk{.folder = folder.path(), .files = {}, .chunks = {}, .items = {}};
  Oracle oracle(scenario.model, scenario.block_tokens, !scenario.sequences_only, scenario.kv_dtype,
                scenario.mixed);
  for (int life = 0; life < 2; ++life) {
    World world(scenario, oracle, disk, counts, seed + static_cast<std::uint32_t>(life));
    for (int i = 0; i < scenario.steps; ++i) {
      world.step(i % 20 == 0);
      ASSERT_FALSE(testing::Test::HasFailure()) << "life " << life << " step " << i;
    }
    world.end();
  }
}

// Steps as shares of all.
std::vector<Scenario> scenarios() {
  const std::string folder = source_path("tests/golden/model") + "/";
  return {{.model = folder + "llama_gqa", .guesses = true, .steps = 20},
          {.model = folder + "llama_mqa",
           .block_tokens = 4,
           .blocks = 60,
           .max_batch_tokens = 7,
           .steps = 15},
          {.model = folder + "qwen3",
           .block_tokens = 16,
           .blocks = 24,
           .prefix_cache = false,
           .guesses = true,
           .steps = 20},
          {.model = folder + "llama_tied",
           .block_tokens = 1,
           .blocks = 220,
           .context = ReuseMode::kExact,
           .steps = 10},
          {.model = folder + "qwen2",
           .block_tokens = 32,
           .blocks = 20,
           .context = ReuseMode::kExact,
           .steps = 10},
          {.model = folder + "llama_mha", .stores = true, .steps = 10},
          {.model = folder + "gemma3",
           .context = ReuseMode::kExact,
           .sequences_only = true,
           .frees = true,
           .steps = 5},
          {.model = folder + "mistral_window", .sequences_only = true, .steps = 5},
          {.model = folder + "mistral_window", .frees = true, .steps = 5},
          {.model = folder + "qwen2_window",
           .block_tokens = 3,
           .blocks = 90,
           .max_batch_tokens = 9,
           .frees = true,
           .steps = 5},
          {.model = folder + "qwen3_5",
           .blocks = 60,
           .context = ReuseMode::kExact,
           .sequences_only = true,
           .carries = true,
           .steps = 5},
          {.model = folder + "lfm2",
           .block_tokens = 4,
           .blocks = 60,
           .context = ReuseMode::kExact,
           .sequences_only = true,
           .carries = true,
           .steps = 5}};
}

// By the format of KV. With "_mixed" chunks have formats of their own.
class RandomOperations : public testing::TestWithParam<std::string> {};

TEST_P(RandomOperations, EqualAProgramThatCopiesEverythingAndLeakNoBlock) {
  Counts counts;
  int wanted = 0;
  std::uint32_t seed = 20261122;
  for (Scenario scenario : scenarios()) {
    scenario.steps = scenario.steps * kSteps / 200;
    scenario.mixed = GetParam().ends_with("_mixed");
    scenario.kv_dtype = GetParam().substr(0, GetParam().find('_'));
    if (scenario.mixed && scenario.sequences_only) {
      continue;  // no chunk
    }
    if (!scenario.one_format()) {
      // Slabs for other formats need room, int4 whole runs of 32 tokens.
      scenario.blocks = std::max(scenario.blocks, scenario.mixed ? 160 : 64);
      scenario.block_tokens = scenario.kv_dtype == "int4" ? 32 : scenario.block_tokens;
    }
    live_twice(scenario, seed, counts);
    wanted += 2 * scenario.steps;
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", " << scenario.model;
    seed += 10;
  }
  int all = 0;
  for (const auto& [name, count] : counts) {
    const auto& [done, refused] = count;
    std::printf("%-24s %6d done, %5d refused\n", name.c_str(), done, refused);
    EXPECT_GT(done, refused) << name;
    all += done + refused;
  }
  EXPECT_EQ(all, wanted);
}

INSTANTIATE_TEST_SUITE_P(KV, RandomOperations,
                         testing::Values("auto", "int8", "int4", "fp8", "auto_mixed", "int8_mixed",
                                         "int4_mixed", "fp8_mixed"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace quire
