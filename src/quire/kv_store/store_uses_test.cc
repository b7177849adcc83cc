#include "quire/kv_store/store_uses.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "quire/device/cpu/no_threads.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"

namespace quire::kv_store {
namespace {

TEST_F(StoreTest, WhatIsUsedInMemoryNeitherExpiresNorIsLeastRecentlyUsed) {
  Store store = open();
  put(store, "a", {0});
  put(store, "b", {1});
  ASSERT_TRUE(store.entries().set_ttl(test_hash("a"), "t", 5000).ok());
  ASSERT_TRUE(store.entries().set_ttl(test_hash("b"), "t", 5000).ok());
  ahead_ms_ += 3000;
  {
    StoreUses uses(open());
    uses.note(test_hash("a"), "t");
    uses.note(test_hash("of nobody"), "t");
  }
  EXPECT_EQ(names_of(*store.entries().list()), "b a ");
  ahead_ms_ += 3000;
  EXPECT_EQ(store.collector().gc()->expired_entries, 1);
  EXPECT_EQ(names_of(*store.entries().list()), "a ");
}

TEST_F(StoreTest, UsesAreToldWhileTheirProcessGoesOn) {
  Store store = open();
  put(store, "a", {0});
  StoreUses uses(open());
  for (int round = 0; round < 2; ++round) {
    ahead_ms_ += 60'000;
    const std::int64_t before = store.now_ms();
    uses.note(test_hash("a"), "t");
    while (store.entries().get(test_hash("a"), "t")->accessed_ms < before) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
}

TEST_F(StoreTest, UsesOfSeveralThreadsWaitForNoWriter) {
  Store store = open();
  put(store, "a", {0});
  const auto writer = StoreIndex::open_writable(Folder::open(path_).value(), false);
  StoreUses uses(open());
  {
    const auto writing = writer->begin();
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int j = 0; j < 1000; ++j) {
          uses.note(test_hash(std::to_string(j)), "t");
        }
      });
    }
  }
}

TEST_F(StoreTest, WithoutAThreadUsesAreToldInTheEnd) {
  Store store = open();
  put(store, "a", {0});
  const std::int64_t before = store.now_ms();
  {
    const device::NoThreads refused;
    StoreUses uses(open());
    uses.note(test_hash("a"), "t");
  }
  EXPECT_GE(store.entries().get(test_hash("a"), "t")->accessed_ms, before);
}

}  // namespace
}  // namespace quire::kv_store
