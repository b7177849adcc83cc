#include "quire/engine/active_request.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/engine/channel.h"
#include "quire/output.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Returns the grade that the caller of such a request reads.
ReuseGrade reported(NewRequest request) {
  request.prompt = {1, 2, 3};
  ActiveRequest active(RequestId{1}, std::move(request), 0, nullptr, {});
  active.note_admission({.cached_tokens = 2});
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

// Rows of a vocabulary of one, whose logits are their numbers.
class Rows {
 public:
  explicit Rows(std::int32_t cached_tokens) {
    active_.note_admission({.cached_tokens = cached_tokens});
  }
  void add(std::int32_t first, std::int32_t end) {
    std::vector<float> logits(static_cast<std::size_t>(end - first));
    std::iota(logits.begin(), logits.end(), static_cast<float>(first));
    active_.add_logits(first, logits, 1);
  }
  // Expects the rows [first, end), and the tokens before them reported as cached.
  void expect(std::int32_t first, std::int32_t end, std::int64_t cached_tokens) {
    active_.end(FinishReason::kLength);
    const ForwardOutput output = active_.channel()->take_forward().value();
    std::vector<float> wanted(static_cast<std::size_t>(end - first));
    std::iota(wanted.begin(), wanted.end(), static_cast<float>(first));
    EXPECT_EQ(output.logits, wanted);
    EXPECT_EQ(output.rows, end - first);
    EXPECT_EQ(output.cached_tokens, cached_tokens);
  }

 private:
  ActiveRequest active_{RequestId{1},
                        {.kind = RequestKind::kForwardAll, .prompt = {1, 2, 3, 4, 5, 6, 7, 8}},
                        0,
                        nullptr,
                        {}};
};

TEST(ActiveRequest, RowsThatComeAgainReplaceWhatWasThere) {
  Rows from_the_start(0);
  from_the_start.add(0, 3);
  from_the_start.add(3, 5);
  from_the_start.add(0, 4);
  from_the_start.add(4, 8);
  from_the_start.expect(0, 8, 0);

  Rows on_what_it_has_computed(2);
  on_what_it_has_computed.add(2, 7);
  on_what_it_has_computed.add(4, 8);
  on_what_it_has_computed.expect(2, 8, 2);
}

TEST(ActiveRequest, ItBeginsAnewOnOtherCachedKv) {
  Rows more_is_cached(0);  // others have computed it meanwhile
  more_is_cached.add(0, 3);
  more_is_cached.add(6, 8);
  more_is_cached.expect(6, 8, 6);

  Rows less_is_cached(4);  // what it stood on is gone
  less_is_cached.add(4, 6);
  less_is_cached.add(0, 8);
  less_is_cached.expect(0, 8, 0);
}

TEST(ActiveRequest, RowsMayBeginBehindWhatIsComputedWithoutLogits) {
  Rows behind(0);
  behind.add(5, 7);
  behind.add(7, 8);
  behind.expect(5, 8, 0);
}

}  // namespace
}  // namespace quire::engine
