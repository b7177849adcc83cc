#include "quire/kv_store/store_inspector.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"

namespace quire::kv_store {
namespace {

TEST_F(StoreTest, VerifyingFindsNoDamageInWhatAnotherRemovesMeanwhile) {
  Store store = open();
  std::atomic<bool> done = false;
  std::jthread other([&] {
    Store theirs = open();
    for (int round = 0; round < 150; ++round) {
      put(theirs, "a", {0, 1, 2, 3});
      EXPECT_TRUE(theirs.remover().remove(test_hash("a"), "t").ok());
    }
    done = true;
  });
  while (!done) {
    for (const ObjectReport& report : store.inspector().verify().value()) {
      EXPECT_EQ(report.state, ObjectReport::State::kOk) << report.message;
    }
  }
}

TEST_F(StoreTest, AReaderThatVerifiesNamesNothingThatAnotherRemovesOrWipesMeanwhile) {
  {
    open();
  }
  const Store reader = open({.read_only = true});
  std::atomic<bool> done = false;
  std::jthread other([&] {
    Store theirs = open();
    for (int round = 0; round < 400; ++round) {
      put(theirs, "a", {0, 1, 2, 3});
      EXPECT_TRUE(theirs.remover().remove(test_hash("a"), "t", round % 2 == 0).ok());
    }
    done = true;
  });
  while (!done) {
    for (const ObjectReport& report : reader.inspector().verify().value()) {
      EXPECT_EQ(report.state, ObjectReport::State::kOk) << report.message;
    }
  }
}

}  // namespace
}  // namespace quire::kv_store
