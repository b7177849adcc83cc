// The fixture of the tests of Store: a store in a folder of its own, and KV to put into it.
#pragma once

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/sha256.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {

inline std::string names_of(const std::vector<StoreEntry>& entries) {
  std::string names;
  for (const StoreEntry& entry : entries) {
    names += entry.name + " ";
  }
  return names;
}

// A store in a folder of its own, and KV to put into it. The clock is the system's plus `ahead_ms`.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest() : pool_(random_pool(small_geometry(), 8, 31)), path_(folder_.path() / "store") {}

  // Opens the store. No test here loses power, so nothing waits for the disk.
  Store open(StoreOptions options = {}) {
    options.write.sync = false;
    options.now_ms = [this] { return system_now_ms() + ahead_ms_; };
    auto store = Store::open(path_, std::move(options));
    EXPECT_TRUE(store.ok()) << store.error().message;
    return std::move(store).value();
  }

  KVFileContent content_of(int tokens, int first_id = 7) const {
    return {.fingerprint = fingerprint_of(1),
            .geometry = pool_.geometry(),
            .runs = {run_of(tokens, 0, first_id)}};
  }

  // Stores the object of 4 tokens in block `index`.
  Result<std::int64_t> put_object(Store& store, std::int32_t index) {
    return store.objects().put(object_hash(index), content_of(4, 100 * index), pool_,
                               {{{BlockId{index}}}});
  }

  StoreEntry entry_of(const std::string& name, std::initializer_list<std::int32_t> objects) const {
    StoreEntry entry{.key = test_hash(name), .tenant = "t", .name = name};
    for (const std::int32_t index : objects) {
      entry.parts.push_back({.object = object_hash(index), .tokens = 4});
    }
    return entry;
  }

  void put(Store& store, const std::string& name, std::initializer_list<std::int32_t> objects) {
    for (const std::int32_t index : objects) {
      const auto bytes = put_object(store, index);
      ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    }
    const Status status = store.entries().put(entry_of(name, objects));
    ASSERT_TRUE(status.ok()) << status.error().message;
    ahead_ms_ += 1000;  // so that the order of use is known
  }

  std::filesystem::path object_path(std::int32_t index) const {
    const std::string hash = object_hash(index);
    return path_ / "objects" / hash.substr(0, 2) / (hash + ".qkv");
  }

  // Expects that everything that the entry names reads back as it is in the pool.
  void expect_whole(const Store& store, const StoreEntry& entry) {
    for (const ObjectRange& part : entry.parts) {
      const auto file = store.objects().open(part.object);
      ASSERT_TRUE(file.ok()) << file.error().message;
      const std::int32_t index = file->content().runs[0].tokens[0] / 100;
      PagedPool to = random_pool(small_geometry(), 1, 5);
      ASSERT_TRUE(read_run(*file, 0, ids({0}), to).ok());
      EXPECT_EQ(pool_bytes(to, ids({0})), pool_bytes(pool_, ids({index})));
    }
  }

  void execute_sql(const std::string& sql) {
    sqlite3* connection = nullptr;
    ASSERT_EQ(sqlite3_open((path_ / "index.sqlite").c_str(), &connection), SQLITE_OK);
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(connection, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
    sqlite3_close(connection);
  }

  TemporaryFolder folder_;
  PagedPool pool_;
  std::filesystem::path path_;
  std::atomic<std::int64_t> ahead_ms_ = 0;
};

}  // namespace quire::kv_store
