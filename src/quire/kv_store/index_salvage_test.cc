// Repair keeps all that it can of an index whose pages are damaged one by one. The oracle: SQLite,
// which says of the whole index on which pages the rows of each entry lie.
#include "quire/kv_store/index_salvage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/test_length.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/store_repair.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::size_t kIndexPage = 4096;
constexpr int kManyEntries = 60;

// A store of entries that say little, more than a page, and nothing; put, replaced and removed.
class DamagedIndex : public StoreTest {
 protected:
  DamagedIndex() {
    {
      Store store = open();
      for (int i = 0; i < kManyEntries; ++i) {
        EXPECT_TRUE(put_object(store, i % 8).ok() && put_object(store, (i + 3) % 8).ok());
        StoreEntry entry = entry_of(std::to_string(i), {i % 8, (i + 3) % 8, i % 8});
        const std::size_t said = i % 7 == 0 ? 9000 : static_cast<std::size_t>(i) * 5;
        entry.metadata_json = R"({"text":")" + std::string(said, 'x') + "\"}";
        if (i % 11 == 0) {
          entry.parts.clear();
        }
        EXPECT_TRUE(store.entries().put(entry).ok());
        if (i % 10 == 9) {
          EXPECT_TRUE(store.entries().put(entry).ok());
          EXPECT_TRUE(store.remover().remove(test_hash(std::to_string(i - 1)), "t").ok());
        }
      }
      for (const StoreEntry& entry : store.entries().list().value()) {
        saved_.emplace(entry.key, entry);
      }
    }  // takes the log over
    index_ = file_bytes_of(path_ / "index.sqlite");
    find_rows();
  }

  // Lays the index with some bytes changed, and checks what repair's reading gives. That is no
  // entry that was not put, and each whose rows lie on other pages. `page`: the damaged one, from
  // 1.
  void expect_rest(const std::vector<char>& bytes, std::size_t page) {
    std::filesystem::remove(path_ / "index.sqlite-wal");
    write_bytes(path_ / "index.sqlite", bytes);
    const Folder folder = Folder::open(path_).value();
    const auto salvage = salvage_index(folder, true);
    ASSERT_TRUE(salvage.ok()) << salvage.error().message;
    std::set<std::string> kept;
    for (const StoreEntry& entry : salvage->entries) {
      const auto saved = saved_.find(entry.key);
      ASSERT_NE(saved, saved_.end()) << entry.name;
      const StoreEntry& put = saved->second;
      EXPECT_EQ(entry_checksum(entry), entry_checksum(put)) << entry.name;
      kept.insert(entry.key);
    }
    for (const auto& [key, pages] : pages_of_) {
      if (!pages.contains(page)) {
        EXPECT_TRUE(kept.contains(key)) << saved_.at(key).name;
      }
    }
    if (kept.size() < saved_.size()) {
      EXPECT_FALSE(salvage->complete);
    }
    missed_ += static_cast<int>(saved_.size() - kept.size());
  }

  std::map<std::string, StoreEntry> saved_;  // by key
  std::vector<char> index_;
  int missed_ = 0;

 private:
  // Which pages hold rows of which entry, by the cells that dbstat counts on leaves.
  void find_rows() {
    sqlite3* connection = nullptr;
    ASSERT_EQ(sqlite3_open((path_ / "index.sqlite").c_str(), &connection), SQLITE_OK);
    std::map<std::int64_t, std::string> keys;
    each(connection, "SELECT id, key FROM entries", [&](sqlite3_stmt* row) {
      keys[sqlite3_column_int64(row, 0)] =
          reinterpret_cast<const char*>(sqlite3_column_text(row, 1));
    });
    for (const std::string table : {"entries", "parts", "checksums"}) {
      std::vector<std::int64_t> ids;  // of the rows in the order of the table
      const std::string id = table == "entries" ? "id" : "entry";
      const std::string order = table == "parts" ? "entry, place" : id;
      each(connection, "SELECT " + id + " FROM " + table + " ORDER BY " + order,
           [&](sqlite3_stmt* row) { ids.push_back(sqlite3_column_int64(row, 0)); });
      place_rows(connection, table, ids, keys);
    }
    sqlite3_close(connection);
  }

  // A walk through the tree in order meets the rows in order. The path says where a page stands.
  void place_rows(sqlite3* connection, const std::string& table,
                  const std::vector<std::int64_t>& ids,
                  const std::map<std::int64_t, std::string>& keys) {
    std::size_t next = 0;
    std::set<std::size_t> overflow;
    std::map<std::string, std::set<std::size_t>> over;  // by the page that they belong to
    std::vector<std::pair<std::size_t, int>> leaves;
    each(connection,
         "SELECT path, pageno, pagetype, ncell FROM dbstat WHERE name = '" + table +
             "' ORDER BY path",
         [&](sqlite3_stmt* row) {
           const std::string path = reinterpret_cast<const char*>(sqlite3_column_text(row, 0));
           const auto page = static_cast<std::size_t>(sqlite3_column_int64(row, 1));
           const std::string type = reinterpret_cast<const char*>(sqlite3_column_text(row, 2));
           if (type == "overflow") {
             overflow.insert(page);
           } else if (type == "leaf") {
             leaves.emplace_back(page, sqlite3_column_int(row, 3));
           } else {
             ++nodes_;
           }
         });
    // Where a row of a table without ids may stand above the leaves, or more of one elsewhere, all
    // those pages count as its own. Damage there may cost it, and need not.
    std::set<std::size_t> shared = overflow;
    if (table == "parts") {
      each(connection, "SELECT pageno FROM dbstat WHERE name = 'parts' AND pagetype = 'internal'",
           [&](sqlite3_stmt* row) {
             shared.insert(static_cast<std::size_t>(sqlite3_column_int64(row, 0)));
           });
    }
    const std::size_t on_leaves = [&] {
      std::size_t cells = 0;
      for (const auto& [page, count] : leaves) {
        cells += static_cast<std::size_t>(count);
      }
      return cells;
    }();
    const bool above = on_leaves != ids.size();  // one row between each two leaves
    for (const auto& [page, count] : leaves) {
      for (int i = 0; i < count && next < ids.size(); ++i) {
        add(keys.at(ids[next++]), page, shared);
      }
      if (above && next < ids.size()) {
        add(keys.at(ids[next++]), page, shared);
      }
    }
    EXPECT_EQ(next, ids.size()) << table;
  }

  void add(const std::string& key, std::size_t page, const std::set<std::size_t>& shared) {
    pages_of_[key].insert(page);
    pages_of_[key].insert(shared.begin(), shared.end());
  }

  static void each(sqlite3* connection, const std::string& sql,
                   const std::function<void(sqlite3_stmt*)>& visit) {
    sqlite3_stmt* rows = nullptr;
    ASSERT_EQ(sqlite3_prepare_v2(connection, sql.c_str(), -1, &rows, nullptr), SQLITE_OK)
        << sqlite3_errmsg(connection);
    while (sqlite3_step(rows) == SQLITE_ROW) {
      visit(rows);
    }
    sqlite3_finalize(rows);
  }

 protected:
  std::map<std::string, std::set<std::size_t>> pages_of_;  // by key
  int nodes_ = 0;                                          // pages above the leaves
};

