#include "quire/engine/histogram.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

namespace quire::engine {
namespace {

// Returns the bucket of a duration.
std::size_t bucket_of(double seconds) {
  Histogram histogram;
  histogram.add(seconds);
  std::size_t found = 0;
  for (std::size_t i = 0; i <= Histogram::kBounds; ++i) {
    found += histogram.count(i) == 0 ? 0 : i;
  }
  return found;
}

TEST(Histogram, ADurationFallsIntoTheFirstBucketWhoseBoundIsNotBelowIt) {
  EXPECT_EQ(Histogram::bound(16), 1.0);
  EXPECT_EQ(Histogram::bound(Histogram::kBounds - 1), 1024.0);
  for (std::size_t i = 0; i < Histogram::kBounds; ++i) {
    EXPECT_EQ(bucket_of(Histogram::bound(i)), i);
    EXPECT_EQ(bucket_of(Histogram::bound(i) * 1.001), i + 1);
  }
}

TEST(Histogram, DurationsBeyondTheBoundsAreCountedAtTheEnds) {
  EXPECT_EQ(bucket_of(0), 0u);
  EXPECT_EQ(bucket_of(-1e-9), 0u) << "a clock may be read in the other order";
  EXPECT_EQ(bucket_of(1e-9), 0u);
  EXPECT_EQ(bucket_of(1e9), Histogram::kBounds);
}

TEST(Histogram, AddsUp) {
  Histogram histogram;
  for (int i = 0; i < 100; ++i) {
    histogram.add(0.25 * i);
  }
  std::int64_t count = 0;
  for (std::size_t i = 0; i <= Histogram::kBounds; ++i) {
    count += histogram.count(i);
  }
  EXPECT_EQ(count, 100);
  EXPECT_EQ(histogram.sum(), 0.25 * 99 * 50);
}

}  // namespace
}  // namespace quire::engine
