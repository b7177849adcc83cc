#include "quire/base/iso_time.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace quire::base {
namespace {

using std::chrono::seconds;
using std::chrono::system_clock;

system_clock::time_point at(std::int64_t since_1970) {
  return system_clock::time_point(seconds(since_1970));
}

TEST(IsoTime, IsUtcWithTwoDigitsEverywhere) {
  EXPECT_EQ(iso_utc(at(0)), "1970-01-01T00:00:00Z");
  EXPECT_EQ(iso_utc(at(1'704'067'200)), "2024-01-01T00:00:00Z");
  EXPECT_EQ(iso_utc(at(1'709'210'096)), "2024-02-29T12:34:56Z") << "a leap day";
  EXPECT_EQ(iso_utc(at(2'147'483'648)), "2038-01-19T03:14:08Z") << "beyond 32 bits";
}

TEST(IsoTime, TimesBefore1970AreTimesToo) { EXPECT_EQ(iso_utc(at(-1)), "1969-12-31T23:59:59Z"); }

TEST(IsoTime, FractionsOfASecondAreLeftOut) {
  EXPECT_EQ(iso_utc(at(59) + std::chrono::milliseconds(999)), "1970-01-01T00:00:59Z");
}

}  // namespace
}  // namespace quire::base
