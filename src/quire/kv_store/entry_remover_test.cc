#include "quire/kv_store/entry_remover.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "quire/kv_store/holds_text.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;

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

}  // namespace
}  // namespace quire::kv_store
