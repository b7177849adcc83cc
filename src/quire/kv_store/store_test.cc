#include "quire/kv_store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/sha256.h"
#include "quire/kv_store/entry.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_store.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string names_of(const std::vector<Entry>& entries) {
  std::string names;
  for (const Entry& entry : entries) {
    names += entry.name + " ";
  }
  return names;
}

// A store in a folder of its own, and KV to put into it. The clock is the system's plus `ahead_ms`.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest()
      : shelves_(random_shelves(small_geometry(), 8, 31)), path_(folder_.path() / "store") {}

  // What a loss of power would do is not tested here, so nothing waits for the disk.
  Store open(StoreOptions options = {}) {
    options.write.sync = false;
    options.now_ms = [this] { return system_now_ms() + ahead_ms_; };
    auto store = Store::open(path_, std::move(options));
    EXPECT_TRUE(store.ok()) << store.error().message;
    return std::move(store).value();
  }

  KVFileContent content_of(int tokens, int first_id = 7) const {
    return {.fingerprint = fingerprint_of(1),
            .geometry = shelves_.geometry(),
            .runs = {run_of(tokens, 0, first_id)}};
  }

  // The object of 4 tokens in block `index`.
  Result<std::int64_t> put_object(Store& store, std::int32_t index) {
    return store.put_object(object_hash(index), content_of(4, 100 * index), shelves_,
                            {{{BlockId{index}}}});
  }

  Entry entry_of(const std::string& name, std::initializer_list<std::int32_t> objects) const {
    Entry entry{.key = test_hash(name), .tenant = "t", .name = name};
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
    const Status status = store.put_entry(entry_of(name, objects));
    ASSERT_TRUE(status.ok()) << status.error().message;
    ahead_ms_ += 1000;  // so that the order of use is known
  }

  std::filesystem::path object_path(std::int32_t index) const {
    const std::string hash = object_hash(index);
    return path_ / "objects" / hash.substr(0, 2) / (hash + ".qkv");
  }

  // Everything that the entry names reads back as it is on the shelves.
  void expect_whole(const Store& store, const Entry& entry) {
    for (const EntryPart& part : entry.parts) {
      const auto file = store.open_object(part.object);
      ASSERT_TRUE(file.ok()) << file.error().message;
      const std::int32_t index = file->content().runs[0].tokens[0] / 100;
      PagedStore to = random_shelves(small_geometry(), 1, 5);
      ASSERT_TRUE(read_run(*file, 0, ids({0}), to).ok());
      EXPECT_EQ(shelf_bytes(to, ids({0})), shelf_bytes(shelves_, ids({index})));
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
  PagedStore shelves_;
  std::filesystem::path path_;
  std::int64_t ahead_ms_ = 0;
};

TEST_F(StoreTest, ARestartFindsItsEntriesAndTheirKV) {
  {
    Store store = open();
    put(store, "a", {0, 1, 0});
    Entry pinned = entry_of("b", {1});
    pinned.kind = EntryKind::kChunk;
    pinned.pinned = true;
    pinned.metadata_json = R"({"é":[1]})";
    ASSERT_TRUE(store.put_entry(pinned).ok());
  }
  const Store store = open();
  const auto a = store.find(test_hash("a"), "t");
  ASSERT_TRUE(a.ok() && a->has_value());
  EXPECT_EQ((*a)->parts, entry_of("a", {0, 1, 0}).parts);
  EXPECT_EQ((*a)->tokens, 12);
  EXPECT_EQ((*a)->bytes, static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)) +
                                                   std::filesystem::file_size(object_path(1))));
  EXPECT_GT((*a)->created_ms, 0);
  expect_whole(store, **a);
  const auto b = store.find(test_hash("b"), "t");
  ASSERT_TRUE(b.ok() && b->has_value());
  EXPECT_EQ((*b)->metadata_json, R"({"é":[1]})");
  EXPECT_TRUE((*b)->pinned);
  EXPECT_EQ(names_of(*store.list()), "a b ");
  EXPECT_EQ(names_of(*store.list({.kind = EntryKind::kChunk})), "b ");
  EXPECT_EQ(names_of(*store.list({.tenant = "other"})), "");
}

