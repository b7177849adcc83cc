// Random operations on forks of one sequence, compared with computing each from its first token.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/sequence.h"

namespace quire {

// Appends to, generates behind, rolls back and forks branches of a sequence of 45 tokens. After
// each operation the branch has the logits that `cold` computes for its tokens.
inline void expect_branches_equal_cold_runs(
    LLM& llm, int forks, int operations,
    const std::function<std::vector<float>(LLM&, const Ids&)>& cold) {
  std::mt19937 random(11);
  std::vector<Sequence> branches;
  branches.push_back(must(llm.sequence(small_ids(45, 9))));
  for (int i = 0; i < forks; ++i) {
    branches.push_back(must(branches.front().fork()));
  }
  for (int operation = 0; operation < operations; ++operation) {
    Sequence& branch = branches[random() % branches.size()];
    const Ids tokens = branch.tokens();
    switch (random() % 4) {
      case 0:
        ASSERT_TRUE(branch.append(small_ids(1 + random() % 9, random())).ok());
        break;
      case 1:
        (void)must(branch.generate(greedy_to_length(1 + static_cast<std::int32_t>(random() % 5))));
        break;
      case 2:
        ASSERT_TRUE(
            branch.rollback_to(static_cast<std::int64_t>(1 + random() % std::size(tokens))).ok());
        break;
      default:
        branch = must(branches[random() % branches.size()].fork());
    }
    ASSERT_EQ(must(branch.logits()), cold(llm, branch.tokens())) << operation;
  }
}

}  // namespace quire
