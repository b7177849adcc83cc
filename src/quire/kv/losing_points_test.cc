// Restore points that a ledger is about to lose. Oracle: each block and each state holds the tokens
// that it is behind, which a test writes as a step does. The keeper compares them.
#include "quire/kv/losing_points.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/point_keeper.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/types.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<TokenId>;

class PointsThatAreLost : public testing::Test {
 protected:
  static constexpr std::int32_t kBlockTokens = 4;
  Ledger ledger_{{.num_blocks = 24, .block_tokens = kBlockTokens, .num_states = 6}};
  std::map<std::int32_t, Tokens> blocks_, states_;  // tokens that they are behind
  std::set<std::pair<std::string, Tokens>> kept_;
  int num_forgets_ = 0;
  bool keeps_ = true;

  PointsThatAreLost() {
    ledger_.points().set_keeper({.keep = [this](const LosingPoint& point) { return keep(point); },
                                 .forget =
                                     [this] {
                                       kept_.clear();
                                       ++num_forgets_;
                                     }});
  }

  bool keep(const LosingPoint& point) {
    const Tokens tokens(point.tokens.begin(), point.tokens.end());
    EXPECT_EQ(states_[point.state], tokens) << "the state is still there";
    EXPECT_EQ(point.blocks.size(), tokens.size() / kBlockTokens);
    for (std::size_t i = 0; i < point.blocks.size(); ++i) {
      EXPECT_EQ(blocks_[point.blocks[i].value],
                Tokens(tokens.begin(),
                       tokens.begin() + static_cast<std::ptrdiff_t>(i + 1) * kBlockTokens))
          << "so is its KV";
    }
    if (keeps_) {
      kept_.emplace(point.salt, tokens);
    }
    return keeps_;
  }

  void copy_blocks() {
    for (const BlockCopy& copy : ledger_.take_copies()) {
      blocks_[copy.to.value] = blocks_[copy.from.value];
    }
  }

  // Computes a prompt as a request does and keeps a point behind it. Returns false without room.
  bool compute(const Tokens& prompt, const std::string& salt = "") {
    const SeqId id = ledger_.sequences().open(prompt, true, {}, salt);
    const std::int32_t first = ledger_.sequences().num_computed(id);
    const auto count = static_cast<std::int32_t>(prompt.size()) - first;
    if (!ledger_.sequences().extend(id, count).ok()) {
      ledger_.sequences().close(id);
      return false;
    }
    copy_blocks();
    (void)ledger_.points().take_tail(id);
    const RunView run = ledger_.sequences().runs(id).back();
    for (std::size_t i = 0; i < run.blocks.size(); ++i) {
      const std::size_t end = std::min(prompt.size(), (i + 1) * kBlockTokens);
      blocks_[run.blocks[i].value].assign(prompt.begin(),
                                          prompt.begin() + static_cast<std::ptrdiff_t>(end));
    }
    states_[ledger_.points().places(id).to] = prompt;
    ledger_.sequences().advance(id, count);
    if (ledger_.points().wants_point(id, static_cast<std::int32_t>(prompt.size()))) {
      ledger_.points().add(id, static_cast<std::int32_t>(prompt.size()),
                           ledger_.points().present(id));
    }
    ledger_.sequences().close(id);
    EXPECT_TRUE(ledger_.check().ok()) << ledger_.check().error().message;
    return true;
  }

  static Tokens prompt(TokenId first, std::size_t length) {
    Tokens tokens(length, first);
    for (std::size_t i = 1; i < length; ++i) {
      tokens[i] = static_cast<TokenId>(i);
    }
    return tokens;
  }
};

TEST_F(PointsThatAreLost, AreKeptBeforeTheirStateGivesWay) {
  for (TokenId i = 0; i < 6; ++i) {
    ASSERT_TRUE(compute(prompt(100 + i, 3)));
  }
  EXPECT_TRUE(kept_.empty());
  ASSERT_TRUE(compute(prompt(200, 9), "salt"));
  EXPECT_EQ(kept_, (std::set<std::pair<std::string, Tokens>>{{"", prompt(100, 3)}}));
  for (TokenId i = 0; i < 6; ++i) {
    ASSERT_TRUE(compute(prompt(300 + i, 11)));
  }
  EXPECT_TRUE(kept_.contains({"salt", prompt(200, 9)}));
}

TEST_F(PointsThatAreLost, AreKeptBeforeABlockOfTheirKVIsEvicted) {
  ASSERT_TRUE(compute(prompt(100, 41)));
  EXPECT_EQ(ledger_.counts().restore_points, 1);
  ASSERT_TRUE(compute(prompt(200, 80)));
  EXPECT_EQ(kept_, (std::set<std::pair<std::string, Tokens>>{{"", prompt(100, 41)}}));
  EXPECT_EQ(ledger_.counts().restore_points, 1) << "what is kept leaves its state";
  keeps_ = false;
  ASSERT_TRUE(compute(prompt(300, 88)));
  EXPECT_EQ(ledger_.counts().restore_points, 2) << "without its KV, until that is computed again";
  EXPECT_EQ(kept_.size(), 1U);
}

TEST_F(PointsThatAreLost, AreNotKeptOfACacheThatIsCleared) {
  ASSERT_TRUE(compute(prompt(100, 41)));
  (void)ledger_.cache().clear();
  EXPECT_TRUE(kept_.empty());
  EXPECT_EQ(num_forgets_, 1);
  EXPECT_EQ(ledger_.counts().restore_points, 0);
}

TEST_F(PointsThatAreLost, AreReadWhereTheirBlocksWereBeforeTheyMoved) {
  Ledger ledger({.num_blocks = 16, .block_tokens = 1, .extent_blocks = 4, .num_states = 2});
  std::vector<Tokens> kept;
  std::map<std::int32_t, TokenId> written;
  ledger.points().set_keeper({.keep =
                                  [&](const LosingPoint& point) {
                                    Tokens tokens;
                                    for (const BlockId block : point.blocks) {
                                      tokens.push_back(written[block.value]);
                                    }
                                    EXPECT_EQ(tokens,
                                              Tokens(point.tokens.begin(), point.tokens.end()));
                                    kept.push_back(tokens);
                                    return true;
                                  },
                              .forget = [] {}});
  std::mt19937 random(3);
  for (int i = 0; i < 3'000; ++i) {
    const Tokens prompt(1 + random() % 7, static_cast<TokenId>(1 + random() % 5));
    const SeqId id = ledger.sequences().open(prompt, true);
    const std::int32_t first = ledger.sequences().num_computed(id);
    const auto count = static_cast<std::int32_t>(prompt.size()) - first;
    if (ledger.sequences().extend(id, count).ok()) {
      for (const BlockCopy& copy : ledger.take_copies()) {
        written[copy.to.value] = written[copy.from.value];
      }
      const RunView run = ledger.sequences().runs(id).back();
      for (const BlockId block : run.blocks) {
        written[block.value] = prompt[0];
      }
      ledger.sequences().advance(id, count);
      if (ledger.points().wants_point(id, static_cast<std::int32_t>(prompt.size()))) {
        ledger.points().add(id, static_cast<std::int32_t>(prompt.size()),
                            ledger.points().present(id));
      }
    }
    ledger.sequences().close(id);
    ASSERT_FALSE(HasFailure()) << i;
  }
  EXPECT_GT(ledger.counts().blocks_moved, 0);
  EXPECT_GT(kept.size(), 100U);
}

}  // namespace
}  // namespace quire::kv
