// The folder of a store: whose it is, who else uses it, and what strangers and accidents leave in
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/store_repair.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;

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
  EXPECT_FALSE(repair_store(path_).ok());
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

TEST_F(StoreTest, AFolderNamedWithASlashIsPrivateToo) {
  const mode_t before = ::umask(022);
  path_ += "/";
  open();
  ::umask(before);
  EXPECT_EQ(static_cast<int>(std::filesystem::status(path_).permissions()), 0700);
}

TEST_F(StoreTest, ARelativePathStaysTheSameFolderWhenTheWorkingDirectoryChanges) {
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder_.path());
  Store store = Store::open("store").value();
  std::filesystem::current_path(before);
  put(store, "a", {0});
  EXPECT_EQ(store.path(), path_);
  EXPECT_EQ(store.inspector().verify().value().size(), 1);
  EXPECT_EQ(store.collector().gc().value().objects, 1);
}

TEST_F(StoreTest, PathsThatTheSystemRefusesAreErrors) {
  std::filesystem::create_symlink("loop", folder_.path() / "loop");
  for (const std::filesystem::path& path :
       {folder_.path() / std::string(300, 'a'), folder_.path() / "loop",
        folder_.path() / std::string(300, 'a') / "b", std::filesystem::path("/dev/null"),
        std::filesystem::path()}) {
    const auto store = Store::open(path);
    ASSERT_FALSE(store.ok()) << path;
    EXPECT_EQ(store.error().code, ErrorCode::kIo) << path;
  }
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
    const auto entry = store->entries().find(test_hash("a"), "t");
    if (!entry.ok() || !entry->has_value()) {
      return false;
    }
    expect_whole(*store, **entry);
    const auto refused = [](const auto& result) {
      return !result.ok() && result.error().code == ErrorCode::kIo &&
             result.error().message.find("read-only") != std::string::npos;
    };
    return !HasFailure() && refused(put_object(*store, 2)) && refused(store->collector().gc()) &&
           refused(store->entries().put(entry_of("a", {0}))) &&
           refused(store->entries().touch(test_hash("a"), "t")) &&
           refused(store->remover().remove(test_hash("a"), "t")) &&
           !*store->remover().remove(test_hash("b"), "t");
  });
  std::filesystem::permissions(path_, std::filesystem::perms(0700));
}

TEST_F(StoreTest, AReaderBesideAWriterSeesWhatIsCommitted) {
  Store writer = open();
  put(writer, "a", {0});
  const Store reader = open({.read_only = true});
  EXPECT_EQ(names_of(*reader.entries().list()), "a ");
  put(writer, "b", {1});
  EXPECT_EQ(names_of(*reader.entries().list()), "a b ");
  const auto file = reader.objects().open(object_hash(0));
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(*writer.remover().remove(test_hash("a"), "t"));
  EXPECT_TRUE(file->verify().ok()) << "an open object lives on";
  EXPECT_EQ(names_of(*reader.entries().list()), "b ");
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
    const auto listed = store->entries().list();
    const auto verified = store->inspector().verify();
    EXPECT_FALSE(listed.ok() && verified.ok());
  }
  auto kept = repair_store(path_);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_GT(*kept, 20);
  EXPECT_EQ(static_cast<std::int64_t>(open().entries().list()->size()), *kept);
  EXPECT_TRUE(open().inspector().verify().ok());
  std::filesystem::remove(index);
  EXPECT_THAT(Store::open(path_).error().message, HasSubstr("is missing"));
  write_bytes(index, {});
  EXPECT_THAT(Store::open(path_).error().message, HasSubstr("is empty"));
  const auto refused = repair_store(path_);
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.error().message, HasSubstr("--force"));
  EXPECT_EQ(repair_store(path_, true).value(), 0);
  EXPECT_TRUE(open().entries().list()->empty());
}

TEST_F(StoreTest, RowsOfAStrangerArePassedOverAndSchemasRefused) {
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
    EXPECT_TRUE(store.entries().list().value().empty()) << sql;
    const std::vector<ObjectReport> reports = store.inspector().verify().value();
    EXPECT_TRUE(std::ranges::any_of(reports, [](const ObjectReport& report) {
      return report.message.find("row 1 is damaged") != std::string::npos;
    })) << sql;
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
  execute_sql("PRAGMA user_version = 3");
  EXPECT_EQ(Store::open(path_).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace quire::kv_store
