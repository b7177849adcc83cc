// The draft model by itself. Oracle: the same model without a bound on time.
#include "quire/engine/draft_model.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "quire/device/cpu/isa.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess.h"
#include "quire/drafts/options.h"
#include "quire/engine/model_bundle.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/kernel_context.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

class DraftModelAlone : public ::testing::Test {
 protected:
  std::unique_ptr<DraftModel> open() {
    const std::filesystem::path folder = QUIRE_SOURCE_DIR "/tests/golden/model/llama_gqa";
    const ModelBundle large = open_model(context_, folder.string(), {}).value();
    auto draft = DraftModel::open(context_,
                                  {.method = drafts::Method::kDraft,
                                   .max_tokens = 4,
                                   .model = folder.string(),
                                   .adapt = false},
                                  "auto", large)
                     .value();
    EXPECT_TRUE(draft->make_room(std::int64_t{1} << 22, 8).ok());
    return draft;
  }

  static std::vector<TokenId> prompt(std::int32_t size) {
    std::vector<TokenId> tokens;
    for (std::int32_t i = 0; i < size; ++i) {
      tokens.push_back(3 + (i * 37 + i / 5) % 180);
    }
    return tokens;
  }

  static drafts::Guess guess(DraftModel& draft, const std::vector<TokenId>& tokens) {
    drafts::Guess made;
    const drafts::DraftQuery query{
        .request = {1}, .history = {.own = tokens}, .most = 4, .most_in_tree = 4, .draft = &made};
    draft.propose({&query, 1});
    return made;
  }

 private:
  device::ThreadPool pool_{1};
  const kernels::KernelContext context_{.table = &kernels::kernels_for(device::best_isa()),
                                        .pool = &pool_};
};

TEST_F(DraftModelAlone, ComputesAPromptOverSeveralStepsWhereTimeIsShort) {
  const std::vector<TokenId> tokens = prompt(100);
  const drafts::Guess want = guess(*open(), tokens);
  ASSERT_EQ(want.tokens.size(), 4U);

  const auto bounded = open();
  int steps = 0;
  std::int32_t held = 0;
  drafts::Guess made;
  for (; made.tokens.empty() && steps < 100; ++steps) {
    bounded->set_prompt_seconds(0);
    made = guess(*bounded, tokens);
    EXPECT_LE(bounded->counts().blocks_in_use - held, 2) << "8 rows, and those of the guess";
    held = bounded->counts().blocks_in_use;
  }
  EXPECT_EQ(made.tokens, want.tokens);
  EXPECT_EQ(steps, 12) << "8 rows in each, and the last 8 with the guess";
}

TEST_F(DraftModelAlone, TellsTheTimeOfPromptsAndForgetsItWithTheNextCall) {
  const auto draft = open();
  std::vector<TokenId> tokens = prompt(60);
  EXPECT_EQ(draft->prompt_seconds(), 0);
  draft->set_prompt_seconds(std::numeric_limits<double>::infinity());
  guess(*draft, tokens);
  EXPECT_GT(draft->prompt_seconds(), 0);
  tokens.push_back(9);
  guess(*draft, tokens);
  EXPECT_EQ(draft->prompt_seconds(), 0);
  draft->forget({1});
  EXPECT_EQ(draft->counts().blocks_in_use, 0);
  EXPECT_GT(draft->weight_bytes(), 0);
}

}  // namespace
}  // namespace quire::engine