TEST_F(DamagedIndex, OfWhichNothingIsDamagedIsReadWhole) {
  expect_rest(index_, 0);
  EXPECT_EQ(missed_, 0);
  EXPECT_TRUE(salvage_index(Folder::open(path_).value(), false)->complete);
  EXPECT_GT(nodes_, 1) << "the entries want a page above their leaves";
}

TEST_F(DamagedIndex, CostsNoEntryWhicheverBitOfTheHeaderIsFlipped) {
  const std::size_t step = base::test_length(std::size_t{1}, std::size_t{7});
  for (std::size_t bit = 0; bit < 800; bit += step) {
    std::vector<char> bytes = index_;
    bytes[bit / 8] ^= static_cast<char>(1U << bit % 8);
    ASSERT_NO_FATAL_FAILURE(expect_rest(bytes, 1));
    ASSERT_EQ(missed_, 0) << "bit " << bit;
    // Another number of pages, or a later version, says that there is more than can be read.
    const bool says_more = bit / 32 == 28 / 4 || bit / 32 == 60 / 4;
    EXPECT_TRUE(says_more || salvage_index(Folder::open(path_).value(), true)->complete) << bit;
  }
}

TEST_F(DamagedIndex, CostsNoEntryWhateverTheFirstPageHolds) {
  std::mt19937 random(5);
  const int rounds = base::test_length(200, 40);
  for (int round = 0; round < rounds; ++round) {
    std::vector<char> bytes = index_;
    const std::size_t flips = round % 4 == 0 ? kIndexPage : static_cast<std::size_t>(round) + 1;
    for (std::size_t i = 0; i < flips; ++i) {
      bytes[random() % kIndexPage] ^= static_cast<char>(1U << random() % 8);
    }
    ASSERT_NO_FATAL_FAILURE(expect_rest(bytes, 1));
    ASSERT_EQ(missed_, 0) << "round " << round;
  }
}

