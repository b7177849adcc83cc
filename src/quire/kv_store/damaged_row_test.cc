// A damaged row of the index. It costs no other entry anything, is named by verify, keeps its
// objects, and gives way when it is put again. And rows that are never written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_repair.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using testing::HasSubstr;

constexpr const char* kDamages[] = {"UPDATE entries SET accessed_ms = -5 WHERE name = 'b'",
                                    "UPDATE entries SET created_ms = -5 WHERE name = 'b'",
                                    "UPDATE entries SET expires_ms = -5 WHERE name = 'b'",
                                    "UPDATE entries SET kind = 'chunx' WHERE name = 'b'",
                                    "UPDATE entries SET metadata = '{' WHERE name = 'b'",
                                    "UPDATE entries SET tokens = -1 WHERE name = 'b'",
                                    "UPDATE entries SET name = zeroblob(2000) WHERE name = 'b'",
                                    "UPDATE parts SET object = 'x' WHERE entry = 2",
                                    "UPDATE parts SET tokens = 1 << 40 WHERE entry = 2",
                                    "DELETE FROM parts WHERE entry = 2",
                                    "UPDATE checksums SET value = 1 WHERE entry = 2"};

class DamagedRows : public StoreTest {
 protected:
  // Three entries, of which the second one's row is damaged.
  Store damaged(const char* sql) {
    std::filesystem::remove_all(path_);
    {
      Store store = open();
      put(store, "a", {0});
      put(store, "b", {1});
      put(store, "c", {2});
    }
    execute_sql(sql);
    ahead_ms_ += 3'600'000;
    return open({.max_bytes = 1, .grace_ms = 0});
  }
};

TEST_F(DamagedRows, CostNoOtherEntryAndKeepTheirObjects) {
  for (const char* sql : kDamages) {
    SCOPED_TRACE(sql);
    Store store = damaged(sql);
    EXPECT_EQ(names_of(store.entries().list().value()), "a c ");
    EXPECT_FALSE(store.entries().find(test_hash("b"), "t").value());
    EXPECT_FALSE(store.entries().has(test_hash("b"), "t").value());
    expect_whole(store, store.entries().get(test_hash("a"), "t").value());
    EXPECT_TRUE(store.entries().touch(test_hash("c"), "t").ok());
    const std::vector<ObjectReport> reports = store.inspector().verify().value();
    const auto named = std::ranges::find(reports, test_hash("b"), &ObjectReport::hash);
    ASSERT_NE(named, reports.end());
    EXPECT_EQ(named->state, ObjectReport::State::kDamaged);
    EXPECT_THAT(named->message, HasSubstr("row 2 is damaged"));
    const GcReport report = store.collector().gc().value();
    EXPECT_EQ(report.evicted_entries, 2) << "the others, which the limit wants gone";
    EXPECT_TRUE(store.objects().is_there(object_hash(1)));
    EXPECT_FALSE(store.objects().is_there(object_hash(0)));
  }
}

TEST_F(DamagedRows, GiveWayToTheEntryThatIsPutAgain) {
  for (const char* sql : kDamages) {
    SCOPED_TRACE(sql);
    Store store = damaged(sql);
    ASSERT_TRUE(put_object(store, 1).ok());
    EXPECT_TRUE(store.entries().put_new(entry_of("b", {1})).value());
    expect_whole(store, store.entries().get(test_hash("b"), "t").value());
    for (const ObjectReport& report : store.inspector().verify().value()) {
      EXPECT_EQ(report.state, ObjectReport::State::kOk) << report.message;
    }
  }
}

TEST_F(DamagedRows, ThatAClockBefore1970WroteAreMendedByRepair) {
  {
    Store store = damaged(
        "UPDATE entries SET accessed_ms = -5000, expires_ms = 3595000 "
        "WHERE name = 'b'");
    EXPECT_EQ(store.entries().list()->size(), 2U);
  }
  EXPECT_EQ(repair_store(path_).value(), 3);
  ahead_ms_ = -system_now_ms();
  const StoreEntry mended = open().entries().get(test_hash("b"), "t").value();
  EXPECT_EQ(mended.accessed_ms, 1);
  EXPECT_EQ(mended.ttl_ms, 3'600'000);
}

TEST_F(DamagedRows, AreWrittenByNoClock) {
  constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t now : {std::int64_t{-1}, std::int64_t{0}, -kEnd, kEnd}) {
    SCOPED_TRACE(now);
    std::filesystem::remove_all(path_);
    ahead_ms_ = 0;
    auto opened = Store::open(path_, {.write = {.sync = false}, .now_ms = [=] { return now; }});
    Store& store = *opened;
    put(store, "a", {0});
    StoreEntry kept = entry_of("b", {0});
    kept.ttl_ms = kMaxTtlMs;
    ASSERT_TRUE(store.entries().put(kept).ok());
    EXPECT_TRUE(store.entries().touch(test_hash("a"), "t").ok());
    EXPECT_TRUE(store.entries().touch(LastUses{{test_hash("a"), now}}, "t").ok());
    EXPECT_TRUE(store.entries().set_ttl(test_hash("a"), "t", 5000).ok());
    EXPECT_EQ(store.entries().list()->size(), 2U);
    EXPECT_TRUE(store.collector().gc().ok());
    EXPECT_EQ(store.inspector().verify()->size(), 1U) << "no row is damaged";
    EXPECT_GT(store.entries().get(test_hash("a"), "t")->accessed_ms, 0);
  }
}

TEST_F(DamagedRows, AreRefusedBeforeTheyAreWritten) {
  Store store = open();
  put(store, "a", {0});
  std::vector<StoreEntry> wrong(4, entry_of("w", {0}));
  wrong[0].created_ms = -1;
  wrong[1].accessed_ms = -1;
  wrong[2].accessed_ms = std::numeric_limits<std::int64_t>::max();
  wrong[3].ttl_ms = -1;
  for (const StoreEntry& entry : wrong) {
    EXPECT_EQ(store.entries().put(entry).error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(names_of(*store.entries().list()), "a ");
}

}  // namespace
}  // namespace quire::kv_store
