#include "doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "quire/result.h"

namespace quire::cli {
namespace {

TEST(Doctor, FailsWithWhatTheSelfTestFound) {
  const auto report = boost::json::parse(
      R"({"isa": {"chosen": "avx2", "self_test": {"portable": "ok", "avx2": "kernel merge is wrong"}}})");
  const Status status = check_self_test(report);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  EXPECT_EQ(status.error().message, "kernel merge is wrong");
}

TEST(Doctor, IsContentWhenEverySetPasses) {
  EXPECT_TRUE(
      check_self_test(boost::json::parse(R"({"isa": {"self_test": {"portable": "ok"}}})")).ok());
}

}  // namespace
}  // namespace quire::cli
