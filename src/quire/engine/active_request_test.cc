#include "quire/engine/active_request.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "quire/base/ids.h"
#include "quire/engine/channel.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// What the caller of such a request reads.
ReuseGrade reported(NewRequest request) {
  request.prompt = {1, 2, 3};
  ActiveRequest active(RequestId{1}, std::move(request), 0, nullptr, {});
  active.note_admission(2);
  active.end(FinishReason::kLength);
  return active.channel()->take_generation().value().reuse.grade;
}

NewRequest composed(ReuseGrade grade, bool same_bits) {
  NewRequest request{.same_bits = same_bits};
  request.composed = ComposedPrompt{.reuse = {.grade = grade}};
  return request;
}

TEST(ActiveRequest, ReportsExactOnlyWhereBitsDoNotDependOnTheBatch) {
  EXPECT_EQ(reported({}), ReuseGrade::kExact);
  EXPECT_EQ(reported({.same_bits = false}), ReuseGrade::kEqualMath);
  EXPECT_EQ(reported(composed(ReuseGrade::kExact, true)), ReuseGrade::kExact);
  EXPECT_EQ(reported(composed(ReuseGrade::kExact, false)), ReuseGrade::kEqualMath);
  EXPECT_EQ(reported(composed(ReuseGrade::kApproximate, false)), ReuseGrade::kApproximate);
}

}  // namespace
}  // namespace quire::engine