TEST_F(StoreTest, EqualKVIsWrittenOnceAndOtherKVUnderItsNameIsRefused) {
  Store store = open();
  EXPECT_GT(*put_object(store, 0), 0);
  EXPECT_EQ(*put_object(store, 0), 0);
  Store other = open();
  EXPECT_EQ(*put_object(other, 0), 0) << "verified, for this one has not written it";
  const auto clash = store.put_object(object_hash(0), content_of(4, 999), shelves_, {{ids({0})}});
  ASSERT_FALSE(clash.ok());
  EXPECT_THAT(clash.error().message, HasSubstr("holds other tokens"));
  EXPECT_EQ(store.put_object("../../x", content_of(4), shelves_, {{ids({0})}}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST_F(StoreTest, ADamagedObjectIsAnErrorThatNamesItAndIsMendedByPuttingItAgain) {
  Store store = open();
  put(store, "a", {0, 1});
  std::vector<char> bytes = file_bytes_of(object_path(0));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(object_path(0), bytes);
  EXPECT_THAT(store.open_object(object_hash(0))->verify().error().message,
              HasSubstr(object_hash(0)));
  std::filesystem::remove(object_path(1));
  EXPECT_EQ(store.open_object(object_hash(1)).error().code, ErrorCode::kNotFound);
  const auto reports = store.verify();
  ASSERT_TRUE(reports.ok());
  ASSERT_EQ(reports->size(), 2U);
  for (const ObjectReport& report : *reports) {
    EXPECT_EQ(report.state, report.hash == object_hash(0) ? ObjectReport::State::kDamaged
                                                          : ObjectReport::State::kMissing);
    EXPECT_EQ(report.entries, 1);
    EXPECT_THAT(report.message, HasSubstr(report.hash));
  }
  EXPECT_GT(*put_object(store, 0), 0);
  EXPECT_GT(*put_object(store, 1), 0);
  expect_whole(store, **store.find(test_hash("a"), "t"));
}

TEST_F(StoreTest, AnObjectUnderAnothersNameIsRefused) {
  Store store = open();
  put(store, "a", {0, 1});
  std::filesystem::copy_file(object_path(0), object_path(1),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(store.open_object(object_hash(1)).error().message, HasSubstr("another object"));
}

TEST_F(StoreTest, LinksInsideAreNotFollowed) {
  Store store = open();
  put(store, "a", {0, 1});
  const auto elsewhere = folder_.path() / "elsewhere.qkv";
  std::filesystem::rename(object_path(0), elsewhere);
  std::filesystem::create_symlink(elsewhere, object_path(0));
  EXPECT_EQ(store.open_object(object_hash(0)).error().code, ErrorCode::kIo);
  const auto outside = folder_.path() / "outside";
  std::filesystem::rename(object_path(1).parent_path(), outside);
  std::filesystem::create_directory_symlink(outside, object_path(1).parent_path());
  EXPECT_EQ(store.open_object(object_hash(1)).error().code, ErrorCode::kIo);
  EXPECT_FALSE(put_object(store, 1).ok());
  EXPECT_TRUE(store.gc().ok());
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
  EXPECT_FALSE(std::filesystem::is_empty(outside));
}

TEST_F(StoreTest, AnEntryNeedsItsObjectsAndReplacesTheOldOneWhole) {
  Store store = open();
  const Status missing = store.put_entry(entry_of("a", {0}));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr(object_hash(0).substr(0, 2)));
  put(store, "a", {0, 1, 2});
  EXPECT_FALSE(store.put_entry(entry_of("a", {0, 3})).ok());
  EXPECT_EQ((*store.find(test_hash("a"), "t"))->parts.size(), 3U);
  put(store, "a", {0, 3});
  EXPECT_EQ((*store.find(test_hash("a"), "t"))->parts, entry_of("a", {0, 3}).parts);
  EXPECT_EQ(store.list()->size(), 1U);
}

TEST_F(StoreTest, APartBeyondItsObjectIsRefused) {
  Store store = open();
  put(store, "a", {0});
  for (const auto& [first, tokens] : {std::pair(0, 5), {4, 1}, {1, 4}}) {
    for (const bool fresh : {false, true}) {
      Entry entry = entry_of("a", {0});
      entry.parts[0].first_token = first;
      entry.parts[0].tokens = tokens;
      Store other = open();
      const Status refused = (fresh ? other : store).put_entry(entry);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(refused.error().message, HasSubstr("which has 4"));
    }
  }
  Entry part = entry_of("b", {0});
  part.parts[0].first_token = 1;
  part.parts[0].tokens = 3;
  EXPECT_TRUE(store.put_entry(part).ok());
}

TEST_F(StoreTest, TenantsDoNotSeeEachOther) {
  Store store = open();
  put(store, "a", {0});
  EXPECT_FALSE(store.find(test_hash("a"), "u")->has_value());
  EXPECT_FALSE(store.find(test_hash("a"), "")->has_value());
  EXPECT_FALSE(*store.remove(test_hash("a"), "u"));
  EXPECT_EQ(store.pin(test_hash("a"), "u", true).error().code, ErrorCode::kNotFound);
  Entry same = entry_of("a", {0});
  same.tenant = "u";
  ASSERT_TRUE(store.put_entry(same).ok());
  EXPECT_EQ(names_of(*store.list({.tenant = "u"})), "a ");
  EXPECT_TRUE(*store.remove(test_hash("a"), "u"));
  EXPECT_TRUE(store.find(test_hash("a"), "t")->has_value());
  EXPECT_TRUE(std::filesystem::exists(object_path(0))) << "the other tenant's entry names it";
}

TEST_F(StoreTest, RemovingTakesTheObjectsThatNoOtherEntryNames) {
  Store store = open();
  put(store, "a", {0, 1});
  put(store, "b", {1, 2});
  EXPECT_TRUE(*store.remove(test_hash("a"), "t", true));
  EXPECT_FALSE(*store.remove(test_hash("a"), "t"));
  EXPECT_FALSE(std::filesystem::exists(object_path(0)));
  EXPECT_TRUE(std::filesystem::exists(object_path(1)));
  expect_whole(store, **store.find(test_hash("b"), "t"));
}

TEST_F(StoreTest, WipingOverwritesTheBytesBeforeTheNameGoes) {
  Store store = open();
  put(store, "a", {0});
  std::filesystem::create_hard_link(object_path(0), folder_.path() / "seen");
  EXPECT_TRUE(*store.remove(test_hash("a"), "t", true));
  const std::vector<char> bytes = file_bytes_of(folder_.path() / "seen");
  EXPECT_FALSE(bytes.empty());
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; }));
}