TEST_F(DamagedIndex, CostsNoEntryWhoseRowsLieOnOtherPages) {
  std::mt19937 random(6);
  const int rounds = base::test_length(200, 10);
  for (std::size_t page = 2; page <= index_.size() / kIndexPage; ++page) {
    for (int round = 0; round < rounds; ++round) {
      SCOPED_TRACE("page " + std::to_string(page) + ", round " + std::to_string(round));
      std::vector<char> bytes = index_;
      char* const at = bytes.data() + (page - 1) * kIndexPage;
      if (round == 0) {
        std::fill_n(at, kIndexPage, '\0');
      } else if (round == 1) {
        std::generate_n(at, kIndexPage, [&] { return static_cast<char>(random()); });
      } else {
        const std::size_t among = round % 2 == 0 ? kIndexPage : 40;  // the head of the page
        at[random() % among] ^= static_cast<char>(1U << random() % 8);
      }
      ASSERT_NO_FATAL_FAILURE(expect_rest(bytes, page));
      ASSERT_FALSE(HasFailure());
    }
  }
  EXPECT_GT(missed_, 0) << "the damage did reach rows";
}

TEST_F(DamagedIndex, CostsOnlyWhatIsCutOff) {
  for (std::size_t pages = 1; pages < index_.size() / kIndexPage; ++pages) {
    const std::vector<char> bytes(index_.begin(),
                                  index_.begin() + static_cast<std::ptrdiff_t>(pages * kIndexPage));
    write_bytes(path_ / "index.sqlite", bytes);
    const auto salvage = salvage_index(Folder::open(path_).value(), false);
    ASSERT_TRUE(salvage.ok());
    EXPECT_FALSE(salvage->complete) << pages;
    for (const StoreEntry& entry : salvage->entries) {
      EXPECT_TRUE(saved_.contains(entry.key));
    }
  }
}

// The log holds the last changes; a bit of its head or of one frame is flipped.
TEST_F(StoreTest, ADamagedLogCostsNoEntryButThoseOfTheFrameThatItIsIn) {
  Store store = open();
  put(store, "in the file", {0});
  execute_sql("PRAGMA wal_checkpoint(TRUNCATE)");
  put(store, "in the log", {1});
  put(store, "in the log too", {2});
  const std::vector<char> log = file_bytes_of(path_ / "index.sqlite-wal");
  ASSERT_GT(log.size(), 32U + 24U + kIndexPage);
  const TemporaryFolder copy;
  std::filesystem::copy(path_ / "index.sqlite", copy.path() / "index.sqlite");
  std::mt19937 random(7);
  for (std::size_t bit = 0; bit < 32 * 8; ++bit) {
    std::vector<char> bytes = log;
    bytes[bit / 8] ^= static_cast<char>(1U << bit % 8);
    write_bytes(copy.path() / "index.sqlite-wal", bytes);
    const auto salvage = salvage_index(Folder::open(copy.path()).value(), false);
    EXPECT_EQ(names_of(salvage->entries), "in the log too in the log in the file ") << bit;
  }
  for (int round = 0; round < 300; ++round) {
    std::vector<char> bytes = log;
    bytes[32 + random() % (bytes.size() - 32)] ^= static_cast<char>(1U << random() % 8);
    write_bytes(copy.path() / "index.sqlite-wal", bytes);
    const auto salvage = salvage_index(Folder::open(copy.path()).value(), false);
    EXPECT_THAT(names_of(salvage->entries), HasSubstr("in the file "));
  }
  // Frames that an earlier log has left behind this one are not part of it.
  std::vector<char> stale = log;
  stale[16] ^= 1;  // its number, and with it the sum
  stale[24] ^= 1;
  write_bytes(copy.path() / "index.sqlite-wal", stale);
  EXPECT_TRUE(salvage_index(Folder::open(copy.path()).value(), false).ok());
}

