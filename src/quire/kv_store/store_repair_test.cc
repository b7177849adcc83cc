// Repairs that must not lose what they find. index_fault_test.cc tests what they find in a damaged
// index, store_crash_test.cc a repair that dies.
#include "quire/kv_store/store_repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;

TEST_F(StoreTest, AFullDiskFailsARepairAndLeavesTheOldIndex) {
  constexpr int kEntries = 120;
  {
    Store store = open();
    for (int i = 0; i < kEntries; ++i) {
      put(store, std::to_string(i) + std::string(600, 'x'), {i % 4});
    }
  }
  const auto size = static_cast<rlim_t>(std::filesystem::file_size(path_ / "index.sqlite"));
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  int refused = 0, done = 0;
  for (rlim_t bytes = 999; bytes < 100 * size; bytes += bytes / 6) {
    const rlimit small{.rlim_cur = bytes, .rlim_max = limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto kept = repair_store(path_);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    if (kept.ok()) {
      EXPECT_EQ(*kept, kEntries);
      ++done;
    } else {
      EXPECT_EQ(kept.error().code, ErrorCode::kIo) << kept.error().message;
      EXPECT_FALSE(std::filesystem::exists(path_ / ".tmp-repair"));
      ++refused;
    }
    ASSERT_EQ(open().entries().list()->size(), std::size_t{kEntries}) << bytes;
  }
  ::signal(SIGXFSZ, old_action);
  EXPECT_GT(refused, 10);
  EXPECT_GT(done, 5);
}

TEST_F(StoreTest, WhatTheSystemRefusesFailsARepair) {
  {
    Store store = open();
    put(store, "a", {0});
    put(store, "b", {1});
  }
  const auto folder = object_path(0).parent_path();
  std::filesystem::rename(folder, folder_.path() / "elsewhere");
  std::filesystem::create_symlink(folder_.path() / "elsewhere", folder);
  EXPECT_EQ(repair_store(path_).error().code, ErrorCode::kIo);
  std::filesystem::remove(folder);
  std::filesystem::rename(folder_.path() / "elsewhere", folder);
  EXPECT_EQ(names_of(*open().entries().list()), "a b ");
  std::filesystem::remove(object_path(0));
  EXPECT_EQ(*repair_store(path_), 1) << "a missing object is lost, which is no failure";
  EXPECT_EQ(names_of(*open().entries().list()), "b ");
}

TEST_F(StoreTest, RepairLeavesAnIndexOfALaterVersionAlone) {
  {
    Store store = open();
    put(store, "a", {0});
  }
  execute_sql("PRAGMA user_version = 3");
  const auto kept = repair_store(path_);
  EXPECT_EQ(kept.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(kept.error().message, HasSubstr("index format version 3"));
  execute_sql("PRAGMA user_version = 2");
  EXPECT_EQ(names_of(*open().entries().list()), "a ");
}

TEST_F(StoreTest, RepairedEntriesAreAsOldAsTheyWereAndLiveNoLonger) {
  {
    Store store = open();
    for (const std::string name : {"a", "b", "c"}) {
      put(store, name, {0});
    }
    ASSERT_TRUE(store.entries().set_ttl(test_hash("b"), "t", 5000).ok());
    ASSERT_TRUE(store.entries().set_ttl(test_hash("c"), "t", 1000).ok());
    ahead_ms_ += 2000;
    ASSERT_TRUE(store.entries().touch(test_hash("a"), "t").ok());
  }
  EXPECT_EQ(*repair_store(path_), 3);
  EXPECT_EQ(names_of(*open().entries().list()), "b a ");
  ahead_ms_ += 4000;
  EXPECT_EQ(names_of(*open().entries().list()), "a ");
}

}  // namespace
}  // namespace quire::kv_store
