// Wipes that the disk refuses or that are cut short: no entry ever names what was overwritten.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using testing::HasSubstr;

class Wipes : public StoreTest {
 protected:
  // A second name for an object, to see what becomes of its bytes.
  void watch(std::int32_t index) {
    std::filesystem::create_hard_link(object_path(index), watched(index));
  }
  [[nodiscard]] std::filesystem::path watched(std::int32_t index) const {
    return folder_.path() / ("seen " + std::to_string(index));
  }
  [[nodiscard]] bool is_overwritten(std::int32_t index) const {
    const std::vector<char> bytes = file_bytes_of(watched(index));
    return !bytes.empty() && std::ranges::all_of(bytes, [](char byte) { return byte == 0; });
  }
  [[nodiscard]] std::filesystem::path mark(std::int32_t index) const {
    return object_path(index).parent_path() / (".wipe-" + object_path(index).filename().string());
  }
  void make_mark(std::int32_t index) const { write_bytes(mark(index), {}); }
};

TEST_F(Wipes, OnAFullDiskLeaveTheEntryWholeOrTakeItOut) {
  int refused = 0, done = 0;
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  for (rlim_t bytes = 0; bytes < 120'000; bytes += 4096) {
    std::filesystem::remove_all(path_);
    Store store = open();
    put(store, "a", {0, 1});
    const rlimit small{.rlim_cur = bytes, .rlim_max = limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const auto removed = store.remover().remove(test_hash("a"), "t", true);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    (removed.ok() ? done : refused) += 1;
    if (!removed.ok()) {
      EXPECT_EQ(removed.error().code, ErrorCode::kIo);
    }
    if (const auto entry = store.entries().find(test_hash("a"), "t").value()) {
      expect_whole(store, *entry);
      for (const ObjectRange& part : entry->parts) {
        EXPECT_TRUE(store.objects().open(part.object)->verify().ok()) << "limit " << bytes;
      }
    }
    EXPECT_TRUE(store.remover().remove(test_hash("a"), "t", true).ok());
    EXPECT_FALSE(std::filesystem::exists(object_path(0)) || std::filesystem::exists(mark(0)));
  }
  ::signal(SIGXFSZ, old_action);
  EXPECT_GT(refused, 2);
  EXPECT_GT(done, 2);
}

TEST_F(Wipes, CutShortBehindTheCommitAreEndedByTheNextOrByGc) {
  for (const bool by_gc : {false, true}) {
    Store store = open();
    put(store, "a", {0});
    put(store, "b", {1});
    std::filesystem::remove(watched(0));
    watch(0);
    make_mark(0);
    EXPECT_TRUE(store.remover().remove(test_hash("b"), "t").value());
    execute_sql("DELETE FROM checksums; DELETE FROM parts; DELETE FROM entries");
    put(store, "b", {1});
    EXPECT_FALSE(is_overwritten(0));
    if (by_gc) {
      EXPECT_TRUE(store.collector().gc().ok());
    } else {
      EXPECT_TRUE(store.remover().remove(test_hash("b"), "t", true).value());
    }
    EXPECT_TRUE(is_overwritten(0));
    EXPECT_FALSE(std::filesystem::exists(mark(0)) || std::filesystem::exists(object_path(0)));
  }
}

TEST_F(Wipes, CutShortBehindTheRenameAreEnded) {
  Store store = open();
  put(store, "a", {0});
  watch(0);
  execute_sql("DELETE FROM checksums; DELETE FROM parts; DELETE FROM entries");
  std::filesystem::rename(object_path(0), mark(0));
  EXPECT_GT(put_object(store, 0).value(), 0) << "put again meanwhile by another";
  ASSERT_TRUE(store.entries().put(entry_of("other", {0})).ok());
  EXPECT_TRUE(store.remover().finish_wipes().ok());
  EXPECT_TRUE(is_overwritten(0));
  EXPECT_FALSE(std::filesystem::exists(mark(0)));
  expect_whole(store, store.entries().get(test_hash("other"), "t").value());
}

TEST_F(Wipes, CutShortBeforeTheCommitLeaveTheEntryAndItsKV) {
  Store store = open();
  put(store, "a", {0});
  make_mark(0);
  EXPECT_TRUE(store.remover().finish_wipes().ok());
  EXPECT_FALSE(std::filesystem::exists(mark(0)));
  expect_whole(store, store.entries().get(test_hash("a"), "t").value());
}

TEST_F(Wipes, LeaveWhatOthersNameAndSayNothingOfMarksToReaders) {
  Store store = open();
  put(store, "a", {0, 1});
  put(store, "b", {1});
  make_mark(0);
  EXPECT_EQ(store.inspector().verify()->size(), 2U);
  EXPECT_TRUE(store.remover().remove(test_hash("a"), "t", true).value());
  expect_whole(store, store.entries().get(test_hash("b"), "t").value());
  EXPECT_EQ(store.inspector().verify()->size(), 1U);
}

}  // namespace
}  // namespace quire::kv_store
