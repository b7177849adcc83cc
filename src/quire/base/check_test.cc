#include "quire/base/check.h"

#include <gtest/gtest.h>

namespace quire::base {
namespace {

TEST(Check, TrueConditionIsEvaluatedOnceAndDoesNothing) {
  int evaluated = 0;
  QUIRE_CHECK(++evaluated == 1, "not reached");
  EXPECT_EQ(evaluated, 1);
}

TEST(Check, IsOneStatementInsideIfElse) {
  bool reached = false;
  if (reached)
    QUIRE_CHECK(true, "not reached");
  else
    reached = true;
  EXPECT_TRUE(reached);
}

TEST(CheckDeathTest, FalseConditionAbortsWithPlaceConditionAndMessage) {
  EXPECT_DEATH(QUIRE_CHECK(1 > 2, "numbers are broken"),
               "check_test.cc:[0-9]+: check failed: 1 > 2: numbers are broken");
}

TEST(CheckDeathTest, DebugCheckCostsNothingWithoutDebug) {
  int evaluated = 0;
  QUIRE_DCHECK(++evaluated > 0, "not reached");
#ifdef NDEBUG
  EXPECT_EQ(evaluated, 0);
#else
  EXPECT_EQ(evaluated, 1);
  EXPECT_DEATH(QUIRE_DCHECK(evaluated == 7, "seven"), "seven");
#endif
}

}  // namespace
}  // namespace quire::base
