#include "quire/kv_store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(StoreTest, ARestartFindsItsEntriesAndTheirKV) {
  {
    Store store = open();
    put(store, "a", {0, 1, 0});
    StoreEntry pinned = entry_of("b", {1});
    pinned.kind = EntryKind::kChunk;
    pinned.pinned = true;
    pinned.metadata_json = R"({"é":[1]})";
    ASSERT_TRUE(store.entries().put(pinned).ok());
  }
  const Store store = open();
  const auto a = store.entries().find(test_hash("a"), "t");
  ASSERT_TRUE(a.ok() && a->has_value());
  EXPECT_EQ((*a)->parts, entry_of("a", {0, 1, 0}).parts);
  EXPECT_EQ((*a)->tokens, 12);
  EXPECT_EQ((*a)->bytes, static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)) +
                                                   std::filesystem::file_size(object_path(1))));
  EXPECT_GT((*a)->created_ms, 0);
  expect_whole(store, **a);
  const auto b = store.entries().find(test_hash("b"), "t");
  ASSERT_TRUE(b.ok() && b->has_value());
  EXPECT_EQ((*b)->metadata_json, R"({"é":[1]})");
  EXPECT_TRUE((*b)->pinned);
  EXPECT_EQ(names_of(*store.entries().list()), "a b ");
  EXPECT_EQ(names_of(*store.entries().list({.kind = EntryKind::kChunk})), "b ");
  EXPECT_EQ(names_of(*store.entries().list({.tenant = "other"})), "");
}