TEST_F(StoreTest, ExpiredEntriesAreGoneUnlessPinned) {
  Store store = open();
  put(store, "a", {0});
  put(store, "b", {1});
  ASSERT_TRUE(store.set_ttl(test_hash("a"), "t", 5000).ok());
  ASSERT_TRUE(store.set_ttl(test_hash("b"), "t", 5000).ok());
  ASSERT_TRUE(store.pin(test_hash("b"), "t", true).ok());
  EXPECT_EQ(store.set_ttl(test_hash("a"), "t", -1).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(store.find(test_hash("a"), "t")->has_value());
  ahead_ms_ += 6000;
  EXPECT_FALSE(store.find(test_hash("a"), "t")->has_value());
  EXPECT_EQ(names_of(*store.list()), "b ");
  const auto report = store.gc();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->expired_entries, 1);
  EXPECT_EQ(report->removed_objects, 1);
  EXPECT_EQ(report->objects, 1);
  ASSERT_TRUE(store.set_ttl(test_hash("b"), "t", std::nullopt).ok());
  ASSERT_TRUE(store.pin(test_hash("b"), "t", false).ok());
  EXPECT_TRUE(store.find(test_hash("b"), "t")->has_value());
}

TEST_F(StoreTest, CollectingEvictsTheLeastRecentlyUsedButNeverPinnedOnes) {
  Store store = open();
  put(store, "a", {0});
  put(store, "b", {1});
  put(store, "c", {2});
  put(store, "d", {3, 2});
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)));
  ASSERT_TRUE(store.touch(test_hash("a"), "t").ok());
  ASSERT_TRUE(store.pin(test_hash("b"), "t", true).ok());
  Store small = open({.max_bytes = 2 * bytes});
  const auto report = small.gc();
  ASSERT_TRUE(report.ok());
  // c frees nothing, for d names its object too; both go, then two objects are left.
  EXPECT_EQ(names_of(*small.list()), "b a ");
  EXPECT_EQ(report->evicted_entries, 2);
  EXPECT_EQ(report->removed_objects, 2);
  EXPECT_EQ(report->removed_bytes, 2 * bytes);
  EXPECT_EQ(report->bytes, 2 * bytes);
  const auto again = open({.max_bytes = 1}).gc();
  EXPECT_EQ(again->evicted_entries, 1);
  EXPECT_EQ(names_of(*small.list()), "b ");
}

