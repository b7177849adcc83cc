// Store over time: removing, wiping, expiry, collecting, limits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "quire/kv_store/holds_text.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using testing::HasSubstr;

TEST_F(StoreTest, RemovingTakesTheObjectsThatNoOtherEntryNames) {
  Store store = open();
  put(store, "a", {0, 1});
  put(store, "b", {1, 2});
  EXPECT_TRUE(*store.remover().remove(test_hash("a"), "t", true));
  EXPECT_FALSE(*store.remover().remove(test_hash("a"), "t"));
  EXPECT_FALSE(std::filesystem::exists(object_path(0)));
  EXPECT_TRUE(std::filesystem::exists(object_path(1)));
  expect_whole(store, **store.entries().find(test_hash("b"), "t"));
}

TEST_F(StoreTest, WipingOverwritesTheBytesBeforeTheNameGoes) {
  Store store = open();
  put(store, "a", {0});
  std::filesystem::create_hard_link(object_path(0), folder_.path() / "seen");
  EXPECT_TRUE(*store.remover().remove(test_hash("a"), "t", true));
  const std::vector<char> bytes = file_bytes_of(folder_.path() / "seen");
  EXPECT_FALSE(bytes.empty());
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; }));
}

// Here a link that nobody may follow stands for a disk that refuses.
TEST_F(StoreTest, WhatCannotBeWipedIsRemovedAndWipedByTheSameCallAgain) {
  Store store = open();
  put(store, "a", {0, 1});
  const std::filesystem::path aside = folder_.path() / "aside";
  std::filesystem::rename(object_path(1), aside);
  std::filesystem::create_symlink(aside, object_path(1));
  const auto refused = store.remover().remove(test_hash("a"), "t", true);
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_THAT(refused.error().message, HasSubstr("until the next wipe"));
  EXPECT_FALSE(store.entries().has(test_hash("a"), "t").value());
  std::filesystem::rename(aside, object_path(1));
  std::filesystem::create_hard_link(object_path(1), folder_.path() / "seen");
  EXPECT_FALSE(store.remover().remove(test_hash("a"), "t", true).value()) << "it is gone already";
  const std::vector<char> seen = file_bytes_of(folder_.path() / "seen");
  EXPECT_TRUE(std::ranges::all_of(seen, [](char byte) { return byte == 0; }));
  EXPECT_FALSE(std::filesystem::exists(object_path(0)));
  EXPECT_FALSE(std::filesystem::exists(object_path(1)));
}

class WipedStore : public StoreTest {
 protected:
  // An entry that says more than fits into one page of the index.
  void put_secret(Store& store) {
    ASSERT_TRUE(put_object(store, 0).ok());
    StoreEntry entry = entry_of("named-secret", {0});
    entry.metadata_json = R"({"text": ")";
    for (int i = 0; i < 1000; ++i) {
      entry.metadata_json += "told-secret ";
    }
    entry.metadata_json += "\"}";
    ASSERT_TRUE(store.entries().put(entry).ok());
  }
  [[nodiscard]] bool holds_secret() const {
    return holds_text(path_, "named-secret") || holds_text(path_, "told-secret");
  }
  [[nodiscard]] static Result<bool> wipe(Store& store) {
    return store.remover().remove(test_hash("named-secret"), "t", true);
  }
};

TEST_F(WipedStore, HoldsNothingOfWhatAnEntrySaidThoughOthersHaveItOpen) {
  Store store = open();
  Store other = open();
  put_secret(store);
  ASSERT_TRUE(other.entries().list().ok());
  ASSERT_TRUE(holds_secret());
  EXPECT_TRUE(wipe(store).value());
  EXPECT_FALSE(holds_secret());
}

TEST_F(WipedStore, WhileSomebodyReadsWhatIsLeftIsToldAndWipingAgainFinishes) {
  Store store = open();
  put_secret(store);
  {
    const Database reader = Database::open(path_ / "index.sqlite", Database::Mode::kRead).value();
    ASSERT_TRUE(reader.execute("BEGIN; SELECT count(*) FROM entries").ok());
    const auto wiped = wipe(store);
    ASSERT_FALSE(wiped.ok());
    EXPECT_EQ(wiped.error().code, ErrorCode::kIo);
    EXPECT_THAT(wiped.error().message, HasSubstr("still in the log"));
    EXPECT_FALSE(store.entries().has(test_hash("named-secret"), "t").value());
    EXPECT_FALSE(std::filesystem::exists(object_path(0)));
  }
  EXPECT_TRUE(holds_secret());
  EXPECT_FALSE(wipe(store).value()) << "it is gone already";
  EXPECT_FALSE(holds_secret());
}

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

TEST(PutUntilThere, PutsAgainWhatOthersTookAndNothingElse) {
  const auto calls_until = [](ErrorCode code, int failures) {
    int calls = 0;
    const Status done =
        put_until_there([&] { return ++calls <= failures ? Status(code, "taken") : Status(); });
    return done.ok() ? calls : -calls;
  };
  EXPECT_EQ(calls_until(ErrorCode::kNotFound, 0), 1);
  EXPECT_EQ(calls_until(ErrorCode::kNotFound, 2), 3);
  EXPECT_EQ(calls_until(ErrorCode::kNotFound, 100), -4);
  EXPECT_EQ(calls_until(ErrorCode::kIo, 1), -1);
}

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
