// Tests faults in the index of a store. It says what was put, or a miss, or a typed error. The
// objects stay whatever happens to it. The kinds are counted, beside those of store_fault_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "quire/base/test_length.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/store_repair.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

const int kShare = base::test_length(1, 10);  // one fault in so many is injected
constexpr std::size_t kPage = 4096, kSector = 512;
constexpr int kEntries = 40, kObjects = 8;

using Bytes = std::vector<char>;

bool is_typed(const Error& error) {
  constexpr std::array kTyped = {ErrorCode::kCorrupt, ErrorCode::kNotFound, ErrorCode::kIo,
                                 ErrorCode::kUnsupported, ErrorCode::kInvalidArgument};
  return std::ranges::find(kTyped, error.code) != kTyped.end();
}

// Compares entries without the time of their use, and without how long they are kept.
bool same_entry(const StoreEntry& a, const StoreEntry& b) {
  return a.key == b.key && a.tenant == b.tenant && a.kind == b.kind && a.name == b.name &&
         a.metadata_json == b.metadata_json && a.parts == b.parts && a.tokens == b.tokens &&
         a.bytes == b.bytes && a.created_ms == b.created_ms;
}

class IndexFaults : public StoreTest {
 protected:
  IndexFaults() {
    Store store = open();
    for (int i = 0; i < kEntries; ++i) {
      const std::string name = "entry " + std::to_string(i);
      put(store, name, {i % kObjects, (i + 3) % kObjects});
      saved_.emplace(name, store.entries().get(test_hash(name), "t").value());
      if (i == kEntries / 2) {
        // The log is what came behind that.
        execute_sql("PRAGMA wal_checkpoint(TRUNCATE)");
      }
    }
    for (const char* file : kFiles) {
      files_.emplace(file, file_bytes_of(path_ / file));
    }
  }

  // Injects `count` faults into the index, or its log, as a power cut could leave the two.
  using Damage = std::function<void(Bytes& bytes, std::size_t round)>;
  void inject(const std::string& kind, const char* file, int count, const Damage& damage) {
    for (int round = 0; round < count / kShare; ++round) {
      std::map<std::string, Bytes> files = files_;
      damage(files[file], static_cast<std::size_t>(round * kShare));
      lay(files);
      expect_nothing_else();
      ++injected_[kind + ", " + file];
      if (HasFailure()) {
        FAIL() << kind << " of " << file << ", fault " << round;
      }
    }
  }

  void damage_file(const char* file) {
    inject("flipped bit", file, 900, [&](Bytes& bytes, auto) { flip(bytes, 0, bytes.size()); });
    inject("flipped bit of a page's head", file, 200, [&](Bytes& bytes, auto) {
      flip(bytes, random_() % (bytes.size() / kPage) * kPage, 120);
    });
    inject("truncated", file, 150, [&](Bytes& bytes, std::size_t round) {
      bytes.resize(round == 0 ? bytes.size() - 1 : random_() % bytes.size());
    });
    inject("a sector never arrived", file, 150, [&](Bytes& bytes, auto) {
      const auto sector = piece(bytes, kSector);
      std::fill(sector, sector + kSector, '\0');
    });
    inject("torn: garbage from a sector on", file, 100, [&](Bytes& bytes, auto) {
      std::generate(piece(bytes, kSector), bytes.end(),
                    [&] { return static_cast<char>(random_()); });
    });
    inject("reordered: two pages in each other's place", file, 100, [&](Bytes& bytes, auto) {
      const auto page = piece(bytes, kPage);
      std::swap_ranges(page, page + kPage, piece(bytes, kPage));
    });
  }

  void restore() { lay(files_); }

  [[nodiscard]] const std::map<std::string, int>& injected() const { return injected_; }
  [[nodiscard]] int noticed() const { return noticed_; }

  static constexpr const char* kIndex = "index.sqlite";
  static constexpr const char* kLog = "index.sqlite-wal";
  static constexpr std::array kFiles = {kIndex, kLog};

 private:
  void lay(const std::map<std::string, Bytes>& files) {
    std::filesystem::remove(path_ / "index.sqlite-shm");
    std::filesystem::remove_all(path_ / "index.sqlite.damaged");
    for (const auto& [name, bytes] : files) {
      write_bytes(path_ / name, bytes);
    }
  }

  void expect_saved(const StoreEntry& entry) {
    const auto found = saved_.find(entry.name);
    ASSERT_NE(found, saved_.end()) << entry.name;
    EXPECT_TRUE(same_entry(entry, found->second)) << entry.name;
  }

  // By list and by key, before and after repair.
  void expect_nothing_else() {
    bool whole = false;
    {
      const auto store = Store::open(path_, {.create = false, .write = {.sync = false}});
      if (store.ok()) {
        whole = look_through(*store);
      } else {
        EXPECT_TRUE(is_typed(store.error())) << store.error().message;
      }
    }
    if (whole) {
      return;
    }
    ++noticed_;
    const auto kept = repair_store(path_);
    if (!kept.ok()) {
      EXPECT_TRUE(is_typed(kept.error())) << kept.error().message;
      return;
    }
    const auto store = Store::open(path_);
    ASSERT_TRUE(store.ok()) << store.error().message;
    const auto entries = store->entries().list();
    ASSERT_TRUE(entries.ok()) << entries.error().message;
    EXPECT_EQ(std::ssize(*entries), *kept);
    std::ranges::for_each(*entries, [&](const StoreEntry& entry) { expect_saved(entry); });
    for (int i = 0; i < kObjects; ++i) {
      EXPECT_TRUE(store->objects().is_there(object_hash(i))) << "repair took an object";
    }
  }