TEST_F(StoreTest, EqualKVIsWrittenOnceAndOtherKVUnderItsNameIsRefused) {
  Store store = open();
  EXPECT_GT(*put_object(store, 0), 0);
  EXPECT_EQ(*put_object(store, 0), 0);
  Store other = open();
  EXPECT_EQ(*put_object(other, 0), 0) << "verified, for this one has not written it";
  const auto clash = store.objects().put(object_hash(0), content_of(4, 999), pool_, {{ids({0})}});
  ASSERT_FALSE(clash.ok());
  EXPECT_THAT(clash.error().message, HasSubstr("holds other tokens"));
  EXPECT_EQ(store.objects().put("../../x", content_of(4), pool_, {{ids({0})}}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST_F(StoreTest, ADamagedObjectIsAnErrorThatNamesItAndIsMendedByPuttingItAgain) {
  Store store = open();
  put(store, "a", {0, 1});
  std::vector<char> bytes = file_bytes_of(object_path(0));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(object_path(0), bytes);
  EXPECT_THAT(store.objects().open(object_hash(0))->verify().error().message,
              HasSubstr(object_hash(0)));
  std::filesystem::remove(object_path(1));
  EXPECT_EQ(store.objects().open(object_hash(1)).error().code, ErrorCode::kNotFound);
  const auto reports = store.inspector().verify();
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
  expect_whole(store, **store.entries().find(test_hash("a"), "t"));
}

TEST_F(StoreTest, AnObjectUnderAnothersNameIsRefused) {
  Store store = open();
  put(store, "a", {0, 1});
  std::filesystem::copy_file(object_path(0), object_path(1),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(store.objects().open(object_hash(1)).error().message, HasSubstr("another object"));
}

TEST_F(StoreTest, LinksInsideAreNotFollowed) {
  Store store = open();
  put(store, "a", {0, 1});
  const auto elsewhere = folder_.path() / "elsewhere.qkv";
  std::filesystem::rename(object_path(0), elsewhere);
  std::filesystem::create_symlink(elsewhere, object_path(0));
  EXPECT_EQ(store.objects().open(object_hash(0)).error().code, ErrorCode::kIo);
  const auto outside = folder_.path() / "outside";
  std::filesystem::rename(object_path(1).parent_path(), outside);
  std::filesystem::create_directory_symlink(outside, object_path(1).parent_path());
  EXPECT_EQ(store.objects().open(object_hash(1)).error().code, ErrorCode::kIo);
  EXPECT_FALSE(put_object(store, 1).ok());
  EXPECT_TRUE(store.collector().gc().ok());
  EXPECT_TRUE(std::filesystem::exists(elsewhere));
  EXPECT_FALSE(std::filesystem::is_empty(outside));
}

TEST_F(StoreTest, AnEntryNeedsItsObjectsAndReplacesTheOldOneWhole) {
  Store store = open();
  const Status missing = store.entries().put(entry_of("a", {0}));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(missing.error().message, HasSubstr(object_hash(0).substr(0, 2)));
  put(store, "a", {0, 1, 2});
  EXPECT_FALSE(store.entries().put(entry_of("a", {0, 3})).ok());
  EXPECT_EQ((*store.entries().find(test_hash("a"), "t"))->parts.size(), 3U);
  put(store, "a", {0, 3});
  EXPECT_EQ((*store.entries().find(test_hash("a"), "t"))->parts, entry_of("a", {0, 3}).parts);
  EXPECT_EQ(store.entries().list()->size(), 1U);
}

TEST_F(StoreTest, APartBeyondItsObjectIsRefused) {
  Store store = open();
  put(store, "a", {0});
  for (const auto& [first, tokens] : {std::pair(0, 5), {4, 1}, {1, 4}}) {
    for (const bool fresh : {false, true}) {
      StoreEntry entry = entry_of("a", {0});
      entry.parts[0].first_token = first;
      entry.parts[0].tokens = tokens;
      Store other = open();
      const Status refused = (fresh ? other : store).entries().put(entry);
      ASSERT_FALSE(refused.ok());
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(refused.error().message, HasSubstr("which has 4"));
    }
  }
  StoreEntry part = entry_of("b", {0});
  part.parts[0].first_token = 1;
  part.parts[0].tokens = 3;
  EXPECT_TRUE(store.entries().put(part).ok());
}

TEST_F(StoreTest, TenantsDoNotSeeEachOther) {
  Store store = open();
  put(store, "a", {0});
  EXPECT_FALSE(store.entries().find(test_hash("a"), "u")->has_value());
  EXPECT_FALSE(store.entries().find(test_hash("a"), "")->has_value());
  EXPECT_FALSE(*store.remover().remove(test_hash("a"), "u"));
  EXPECT_EQ(store.entries().pin(test_hash("a"), "u", true).error().code, ErrorCode::kNotFound);
  StoreEntry same = entry_of("a", {0});
  same.tenant = "u";
  ASSERT_TRUE(store.entries().put(same).ok());
  EXPECT_EQ(names_of(*store.entries().list({.tenant = "u"})), "a ");
  EXPECT_TRUE(*store.remover().remove(test_hash("a"), "u"));
  EXPECT_TRUE(store.entries().find(test_hash("a"), "t")->has_value());
  EXPECT_TRUE(std::filesystem::exists(object_path(0))) << "the other tenant's entry names it";
}

TEST_F(StoreTest, AnEntryTravelsInOneFile) {
  const auto file = folder_.path() / "a.qke";
  {
    Store store = open();
    put(store, "a", {0, 1, 0, 2});
    ASSERT_TRUE(store.files().export_entry(test_hash("a"), "t", file).ok());
    EXPECT_EQ(store.files().export_entry(test_hash("b"), "t", file).error().code,
              ErrorCode::kNotFound);
  }
  std::filesystem::remove_all(path_);
  Store store = open();
  put(store, "z", {1});
  const auto entry = store.files().import_entry(file, "u");
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
  ASSERT_TRUE(store.files().export_entry(test_hash("a"), "t", file).ok());
  ASSERT_TRUE(*store.remover().remove(test_hash("a"), "t"));
  const std::vector<char> bytes = file_bytes_of(file);
  for (std::size_t at = 0; at < bytes.size(); at += at < 300 ? 1 : 61) {
    std::vector<char> damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x20);
    write_bytes(bad, damaged);
    const auto refused = store.files().import_entry(bad, "t");
    ASSERT_FALSE(refused.ok()) << "byte " << at;
    EXPECT_THAT(refused.error().message, HasSubstr("bad.qke"));
    EXPECT_EQ(check_entry_file(bad).error().message, refused.error().message);
    EXPECT_THAT(store.inspector().verify().value(), IsEmpty()) << "no object is left, byte " << at;
  }
  write_bytes(bad, std::span(bytes).first(bytes.size() - 1));
  EXPECT_EQ(store.files().import_entry(bad, "t").error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(store.files().import_entry(object_path(9), "t").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(*store.entries().list(), IsEmpty());
}

TEST_F(StoreTest, EntriesThatCannotBeAreRefused) {
  Store store = open();
  ASSERT_TRUE(put_object(store, 0).ok());
  const auto message = [&](const std::function<void(StoreEntry&)>& change) {
    StoreEntry entry = entry_of("a", {0});
    change(entry);
    const Status status = store.entries().put(entry);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    return status.error().message;
  };
  EXPECT_THAT(message([](StoreEntry& e) { e.key = "a"; }), HasSubstr("key \"a\""));
  EXPECT_THAT(message([](StoreEntry& e) { e.name.assign(2000, 'n'); }), HasSubstr("2000 bytes"));
  EXPECT_THAT(message([](StoreEntry& e) { e.tenant = std::string("a\0b", 3); }),
              HasSubstr("tenant"));
  EXPECT_THAT(message([](StoreEntry& e) { e.metadata_json = "1"; }), HasSubstr("json object"));
  EXPECT_THAT(message([](StoreEntry& e) { e.parts[0].object = "x"; }), HasSubstr("object \"x\""));
  EXPECT_THAT(message([](StoreEntry& e) { e.parts[0].tokens = -1; }), HasSubstr("-1 tokens"));
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

}  // namespace
}  // namespace quire::kv_store
