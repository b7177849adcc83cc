// A store whose entries name numbered objects, so that a test can tell which of them are there and
// whole.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/test_support.h"

namespace quire::kv_store {

using Objects = std::vector<std::int32_t>;

class StoreCrash : public ::testing::Test {
 protected:
  StoreCrash() : pool_(random_pool(small_geometry(), 16, 41)), path_(folder_.path() / "store") {}

  bool put(Store& store, const std::string& name, const Objects& objects) {
    StoreEntry entry{.key = test_hash(name), .name = name};
    for (const std::int32_t index : objects) {
      const KVFileContent content{.fingerprint = fingerprint_of(1),
                                  .geometry = pool_.geometry(),
                                  .runs = {run_of(4, 0, 100 * index)}};
      if (!store.objects().put(object_hash(index), content, pool_, {{ids({index})}}).ok()) {
        return false;
      }
      entry.parts.push_back({.object = object_hash(index), .tokens = 4});
    }
    return store.entries().put(entry).ok();
  }

  // Returns the objects that the entry names, after it has read and compared all of them. Empty
  // means that there is no entry.
  Objects read_back(const Store& store, const std::string& name) {
    Objects objects;
    const auto entry = store.entries().find(test_hash(name), "");
    EXPECT_TRUE(entry.ok()) << entry.error().message;
    if (!entry.ok() || !entry->has_value()) {
      return objects;
    }
    PagedPool to = random_pool(small_geometry(), 1, 5);
    for (const ObjectRange& part : (*entry)->parts) {
      const auto file = store.objects().open(part.object);
      EXPECT_TRUE(file.ok()) << file.error().message;
      if (!file.ok()) {
        continue;
      }
      objects.push_back(file->content().runs[0].tokens[0] / 100);
      EXPECT_TRUE(read_run(*file, 0, ids({0}), to).ok());
      EXPECT_EQ(pool_bytes(to, ids({0})), pool_bytes(pool_, ids({objects.back()})));
    }
    return objects;
  }

  void expect_no_damage(const Store& store) {
    const auto reports = store.inspector().verify();
    ASSERT_TRUE(reports.ok()) << reports.error().message;
    for (const ObjectReport& report : *reports) {
      EXPECT_EQ(report.state, ObjectReport::State::kOk) << report.message;
    }
  }

  TemporaryFolder folder_;
  PagedPool pool_;
  std::filesystem::path path_;
};

// Makes room for another state of a store at `to`.
inline void replace_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::filesystem::remove_all(to);
  if (std::filesystem::exists(from)) {
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  }
}

}  // namespace quire::kv_store
