#include "quire/kv_store/store_entries.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <optional>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

TEST_F(StoreTest, ExpiredEntriesAreGoneUnlessPinned) {
  Store store = open();
  put(store, "a", {0});
  put(store, "b", {1});
  ASSERT_TRUE(store.entries().set_ttl(test_hash("a"), "t", 5000).ok());
  ASSERT_TRUE(store.entries().set_ttl(test_hash("b"), "t", 5000).ok());
  ASSERT_TRUE(store.entries().pin(test_hash("b"), "t", true).ok());
  EXPECT_EQ(store.entries().set_ttl(test_hash("a"), "t", -1).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(store.entries().find(test_hash("a"), "t")->has_value());
  ahead_ms_ += 6000;
  EXPECT_FALSE(store.entries().find(test_hash("a"), "t")->has_value());
  EXPECT_EQ(names_of(*store.entries().list()), "b ");
  const auto report = store.collector().gc();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->expired_entries, 1);
  EXPECT_EQ(report->removed_objects, 1);
  EXPECT_EQ(report->objects, 1);
  ASSERT_TRUE(store.entries().set_ttl(test_hash("b"), "t", std::nullopt).ok());
  ASSERT_TRUE(store.entries().pin(test_hash("b"), "t", false).ok());
  EXPECT_TRUE(store.entries().find(test_hash("b"), "t")->has_value());
}

TEST_F(StoreTest, AnEntryIsKeptAsLongAsItsLifetimeAfterItsLastUse) {
  Store store = open();
  put(store, "a", {0});
  StoreEntry entry = entry_of("b", {0});
  entry.ttl_ms = 5000;
  ASSERT_TRUE(store.entries().put(entry).ok());
  ASSERT_TRUE(store.entries().set_ttl(test_hash("a"), "t", 5000).ok());
  for (int i = 0; i < 3; ++i) {
    ahead_ms_ += 4000;
    EXPECT_EQ(store.collector().gc()->expired_entries, 0);
    ASSERT_TRUE(store.entries().touch(test_hash("a"), "t").ok());
    ASSERT_TRUE(store.entries().touch(test_hash("b"), "t").ok());
  }
  const StoreEntry used = store.entries().get(test_hash("b"), "t").value();
  EXPECT_EQ(used.ttl_ms, 5000);
  EXPECT_EQ(expires_ms(used), used.accessed_ms + 5000);
  ahead_ms_ += 4000;
  EXPECT_EQ(names_of(*store.entries().list()), "a b ");
  ahead_ms_ += 2000;
  EXPECT_EQ(names_of(*store.entries().list()), "");
  EXPECT_EQ(store.collector().gc()->expired_entries, 2);
}

TEST_F(StoreTest, UsesThatAreToldLateCountFromWhenTheyWere) {
  Store store = open();
  put(store, "a", {0});
  put(store, "b", {1});
  ASSERT_TRUE(store.entries().set_ttl(test_hash("a"), "t", 5000).ok());
  ASSERT_TRUE(store.entries().set_ttl(test_hash("b"), "t", 5000).ok());
  const std::int64_t now = store.now_ms();
  const LastUses uses = {{test_hash("a"), now + 3000},
                         {test_hash("b"), now - 1'000'000},
                         {test_hash("of nobody"), now}};
  ahead_ms_ += 6000;
  EXPECT_EQ(names_of(*store.entries().list()), "");
  ASSERT_TRUE(store.entries().touch(uses, "t").ok());
  EXPECT_EQ(names_of(*store.entries().list()), "a ") << "it was used before it would have expired";
  EXPECT_EQ(store.entries().touch(test_hash("of nobody"), "t").error().code, ErrorCode::kNotFound);
}

TEST_F(StoreTest, LifetimesOfOlderBuildsAndOutOfRangeAreReadAndRefused) {
  Store store = open();
  put(store, "a", {0});
  for (const std::int64_t ttl : {kMaxTtlMs + 1, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(store.entries().set_ttl(test_hash("a"), "t", ttl).error().code,
              ErrorCode::kInvalidArgument);
  }
  ASSERT_TRUE(store.entries().set_ttl(test_hash("a"), "t", kMaxTtlMs).ok());
  execute_sql("UPDATE entries SET expires_ms = 9223372036854775807");
  ASSERT_TRUE(store.entries().touch(test_hash("a"), "t").ok());
  EXPECT_EQ(store.entries().get(test_hash("a"), "t")->ttl_ms, kMaxTtlMs);
  execute_sql("UPDATE entries SET expires_ms = accessed_ms - 5");
  EXPECT_EQ(names_of(*store.entries().list()), "");
  execute_sql("UPDATE entries SET expires_ms = -1");
  EXPECT_TRUE(store.entries().list().value().empty()) << "no writer of ours has written that";
  EXPECT_TRUE(store.objects().is_there(object_hash(0)));
}

}  // namespace
}  // namespace quire::kv_store