  // Returns whether everything is there.
  bool look_through(const Store& store) {
    int there = 0;
    if (const auto entries = store.entries().list(); entries.ok()) {
      std::ranges::for_each(*entries, [&](const StoreEntry& entry) { expect_saved(entry); });
      there += static_cast<int>(std::ssize(*entries));
    } else {
      EXPECT_TRUE(is_typed(entries.error())) << entries.error().message;
    }
    for (const auto& [name, entry] : saved_) {
      const auto found = store.entries().find(entry.key, entry.tenant);
      if (!found.ok()) {
        EXPECT_TRUE(is_typed(found.error())) << found.error().message;
      } else if (found->has_value()) {
        EXPECT_TRUE(same_entry(**found, entry)) << name;
        ++there;
      }
    }
    return there == 2 * kEntries;
  }

  void flip(Bytes& bytes, std::size_t first, std::size_t among) {
    bytes[first + random_() % among] ^= static_cast<char>(1 << random_() % 8);
  }
  Bytes::iterator piece(Bytes& bytes, std::size_t size) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(random_() % (bytes.size() / size) * size);
  }

  std::map<std::string, StoreEntry> saved_;  // by name
  std::map<std::string, Bytes> files_;
  std::map<std::string, int> injected_;
  int noticed_ = 0;
  std::mt19937_64 random_{91};
};

TEST_F(IndexFaults, ThreeThousandOfThemGiveNoEntryThatWasNotPutAndCostNoObject) {
  for (const char* file : kFiles) {
    ASSERT_NO_FATAL_FAILURE(damage_file(file));
  }
  int all = 0;
  for (const auto& [kind, count] : injected()) {
    RecordProperty(kind, count);
    all += count;
  }
  EXPECT_EQ(injected().size(), 12U);
  EXPECT_GE(all, 3000 / kShare);
  EXPECT_GT(noticed(), all / 3);  // others hit room that is not in use
}

// Rows with this structure and other content: SQLite cannot see them.
TEST_F(IndexFaults, RowsThatWereChangedBesideTheStoreArePassedOverAndReported) {
  const char* const changes[] = {
      "UPDATE entries SET name = 'entry 1' WHERE name = 'entry 7'",
      "UPDATE entries SET metadata = '{\"a\":1}' WHERE name = 'entry 7'",
      "UPDATE entries SET tokens = tokens - 1 WHERE name = 'entry 7'",
      "UPDATE entries SET created_ms = created_ms + 1 WHERE name = 'entry 7'",
      "UPDATE entries SET tenant = 'other' WHERE name = 'entry 7'",
      "UPDATE parts SET first_token = 1, tokens = 3 WHERE entry = 8 AND place = 0",
      "UPDATE parts SET place = place + 5 WHERE entry = 8 AND place = 0",
      "DELETE FROM parts WHERE entry = 8 AND place = 1",
      "UPDATE checksums SET value = value + 1 WHERE entry = 8",
      "DELETE FROM checksums WHERE entry = 8; DELETE FROM parts WHERE entry = 8 AND place = 1",
      "UPDATE entries SET id = 1000 WHERE id = 8"};
  for (const char* sql : changes) {
    SCOPED_TRACE(sql);
    restore();
    ASSERT_TRUE(open().entries().list().ok());
    execute_sql(sql);
    Store store = open();
    EXPECT_EQ(store.entries().list().value().size(), static_cast<std::size_t>(kEntries - 1));
    EXPECT_FALSE(store.entries().find(test_hash("entry 7"), "t").value());
    const std::vector<ObjectReport> reports = store.inspector().verify().value();
    EXPECT_EQ(std::ranges::count(reports, ObjectReport::State::kDamaged, &ObjectReport::state), 1);
    EXPECT_TRUE(store.collector().gc().ok());
    EXPECT_TRUE(store.objects().is_there(object_hash(7)));
  }
}

TEST_F(IndexFaults, HowLongAnEntryIsKeptMayChangeBesideItsChecksum) {
  Store store = open();
  const std::string key = test_hash("entry 7");
  ASSERT_TRUE(store.entries().pin(key, "t", true).ok());
  ASSERT_TRUE(store.entries().touch(key, "t").ok());
  ASSERT_TRUE(store.entries().set_ttl(key, "t", 60'000).ok());
  EXPECT_TRUE(store.entries().get(key, "t").value().pinned);
}

TEST_F(IndexFaults, AnIndexOfVersionOneIsReadAndGetsChecksumsWhereItMayBeWritten) {
  {
    Store store = open();
  }  // takes the log over
  execute_sql("DROP TABLE checksums; PRAGMA user_version = 1");
  {
    const auto reader = Store::open(path_, {.read_only = true});
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ(reader->entries().list().value().size(), static_cast<std::size_t>(kEntries));
  }
  {
    Store writer = open();
    EXPECT_EQ(writer.entries().list().value().size(), static_cast<std::size_t>(kEntries));
  }
  execute_sql("UPDATE entries SET name = 'entry 1' WHERE name = 'entry 7'");
  EXPECT_FALSE(open().entries().has(test_hash("entry 7"), "t").value());
}

}  // namespace
}  // namespace quire::kv_store