TEST_F(StoreTest, PuttingCollectsByItselfAboveTheLimit) {
  Store unlimited = open();
  put(unlimited, "old", {0});
  put(unlimited, "expired", {1});
  put(unlimited, "pinned", {2});
  put(unlimited, "used", {3});
  ASSERT_TRUE(unlimited.pin(test_hash("pinned"), "t", true).ok());
  ASSERT_TRUE(unlimited.set_ttl(test_hash("expired"), "t", 500).ok());
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)));
  ahead_ms_ += 1000;
  {
    Store store = open({.max_bytes = 4 * bytes});
    put(store, "new", {4});
    EXPECT_EQ(names_of(*store.list()), "old pinned used new ") << "what has expired goes first";
    put(store, "newer", {5});
    EXPECT_EQ(names_of(*store.list()), "pinned used new newer ");
  }
  Store store = open({.max_bytes = 2 * bytes});
  put(store, "newest", {6});
  EXPECT_EQ(names_of(*store.list()), "pinned newest ");
}

TEST_F(StoreTest, WhatIsPutStaysEvenWhenItAloneIsTooLarge) {
  Store store = open({.max_bytes = 1});
  put(store, "a", {0, 1});
  EXPECT_EQ(names_of(*store.list()), "a ");
  put(store, "b", {2, 3});
  EXPECT_EQ(names_of(*store.list()), "b ");
  const auto moved = folder_.path() / "b.qke";
  ASSERT_TRUE(store.export_entry(test_hash("b"), "t", moved).ok());
  put(store, "c", {4});
  ASSERT_TRUE(store.import_entry(moved, "t").ok());
  EXPECT_EQ(names_of(*store.list()), "b ") << "importing is putting";
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
  EXPECT_EQ(names_of(*one.list()), "5 6 7 ");
}

