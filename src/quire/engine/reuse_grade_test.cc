#include "quire/engine/reuse_grade.h"

#include <gtest/gtest.h>

#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

TEST(ReuseGrade, WithoutTheSameBitsNothingIsExact) {
  EXPECT_EQ(graded(ReuseGrade::kExact, true), ReuseGrade::kExact);
  EXPECT_EQ(graded(ReuseGrade::kExact, false), ReuseGrade::kEqualMath);
}

TEST(ReuseGrade, ALowerGradeStays) {
  for (const bool same_bits : {false, true}) {
    EXPECT_EQ(graded(ReuseGrade::kEqualMath, same_bits), ReuseGrade::kEqualMath);
    EXPECT_EQ(graded(ReuseGrade::kApproximate, same_bits), ReuseGrade::kApproximate);
  }
}

}  // namespace
}  // namespace quire::engine
