#include "quire/kv_store/store_collector.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

TEST_F(StoreTest, CollectingEvictsTheLeastRecentlyUsedButNeverPinnedOnes) {
  Store store = open();
  put(store, "a", {0});
  put(store, "b", {1});
  put(store, "c", {2});
  put(store, "d", {3, 2});
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)));
  ASSERT_TRUE(store.entries().touch(test_hash("a"), "t").ok());
  ASSERT_TRUE(store.entries().pin(test_hash("b"), "t", true).ok());
  Store small = open({.max_bytes = 2 * bytes});
  const auto report = small.collector().gc();
  ASSERT_TRUE(report.ok());
  // c frees nothing, for d names its object too; both go, then two objects are left.
  EXPECT_EQ(names_of(*small.entries().list()), "b a ");
  EXPECT_EQ(report->evicted_entries, 2);
  EXPECT_EQ(report->removed_objects, 2);
  EXPECT_EQ(report->removed_bytes, 2 * bytes);
  EXPECT_EQ(report->bytes, 2 * bytes);
  const auto again = open({.max_bytes = 1}).collector().gc();
  EXPECT_EQ(again->evicted_entries, 1);
  EXPECT_EQ(names_of(*small.entries().list()), "b ");
}

TEST_F(StoreTest, PuttingCollectsByItselfAboveTheLimit) {
  Store unlimited = open();
  put(unlimited, "old", {0});
  put(unlimited, "expired", {1});
  put(unlimited, "pinned", {2});
  put(unlimited, "used", {3});
  ASSERT_TRUE(unlimited.entries().pin(test_hash("pinned"), "t", true).ok());
  ASSERT_TRUE(unlimited.entries().set_ttl(test_hash("expired"), "t", 500).ok());
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)));
  ahead_ms_ += 1000;
  {
    Store store = open({.max_bytes = 4 * bytes});
    put(store, "new", {4});
    EXPECT_EQ(names_of(*store.entries().list()), "old pinned used new ")
        << "what has expired goes first";
    put(store, "newer", {5});
    EXPECT_EQ(names_of(*store.entries().list()), "pinned used new newer ");
  }
  Store store = open({.max_bytes = 2 * bytes});
  put(store, "newest", {6});
  EXPECT_EQ(names_of(*store.entries().list()), "pinned newest ");
}

TEST_F(StoreTest, WhatIsPutStaysEvenWhenItAloneIsTooLarge) {
  Store store = open({.max_bytes = 1});
  put(store, "a", {0, 1});
  EXPECT_EQ(names_of(*store.entries().list()), "a ");
  put(store, "b", {2, 3});
  EXPECT_EQ(names_of(*store.entries().list()), "b ");
  const auto moved = folder_.path() / "b.qke";
  ASSERT_TRUE(store.files().export_entry(test_hash("b"), "t", moved).ok());
  put(store, "c", {4});
  ASSERT_TRUE(store.files().import_entry(moved, "t").ok());
  EXPECT_EQ(names_of(*store.entries().list()), "b ") << "importing is putting";
}

TEST_F(StoreTest, WithALimitTheFilesOfOthersCountToo) {
  Store one = open();
  put(one, "0", {0});
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)));
  Store two = open({.max_bytes = 3 * bytes});
  for (const std::int32_t object : {1, 2, 3, 4, 5, 6}) {
    put(object % 2 == 0 ? one : two, std::to_string(object), {object});
  }
  put(two, "7", {7});
  EXPECT_EQ(names_of(*one.entries().list()), "5 6 7 ");
}

TEST_F(StoreTest, CollectingLeavesYoungObjectsAndTakesWhatKilledWritersLeft) {
  Store store = open({.grace_ms = 60'000});
  ASSERT_TRUE(put_object(store, 0).ok());
  write_bytes(object_path(0).parent_path() / ".tmp-0123", std::vector<char>(10));
  auto report = store.collector().gc();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_objects + report->removed_temporaries, 0);
  ahead_ms_ += 61'000;
  report = store.collector().gc();
  EXPECT_EQ(report->removed_objects, 1);
  EXPECT_EQ(report->removed_temporaries, 1);
  const Status late = store.entries().put(entry_of("a", {0}));
  EXPECT_EQ(late.error().code, ErrorCode::kNotFound) << "the object must be put again";
  EXPECT_GT(*put_object(store, 0), 0);
  EXPECT_TRUE(store.entries().put(entry_of("a", {0})).ok());
}

}  // namespace
}  // namespace quire::kv_store
