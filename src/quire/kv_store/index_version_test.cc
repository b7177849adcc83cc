// An index of version 1, from before checksums: becoming one of this version, damaged, and in use
// by builds of both versions at a time.
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/store_repair.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// Three entries, "a", "b" and "c", that a build from before checksums has put.
class OldIndex : public StoreTest {
 protected:
  OldIndex() {
    {
      Store store = open();
      put(store, "a", {0, 1});
      put(store, "b", {1});
      put(store, "c", {2});
    }
    execute_sql("DROP TABLE checksums; PRAGMA user_version = 1");
  }

  Store read() {
    auto store = Store::open(path_, {.read_only = true});
    EXPECT_TRUE(store.ok()) << store.error().message;
    return std::move(store).value();
  }
};

// A process of such a build that has the index open.
class OldProcess {
 public:
  explicit OldProcess(const std::filesystem::path& index) {
    EXPECT_EQ(sqlite3_open(index.c_str(), &connection_), SQLITE_OK);
    EXPECT_EQ(run("PRAGMA foreign_keys = ON; SELECT count(*) FROM entries"), "");
  }
  ~OldProcess() { sqlite3_close(connection_); }
  OldProcess(const OldProcess&) = delete;
  OldProcess& operator=(const OldProcess&) = delete;

  // Returns the error, or "".
  std::string run(const std::string& sql) {
    char* error = nullptr;
    sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, &error);
    std::string message = error == nullptr ? "" : error;
    sqlite3_free(error);
    return message;
  }

  // Puts an entry of one object of 4 tokens as such a build does.
  std::string put(const std::string& name, const std::string& object) {
    const std::string key = "'" + test_hash(name) + "'";
    return run("BEGIN IMMEDIATE; DELETE FROM entries WHERE key = " + key +
               " AND tenant = 't'; INSERT INTO entries(key, tenant, kind, name, metadata, tokens, "
               "bytes, created_ms, accessed_ms, expires_ms, pinned) VALUES(" +
               key + ", 't', 'chunk', '" + name +
               "', '{}', 4, 1000, 5, 5, 0, 0); INSERT INTO parts SELECT id, 0, '" + object +
               "', 0, 4 FROM entries WHERE key = " + key + "; COMMIT");
  }

 private:
  sqlite3* connection_ = nullptr;
};

TEST_F(OldIndex, WhatAnOlderBuildThatHasItOpenWritesIsRead) {
  OldProcess old(path_ / "index.sqlite");
  Store store = open();  // makes it one of this version
  EXPECT_EQ(old.put("a", object_hash(2)), "") << "in place of one that has a checksum";
  EXPECT_EQ(old.put("d", object_hash(1)), "");
  EXPECT_EQ(old.run("UPDATE entries SET accessed_ms = 7 WHERE name = 'b'"), "");
  EXPECT_EQ(old.run("DELETE FROM entries WHERE name = 'c'"), "");
  EXPECT_EQ(names_of(*store.entries().list()), "a d b ");
  for (const std::string name : {"a", "b", "d"}) {
    expect_whole(store, store.entries().get(test_hash(name), "t").value());
  }
  EXPECT_TRUE(store.entries().touch(test_hash("d"), "t").ok());
  EXPECT_TRUE(store.collector().gc().ok());
  put(store, "a", {3});
  EXPECT_EQ(old.run("UPDATE entries SET name = 'x' WHERE name = 'a'"), "");
  EXPECT_EQ(names_of(*store.entries().list()), "b d ") << "what has a checksum is compared";
  EXPECT_EQ(*repair_store(path_), 2);
  EXPECT_EQ(names_of(*open().entries().list()), "b d ");
}

TEST_F(OldIndex, ProcessesThatConvertItAtTheSameTimeAllRead) {
  std::vector<std::jthread> processes;
  for (int i = 0; i < 4; ++i) {
    processes.emplace_back([&] { EXPECT_EQ(names_of(*open().entries().list()), "a b c "); });
  }
}

// Damage of what a row says; SQLite sees none.
TEST_F(OldIndex, ADamagedRowIsPassedOverAndCostsNoOther) {
  const char* const damages[] = {"UPDATE entries SET kind = 'chunx' WHERE name = 'b'",
                                 "UPDATE entries SET metadata = '{' WHERE name = 'b'",
                                 "UPDATE entries SET tokens = 5 WHERE name = 'b'",
                                 "UPDATE entries SET expires_ms = -4 WHERE name = 'b'",
                                 "DELETE FROM parts WHERE entry = 2",
                                 "UPDATE parts SET object = 'x' WHERE entry = 2",
                                 "UPDATE entries SET id = 77 WHERE name = 'b'"};
  const auto index = path_ / "index.sqlite";
  const std::vector<char> good = file_bytes_of(index);
  for (const char* sql : damages) {
    SCOPED_TRACE(sql);
    std::filesystem::remove(path_ / "index.sqlite-wal");
    std::filesystem::remove(path_ / "index.sqlite-shm");
    write_bytes(index, good);
    execute_sql(sql);
    EXPECT_EQ(names_of(*read().entries().list()), "a c ");
    {
      Store store = open();
      EXPECT_EQ(names_of(*store.entries().list()), "a c ");
      expect_whole(store, store.entries().get(test_hash("a"), "t").value());
      EXPECT_FALSE(store.entries().find(test_hash("b"), "t").value());
      EXPECT_TRUE(store.entries().pin(test_hash("c"), "t", true).ok());
    }
    EXPECT_EQ(*repair_store(path_), 2);
    EXPECT_EQ(names_of(*open().entries().list()), "a c ");
    for (std::int32_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(open().objects().is_there(object_hash(i))) << "repair took an object";
    }
  }
}

}  // namespace
}  // namespace quire::kv_store
