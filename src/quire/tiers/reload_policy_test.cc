// When saved KV is read back and when it is computed again.
#include "quire/tiers/reload_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace quire::tiers {
namespace {

void note(ReloadPolicy& pace, double read, double computed) {
  for (int i = 0; i < 3; ++i) {
    pace.note_read(100, 100 * read);
    pace.note_computed(200, 200 * computed);
  }
}

TEST(ReloadPolicy, ReadsWhileNothingIsKnown) {
  ReloadPolicy pace;
  EXPECT_TRUE(pace.reads_next());
  for (int i = 0; i < 9; ++i) {
    pace.note_read(100, 9);
  }
  EXPECT_TRUE(pace.reads_next()) << "nobody knows what computing takes";
  EXPECT_FALSE(pace.measured().computed.has_value());
}

TEST(ReloadPolicy, TakesTheFasterWay) {
  ReloadPolicy reading;
  note(reading, 1e-6, 1e-3);
  EXPECT_TRUE(reading.reads_next());
  ReloadPolicy computing;
  note(computing, 1e-3, 2e-4);
  EXPECT_FALSE(computing.reads_next());
  EXPECT_EQ(computing.why_not_read(),
            "on disk, but computing is faster here: 200 us a token, reading 1000 us");
}

TEST(ReloadPolicy, OneSlowReadDecidesNothing) {
  ReloadPolicy pace;
  note(pace, 1e-6, 1e-3);
  pace.note_read(100, 100);
  pace.note_read(100, 100);
  EXPECT_TRUE(pace.reads_next());
  pace.note_read(100, 100);
  EXPECT_FALSE(pace.reads_next()) << "three of the last five";
}

TEST(ReloadPolicy, FewTokensSayNothing) {
  ReloadPolicy pace;
  note(pace, 1e-6, 1e-3);
  for (int i = 0; i < 9; ++i) {
    pace.note_read(5, 100);
  }
  EXPECT_TRUE(pace.reads_next());
}

TEST(ReloadPolicy, ReadsNowAndThenToMeasureAgain) {
  ReloadPolicy pace;
  note(pace, 1e-3, 2e-4);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 15; ++i) {
      EXPECT_FALSE(pace.reads_next());
    }
    EXPECT_TRUE(pace.reads_next());
  }
  for (int i = 0; i < 3; ++i) {
    pace.note_read(100, 1e-4);
  }
  EXPECT_TRUE(pace.reads_next()) << "the disk is fast again";
}

TEST(ReloadPolicy, AForecastIsWhatIsThenSaidAndTakesNoTurn) {
  ReloadPolicy pace;
  note(pace, 1e-3, 2e-4);
  EXPECT_FALSE(pace.reads_next());
  ReloadPolicy::Forecast forecast = pace.forecast();
  std::vector<bool> foreseen;
  for (int i = 0; i < 40; ++i) {
    foreseen.push_back(forecast.reads_next());
  }
  EXPECT_EQ(std::ranges::count(foreseen, true), 2);
  for (const bool reads : foreseen) {
    EXPECT_EQ(pace.reads_next(), reads);
  }
}

}  // namespace
}  // namespace quire::tiers