TEST_F(StoreTest, RepairThatCanKeepNothingLeavesTheIndexUnlessForced) {
  {
    Store store = open();
    put(store, "a", {0});
  }
  const std::vector<char> garbage(8000, 'g');
  write_bytes(path_ / "index.sqlite", garbage);
  const auto refused = repair_store(path_);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("index.sqlite"), HasSubstr("1 objects"), HasSubstr("--force")));
  EXPECT_EQ(file_bytes_of(path_ / "index.sqlite"), garbage);
  EXPECT_FALSE(std::filesystem::exists(path_ / ".tmp-repair"));
  EXPECT_EQ(repair_store(path_, true).value(), 0);
  EXPECT_EQ(file_bytes_of(path_ / "index.sqlite.damaged"), garbage);
}

TEST_F(StoreTest, AnEmptyStoreIsRepairedWithoutForce) {
  {
    open();
  }
  EXPECT_EQ(repair_store(path_).value(), 0);
  EXPECT_TRUE(open().entries().list().value().empty());
}

// Makes of the store one whose repair has lost "b", which named the objects 1 and 2.
class LostEntry : public StoreTest {
 protected:
  LostEntry() {
    {
      Store store = open();
      put(store, "a", {0, 1});
      put(store, "b", {1, 2});
      put(store, "c", {3});
    }
    execute_sql("UPDATE entries SET name = 'x' WHERE name = 'b'");
    EXPECT_EQ(repair_store(path_).value(), 2);
  }

  [[nodiscard]] bool all_there() {
    const Store store = open();
    return std::ranges::all_of(std::vector{0, 1, 2, 3}, [&](std::int32_t index) {
      return store.objects().is_there(object_hash(index));
    });
  }
};

TEST_F(LostEntry, KeepsItsObjectsFromGcUntilTheOldIndexIsDeleted) {
  ahead_ms_ += 3'600'000;
  {
    Store store = open({.max_bytes = 1, .grace_ms = 0});
    const GcReport report = store.collector().gc().value();
    EXPECT_EQ(report.removed_objects + report.evicted_entries, 0);
    EXPECT_EQ(report.kept_objects, 1) << "the other one is named by a too";
    EXPECT_THAT(report.kept_why, AllOf(HasSubstr("index.sqlite.damaged"), HasSubstr("delete it")));
    EXPECT_TRUE(store.entries().set_ttl(test_hash("a"), "t", 0).ok());
    EXPECT_EQ(store.collector().gc()->expired_entries, 1);
    EXPECT_TRUE(store.remover().remove(test_hash("c"), "t").value());
  }
  EXPECT_TRUE(all_there());
  std::filesystem::remove(path_ / "index.sqlite.damaged");
  const GcReport report = open({.grace_ms = 0}).collector().gc().value();
  EXPECT_EQ(report.removed_objects, 4);
  EXPECT_EQ(report.kept_objects, 0);
  EXPECT_EQ(report.kept_why, "");
}

TEST_F(LostEntry, StaysSafeWhenTheStoreIsRepairedAgain) {
  const std::vector<char> first = file_bytes_of(path_ / "index.sqlite.damaged");
  EXPECT_EQ(repair_store(path_).value(), 2);
  execute_sql("UPDATE entries SET name = 'x' WHERE name = 'c'");
  EXPECT_EQ(repair_store(path_).value(), 1);
  EXPECT_EQ(repair_store(path_).value(), 1);
  EXPECT_EQ(file_bytes_of(path_ / "index.sqlite.damaged"), first);
  ahead_ms_ += 3'600'000;
  EXPECT_EQ(open({.grace_ms = 0}).collector().gc()->removed_objects, 0);
  EXPECT_TRUE(all_there());
}

TEST_F(LostEntry, IsWipedAllTheSame) {
  Store store = open();
  EXPECT_TRUE(store.remover().remove(test_hash("a"), "t", true).value());
  EXPECT_FALSE(store.objects().is_there(object_hash(0)));
}

}  // namespace
}  // namespace quire::kv_store
