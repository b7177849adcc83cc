// The public Store. Its content was put by the module below; its own promises are tested there.
#include "quire/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/kv_store/holds_text.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire {
namespace {

using kv_store::test_hash;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class PublicStore : public testing::Test {
 protected:
  PublicStore()
      : pool_(kv_store::random_pool(kv_store::small_geometry(), 8, 7)),
        path_(folder_.path() / "store") {}

  // Puts an entry of one object, of 4 tokens.
  void put(const std::string& name, std::int32_t object, std::int64_t created_ms = 0,
           const std::string& tenant = "") {
    auto store = kv_store::Store::open(path_, {.write = {.sync = false}}).value();
    const kv_store::KVFileContent content{.fingerprint = kv_store::fingerprint_of(1),
                                          .geometry = pool_.geometry(),
                                          .runs = {kv_store::run_of(4, 0, 100 * object)}};
    const std::string hash = kv_store::object_hash(object);
    ASSERT_TRUE(store.objects().put(hash, content, pool_, {{kv_store::ids({object})}}).ok());
    ASSERT_TRUE(store.entries()
                    .put({.key = test_hash(name),
                          .tenant = tenant,
                          .name = name,
                          .metadata_json = R"({"a":1})",
                          .parts = {{.object = hash, .tokens = 4}},
                          .created_ms = created_ms})
                    .ok());
  }

  [[nodiscard]] Store open(const StoreOptions& options = {}) const {
    auto store = Store::open(path_, options);
    EXPECT_TRUE(store.ok()) << store.error().message;
    return std::move(store).value();
  }

  static std::vector<std::string> names(const Store& store) {
    std::vector<std::string> names;
    for (const StoreEntry& entry : store.list().value()) {
      names.push_back(entry.name);
    }
    return names;
  }

  kv_store::TemporaryFolder folder_;
  kv_store::PagedPool pool_;
  std::filesystem::path path_;
};

TEST_F(PublicStore, SaysOfAnEntryWhatWasPut) {
  put("a", 1, 1'700'000'000'000);
  const Store store = open();
  const StoreEntry entry = store.find("a").value();
  EXPECT_EQ(entry.key, test_hash("a"));
  EXPECT_EQ(entry.kind, "sequence");
  EXPECT_EQ(entry.metadata_json, R"({"a":1})");
  EXPECT_EQ(entry.tokens, 4);
  EXPECT_GT(entry.bytes, 4 * 2 * 2 * 2 * 8);
  EXPECT_EQ(entry.ratio, 1);
  EXPECT_EQ(entry.created_at, "2023-11-14T22:13:20Z");
  EXPECT_EQ(entry.expires_at, "");
  EXPECT_FALSE(entry.pinned);
}

TEST_F(PublicStore, TimesThatNoClockCanSayEndWithTheClock) {
  put("a", 1, std::numeric_limits<std::int64_t>::max());
  EXPECT_THAT(open().find("a").value().created_at, testing::StartsWith("2262-"));
}

TEST_F(PublicStore, FindsByKeyBeginningAndName) {
  put("a", 1);
  put("b", 2);
  const Store store = open();
  const std::string key = test_hash("a");
  for (const std::string& name : {key, key.substr(0, 4), std::string("a")}) {
    EXPECT_EQ(store.find(name).value().key, key) << name;
  }
  for (const std::string& name : {key.substr(0, 3), std::string("c"), std::string()}) {
    EXPECT_EQ(store.find(name).error().code, ErrorCode::kNotFound) << name;
  }
}

TEST_F(PublicStore, AnEntryOfTwoTenantsIsNamedWithTheTenant) {
  put("a", 1, 0, "t");
  put("a", 1, 0, "u");
  EXPECT_THAT(open().find("a").error().message, HasSubstr("2 entries"));
  Store mine = open({.tenant = "t"});
  EXPECT_EQ(mine.find("a").value().tenant, "t");
  ASSERT_TRUE(mine.remove("a").ok());
  EXPECT_THAT(names(mine), IsEmpty());
  EXPECT_THAT(names(open()), ElementsAre("a"));
}

TEST_F(PublicStore, PinnedEntriesNeitherExpireNorGo) {
  put("a", 1);
  put("b", 2);
  Store store = open({.max_bytes = 1});
  ASSERT_TRUE(store.pin("a", true).ok());
  ASSERT_TRUE(store.set_ttl("a", 0.0).ok());
  EXPECT_THAT(store.find("a").value().expires_at, HasSubstr("T"));
  const StoreCleaning cleaning = store.gc().value();
  EXPECT_EQ(cleaning.evicted_entries, 1);
  EXPECT_EQ(cleaning.removed_objects, 1);
  EXPECT_EQ(cleaning.objects, 1);
  EXPECT_THAT(names(store), ElementsAre("a"));
  ASSERT_TRUE(store.pin("a", false).ok());
  EXPECT_THAT(names(store), IsEmpty());
  EXPECT_EQ(store.gc().value().expired_entries, 1);
  for (const double seconds : {-1.0, 1e11, std::numeric_limits<double>::quiet_NaN()}) {
    put("c", 3);
    EXPECT_EQ(store.set_ttl("c", seconds).error().code, ErrorCode::kInvalidArgument) << seconds;
  }
  ASSERT_TRUE(store.set_ttl("c", 1e10).ok());
  ASSERT_TRUE(store.set_ttl("c", std::nullopt).ok());
  EXPECT_EQ(store.find("c").value().expires_at, "");
}

TEST_F(PublicStore, VerifyNamesWhatIsDamagedAndMissing) {
  put("a", 1);
  put("b", 2);
  put("c", 3);
  const auto file = [&](std::int32_t object) {
    const std::string hash = kv_store::object_hash(object);
    return path_ / "objects" / hash.substr(0, 2) / (hash + ".qkv");
  };
  auto bytes = kv_store::file_bytes_of(file(1));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  kv_store::write_bytes(file(1), bytes);
  std::filesystem::remove(file(2));
  for (const StoreObject& object : open({.read_only = true}).verify().value()) {
    const std::string_view state = object.hash == kv_store::object_hash(1)   ? "damaged"
                                   : object.hash == kv_store::object_hash(2) ? "missing"
                                                                             : "ok";
    EXPECT_EQ(object.state, state);
    EXPECT_EQ(object.message.empty(), state == "ok");
    EXPECT_EQ(object.entries, 1);
  }
}

TEST_F(PublicStore, EntriesTravelInAFile) {
  put("a", 1, 0, "t");
  const std::string file = folder_.path() / "a.qke";
  ASSERT_TRUE(open().export_entry("a", file).ok());
  const std::string other = folder_.path() / "other";
  Store store = Store::open(other, {.tenant = "u"}).value();
  EXPECT_EQ(store.import_entry(file).value().tenant, "u");
  EXPECT_EQ(store.find("a").value().tokens, 4);
  EXPECT_EQ(Store::open(other).value().import_entry(file).value().tenant, "");
  EXPECT_EQ(store.import_entry(file + "x").error().code, ErrorCode::kIo);
  EXPECT_EQ(store.export_entry("a", folder_.path() / "no" / "a.qke").error().code, ErrorCode::kIo);
}

TEST_F(PublicStore, WhereNoStoreIsNoneIsMadeUnlessWanted) {
  for (const StoreOptions& options : {StoreOptions{.create = false}, {.read_only = true}}) {
    const auto store = Store::open(path_, options);
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.error().code, ErrorCode::kIo);
    EXPECT_THAT(store.error().message, HasSubstr(path_.string()));
  }
  std::filesystem::create_directory(path_);
  EXPECT_EQ(Store::open(path_, {.create = false}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_empty(path_));
  EXPECT_EQ(Store::open(path_, {.max_bytes = -1}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(names(open()), IsEmpty());
  EXPECT_THAT(names(open({.create = false})), IsEmpty());
}

TEST_F(PublicStore, ReadOnlyRefusesEveryChange) {
  put("a", 1);
  Store store = open({.read_only = true});
  EXPECT_THAT(names(store), ElementsAre("a"));
  for (const Status& refused :
       {store.pin("a", true), store.remove("a"), store.set_ttl("a", 1.0),
        Status(store.gc().error()), Status(store.import_entry("x").error())}) {
    EXPECT_EQ(refused.error().code, ErrorCode::kIo);
    EXPECT_THAT(refused.error().message, HasSubstr("read-only"));
  }
}

TEST_F(PublicStore, AWipeThatLeftTheLogIsFinishedByTheSameCallAgain) {
  put("named-secret", 1);
  Store store = open();
  {
    const auto reader =
        kv_store::Database::open(path_ / "index.sqlite", kv_store::Database::Mode::kRead).value();
    ASSERT_TRUE(reader.execute("BEGIN; SELECT count(*) FROM entries").ok());
    for (const ErrorCode code : {store.remove("named-secret", true).error().code,
                                 store.remove("named-secret", true).error().code}) {
      EXPECT_EQ(code, ErrorCode::kIo) << "there is a reader";
    }
  }
  EXPECT_TRUE(kv_store::holds_text(path_, "named-secret"));
  EXPECT_EQ(store.remove("named-secret", true).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(kv_store::holds_text(path_, "named-secret"));
}

TEST_F(PublicStore, RepairKeepsWhatCanBeRead) {
  put("a", 1);
  EXPECT_EQ(Store::repair(path_).value(), 1);
  EXPECT_THAT(names(open()), ElementsAre("a"));
  EXPECT_EQ(Store::repair(path_ / "nowhere").error().code, ErrorCode::kIo);
  std::filesystem::remove(path_ / "index.sqlite");
  EXPECT_THAT(Store::open(path_).error().message, AllOf(HasSubstr("missing"), HasSubstr("repair")));
  EXPECT_THAT(Store::repair(path_).error().message, HasSubstr("--force"));
  EXPECT_EQ(Store::repair(path_, true).value(), 0);
  EXPECT_THAT(names(open()), IsEmpty());
}

}  // namespace
}  // namespace quire
