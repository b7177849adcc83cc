// When a bell that is rung leads to a look at its run.
#include "api/bell.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>

#include "api/rounds.h"
#include "testing/manual_loop.h"

namespace quire::server {
namespace {

using std::chrono::milliseconds;

class BellTest : public ::testing::Test {
 protected:
  // Each look calls `during`, and finds tokens where `finds` says so.
  std::shared_ptr<Bell> bell(Rounds& rounds) {
    return std::make_shared<Bell>(loop_, rounds, [this] {
      ++looks_;
      during_();
      return finds_;
    });
  }

  ManualLoop loop_;
  Rounds rounds_{loop_, milliseconds(20)};
  Rounds none_{loop_, milliseconds(0)};
  int looks_ = 0;
  bool finds_ = true;
  std::function<void()> during_ = [] {};
};

TEST_F(BellTest, RingingTwiceLooksOnce) {
  const auto bell = this->bell(none_);
  bell->ring();
  bell->ring();
  loop_.run();
  EXPECT_EQ(looks_, 1);
}

TEST_F(BellTest, WithoutRoundsEachRingAfterALookLeadsToAnother) {
  const auto bell = this->bell(none_);
  for (int i = 1; i < 4; ++i) {
    bell->ring();
    loop_.run();
    EXPECT_EQ(looks_, i);
  }
}

TEST_F(BellTest, AfterTokensTheNextLookIsThatOfTheRound) {
  const auto bell = this->bell(rounds_);
  bell->ring();
  loop_.run();
  bell->ring();
  loop_.advance(milliseconds(19));
  EXPECT_EQ(looks_, 1);
  loop_.advance(milliseconds(1));
  EXPECT_EQ(looks_, 2);
}

TEST_F(BellTest, ALookThatFindsNothingLeavesTheBellToBeRung) {
  const auto bell = this->bell(rounds_);
  bell->ring();
  loop_.run();
  finds_ = false;
  loop_.advance(milliseconds(20));
  EXPECT_EQ(looks_, 2);
  EXPECT_EQ(loop_.timers(), 0U);
  bell->ring();
  loop_.run();
  EXPECT_EQ(looks_, 3);
}

TEST_F(BellTest, RingingDuringALookIsNeverLost) {
  for (Rounds* const rounds : {&none_, &rounds_}) {
    const auto bell = this->bell(*rounds);
    looks_ = 0;
    during_ = [&] {
      if (looks_ == 1) {
        bell->ring();
      }
    };
    bell->ring();
    loop_.run();
    EXPECT_EQ(looks_, 2);
  }
}

TEST_F(BellTest, RingingDuringALookJoinsNoSecondRound) {
  const auto bell = this->bell(rounds_);
  during_ = [&] { bell->ring(); };
  bell->ring();
  loop_.run_one();
  loop_.run_one();
  looks_ = 0;
  during_ = [] {};
  loop_.advance(milliseconds(20));
  EXPECT_LE(looks_, 2);
  looks_ = 0;
  loop_.advance(milliseconds(20));
  EXPECT_EQ(looks_, 1);
}

}  // namespace
}  // namespace quire::server