TEST_F(StoreTest, CollectingLeavesYoungObjectsAndTakesWhatKilledWritersLeft) {
  Store store = open({.grace_ms = 60'000});
  ASSERT_TRUE(put_object(store, 0).ok());
  write_bytes(object_path(0).parent_path() / ".tmp-0123", std::vector<char>(10));
  auto report = store.gc();
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_objects + report->removed_temporaries, 0);
  ahead_ms_ += 61'000;
  report = store.gc();
  EXPECT_EQ(report->removed_objects, 1);
  EXPECT_EQ(report->removed_temporaries, 1);
  const Status late = store.put_entry(entry_of("a", {0}));
  EXPECT_EQ(late.error().code, ErrorCode::kNotFound) << "the object must be put again";
  EXPECT_GT(*put_object(store, 0), 0);
  EXPECT_TRUE(store.put_entry(entry_of("a", {0})).ok());
}

TEST_F(StoreTest, AnEntryTravelsInOneFile) {
  const auto file = folder_.path() / "a.qke";
  {
    Store store = open();
    put(store, "a", {0, 1, 0, 2});
    ASSERT_TRUE(store.export_entry(test_hash("a"), "t", file).ok());
    EXPECT_EQ(store.export_entry(test_hash("b"), "t", file).error().code, ErrorCode::kNotFound);
  }
  std::filesystem::remove_all(path_);
  Store store = open();
  put(store, "z", {1});
  const auto entry = store.import_entry(file, "u");
  ASSERT_TRUE(entry.ok()) << entry.error().message;
  EXPECT_EQ(entry->parts, entry_of("a", {0, 1, 0, 2}).parts);
  EXPECT_EQ(entry->tenant, "u");
  EXPECT_EQ(entry->name, "a");
  expect_whole(store, *entry);
}

TEST_F(StoreTest, ADamagedEntryFileChangesNothing) {
  const auto file = folder_.path() / "a.qke", bad = folder_.path() / "bad.qke";
  Store store = open();
  put(store, "a", {0, 1});
  ASSERT_TRUE(store.export_entry(test_hash("a"), "t", file).ok());
  ASSERT_TRUE(*store.remove(test_hash("a"), "t"));
  const std::vector<char> bytes = file_bytes_of(file);
  int refused = 0;
  for (std::size_t at = 0; at < bytes.size(); at += at < 300 ? 1 : 61) {
    std::vector<char> damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    write_bytes(bad, damaged);
    const auto entry = store.import_entry(bad, "t");
    refused += entry.ok() ? 0 : 1;
    if (entry.ok()) {  // padding
      expect_whole(store, *entry);
      ASSERT_TRUE(*store.remove(test_hash("a"), "t"));
    }
  }
  EXPECT_GT(refused, 300);
  write_bytes(bad, std::span(bytes).first(bytes.size() - 1));
  EXPECT_EQ(store.import_entry(bad, "t").error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(store.import_entry(object_path(9), "t").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(*store.list(), IsEmpty());
}

TEST_F(StoreTest, FoldersThatAreNoStoreAreRefused) {
  const auto message = [&](ErrorCode code, StoreOptions options = {}) {
    const auto store = Store::open(path_, std::move(options));
    EXPECT_FALSE(store.ok());
    EXPECT_EQ(store.error().code, code);
    return store.error().message;
  };
  message(ErrorCode::kNotFound, {.read_only = true});
  std::filesystem::create_directory(path_);
  write_bytes(path_ / "thesis.txt", std::vector<char>(3));
  EXPECT_THAT(message(ErrorCode::kInvalidArgument), HasSubstr("not a quire store"));
  EXPECT_FALSE(Store::repair(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_ / "index.sqlite"));
  std::filesystem::remove(path_ / "thesis.txt");
  EXPECT_THAT(message(ErrorCode::kInvalidArgument, {.read_only = true}), HasSubstr("format"));
  {
    open();
  }
  std::ofstream(path_ / "format") << "quire store 2\n";
  EXPECT_THAT(message(ErrorCode::kUnsupported),
              HasSubstr("store format version 2, this build reads version 1"));
  std::ofstream(path_ / "format") << "something";
  message(ErrorCode::kInvalidArgument);
}

TEST_F(StoreTest, FilesAreForTheirUserAlone) {
  const mode_t before = ::umask(0);
  {
    Store store = open();
    put(store, "a", {0});
    for (const auto& item : std::filesystem::recursive_directory_iterator(path_)) {
      EXPECT_EQ(static_cast<int>(item.status().permissions()), item.is_directory() ? 0700 : 0600)
          << item.path();
    }
  }
  ::umask(before);
  EXPECT_EQ(static_cast<int>(std::filesystem::status(path_).permissions()), 0700);
}

// The body runs in another process, as a user for whom file modes count.
void as_plain_user(const std::filesystem::path& path, const std::function<bool()>& body) {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0) {
    for (const auto& item : std::filesystem::recursive_directory_iterator(path)) {
      ASSERT_EQ(::lchown(item.path().c_str(), kNobody, kNobody), 0);
    }
    ASSERT_EQ(::lchown(path.c_str(), kNobody, kNobody), 0);
    ASSERT_EQ(::chmod(path.parent_path().c_str(), 0755), 0);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const bool plain = ::geteuid() != 0 || ::seteuid(kNobody) == 0;
    ::_exit(plain && body() ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

TEST_F(StoreTest, AReadOnlyFolderIsReadAndSaysSoWhenWrittenTo) {
  {
    Store store = open();
    put(store, "a", {0, 1});
  }
  std::filesystem::permissions(path_, std::filesystem::perms(0500));
  as_plain_user(path_, [&] {
    auto store = Store::open(path_);
    if (!store.ok() || !store->read_only()) {
      return false;
    }
    const auto entry = store->find(test_hash("a"), "t");
    if (!entry.ok() || !entry->has_value()) {
      return false;
    }
    expect_whole(*store, **entry);
    const auto refused = [](const auto& result) {
      return !result.ok() && result.error().code == ErrorCode::kIo &&
             result.error().message.find("read-only") != std::string::npos;
    };
    return !HasFailure() && refused(put_object(*store, 2)) && refused(store->gc()) &&
           refused(store->put_entry(entry_of("a", {0}))) &&
           refused(store->touch(test_hash("a"), "t")) &&
           refused(store->remove(test_hash("a"), "t"));
  });
  std::filesystem::permissions(path_, std::filesystem::perms(0700));
}

TEST_F(StoreTest, AReaderBesideAWriterSeesWhatIsCommitted) {
  Store writer = open();
  put(writer, "a", {0});
  const Store reader = open({.read_only = true});
  EXPECT_EQ(names_of(*reader.list()), "a ");
  put(writer, "b", {1});
  EXPECT_EQ(names_of(*reader.list()), "a b ");
  const auto file = reader.open_object(object_hash(0));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(*writer.remove(test_hash("a"), "t"));
  EXPECT_TRUE(file->verify().ok()) << "an open object lives on";
  EXPECT_EQ(names_of(*reader.list()), "b ");
}

TEST_F(StoreTest, ADamagedIndexIsAnErrorAndRepairKeepsWhatCanBeRead) {
  {
    Store store = open();
    for (int i = 0; i < 200; ++i) {  // some pages
      const std::string name = "entry " + std::to_string(i) + std::string(300, 'x');
      put(store, name, {i % 4});
    }
  }
  const auto index = path_ / "index.sqlite";
  const std::vector<char> good = file_bytes_of(index);
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{40}, good.size() / 2, good.size() - 5000}) {
    std::vector<char> bad = good;
    std::fill_n(bad.begin() + static_cast<std::ptrdiff_t>(at), 4096, '\x55');
    write_bytes(index, bad);
    auto store = Store::open(path_);
    if (!store.ok()) {
      EXPECT_EQ(store.error().code, ErrorCode::kCorrupt);
      EXPECT_THAT(store.error().message, HasSubstr("quire store repair"));
      continue;
    }
    const auto listed = store->list();
    const auto verified = store->verify();
    EXPECT_FALSE(listed.ok() && verified.ok());
  }
  auto kept = Store::repair(path_);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_GT(*kept, 20);
  EXPECT_EQ(static_cast<std::int64_t>(open().list()->size()), *kept);
  EXPECT_TRUE(open().verify().ok());
  std::filesystem::remove(index);
  EXPECT_THAT(Store::open(path_).error().message, HasSubstr("is missing"));
  EXPECT_EQ(*Store::repair(path_), 0);
  EXPECT_TRUE(open().list()->empty());
}

TEST_F(StoreTest, RowsAndSchemasOfAStrangerAreRefused) {
  const auto fresh = [&] {
    std::filesystem::remove_all(path_);
    Store store = open();
    put(store, "a", {0});
  };
  const char* const rows[] = {
      "UPDATE entries SET kind = 'virus'",        "UPDATE entries SET key = '../../../etc/passwd'",
      "UPDATE entries SET metadata = '[' ",       "UPDATE entries SET tokens = -1",
      "UPDATE parts SET object = '../../secret'", "UPDATE parts SET tokens = 1 << 40",
      "UPDATE entries SET name = zeroblob(5000)"};
  for (const char* sql : rows) {
    fresh();
    execute_sql(sql);
    Store store = open();
    const auto listed = store.list();
    ASSERT_FALSE(listed.ok()) << sql;
    EXPECT_EQ(listed.error().code, ErrorCode::kCorrupt);
    EXPECT_TRUE(store.verify().ok());
  }
  const char* const schemas[] = {
      "CREATE TRIGGER t AFTER UPDATE ON entries BEGIN DELETE FROM entries; END",
      "CREATE VIEW v AS SELECT * FROM entries", "DROP TABLE parts", "CREATE TABLE extra(x)",
      "PRAGMA application_id = 1"};
  for (const char* sql : schemas) {
    fresh();
    execute_sql(sql);
    EXPECT_EQ(Store::open(path_).error().code, ErrorCode::kCorrupt) << sql;
  }
  fresh();
  execute_sql("PRAGMA user_version = 2");
  EXPECT_EQ(Store::open(path_).error().code, ErrorCode::kUnsupported);
}

TEST_F(StoreTest, EntriesThatCannotBeAreRefused) {
  Store store = open();
  ASSERT_TRUE(put_object(store, 0).ok());
  const auto message = [&](const std::function<void(Entry&)>& change) {
    Entry entry = entry_of("a", {0});
    change(entry);
    const Status status = store.put_entry(entry);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    return status.error().message;
  };
  EXPECT_THAT(message([](Entry& e) { e.key = "a"; }), HasSubstr("key \"a\""));
  EXPECT_THAT(message([](Entry& e) { e.name.assign(2000, 'n'); }), HasSubstr("2000 bytes"));
  EXPECT_THAT(message([](Entry& e) { e.tenant = std::string("a\0b", 3); }), HasSubstr("tenant"));
  EXPECT_THAT(message([](Entry& e) { e.metadata_json = "1"; }), HasSubstr("json object"));
  EXPECT_THAT(message([](Entry& e) { e.parts[0].object = "x"; }), HasSubstr("object \"x\""));
  EXPECT_THAT(message([](Entry& e) { e.parts[0].tokens = -1; }), HasSubstr("-1 tokens"));
}

}  // namespace
}  // namespace quire::kv_store
