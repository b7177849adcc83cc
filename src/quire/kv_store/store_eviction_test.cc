// Whose entries go: of one tenant, and of several that share a store and its limit.
#include "quire/kv_store/store_eviction.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

class SharedLimit : public StoreTest {
 protected:
  // An entry of one object, 0 to 7.
  void put_of(Store& store, const std::string& tenant, std::int32_t object) {
    ASSERT_TRUE(put_object(store, object).ok());
    StoreEntry entry = entry_of(tenant + std::to_string(object), {object});
    entry.tenant = tenant;
    ASSERT_TRUE(store.entries().put(entry).ok());
    ahead_ms_ += 1000;
  }

  [[nodiscard]] std::int64_t object_bytes() const {
    return static_cast<std::int64_t>(std::filesystem::file_size(object_path(0)));
  }
};

TEST_F(SharedLimit, ATenantsGcTouchesItsOwnEntriesOnly) {
  {
    Store store = open();
    for (const std::int32_t object : {0, 1, 2}) {
      put_of(store, "ada", object);
      put_of(store, "bob", object + 4);
    }
    for (const std::string tenant : {"ada", "bob"}) {
      const std::string name = tenant + (tenant == "ada" ? "0" : "4");
      ASSERT_TRUE(store.entries().set_ttl(test_hash(name), tenant, 0).ok());
    }
  }
  ahead_ms_ += 1000;
  const std::int64_t bytes = object_bytes();
  Store ada = open({.max_bytes = bytes, .tenant = "ada"});
  const GcReport report = ada.collector().gc().value();
  EXPECT_EQ(report.expired_entries, 1);
  EXPECT_EQ(report.evicted_entries, 1);
  EXPECT_EQ(report.objects, 1) << "of her own";
  EXPECT_EQ(report.bytes, bytes);
  EXPECT_EQ(names_of(*open().entries().list()), "bob5 ada2 bob6 ");
  for (const std::int32_t object : {4, 5, 6}) {
    EXPECT_TRUE(ada.objects().is_there(object_hash(object)));
  }
  EXPECT_EQ(open().collector().gc()->expired_entries, 1) << "an operator's gc works across all";
  EXPECT_EQ(open({.max_bytes = 1}).collector().gc()->evicted_entries, 3);
}

TEST_F(SharedLimit, OfATenantsStoreIsALimitOfItsOwnBytes) {
  {
    Store store = open();
    for (const std::int32_t object : {0, 1, 2, 3}) {
      put_of(store, "bob", object);
    }
  }
  Store ada = open({.max_bytes = 2 * object_bytes(), .tenant = "ada"});
  for (const std::int32_t object : {4, 5, 6}) {
    put_of(ada, "ada", object);
  }
  EXPECT_EQ(names_of(*ada.entries().list()), "bob0 bob1 bob2 bob3 ada5 ada6 ");
}

TEST_F(SharedLimit, WhoWritesPushesOutNobodyBelowAnEqualShare) {
  Store first = open();
  put_of(first, "ada", 0);
  Store store = open({.max_bytes = 4 * object_bytes()});
  put_of(store, "ada", 1);
  for (const std::int32_t object : {2, 3, 4, 5, 6, 7}) {
    put_of(store, "bob", object);
  }
  EXPECT_EQ(names_of(*store.entries().list()), "ada0 ada1 bob6 bob7 ");
}

TEST_F(SharedLimit, TheTenantThatHoldsMostGivesWayToOneThatComes) {
  Store first = open();
  for (const std::int32_t object : {0, 1, 2, 3}) {
    put_of(first, "ada", object);
  }
  Store store = open({.max_bytes = 4 * object_bytes()});
  put_of(store, "bob", 4);
  EXPECT_EQ(names_of(*store.entries().list()), "ada1 ada2 ada3 bob4 ");
  put_of(store, "bob", 5);
  EXPECT_EQ(names_of(*store.entries().list()), "ada2 ada3 bob4 bob5 ");
  put_of(store, "bob", 6);
  EXPECT_EQ(names_of(*store.entries().list()), "ada2 ada3 bob5 bob6 ");
  put_of(store, "cleo", 7);
  EXPECT_EQ(names_of(*store.entries().list()).size(), std::string("ada2 bob5 bob6 cleo7 ").size());
  EXPECT_EQ(store.entries().list({.tenant = "cleo"})->size(), 1U);
}

TEST_F(SharedLimit, AnOperatorsGcTakesFromWhoeverHoldsMost) {
  Store store = open();
  put_of(store, "bob", 0);
  for (const std::int32_t object : {1, 2, 3, 4}) {
    put_of(store, "ada", object);
  }
  const GcReport report = open({.max_bytes = 3 * object_bytes()}).collector().gc().value();
  EXPECT_EQ(report.evicted_entries, 2);
  EXPECT_EQ(names_of(*store.entries().list()), "bob0 ada3 ada4 ")
      << "bob's was used least recently";
}

// Random stores. The oracle is the rule, looked at after each plan.
TEST(EvictionPlan, EndsBelowTheLimitOrWithNobodyWhoMustYield) {
  std::mt19937 random(11);
  for (int round = 0; round < 500; ++round) {
    std::vector<StoreEntry> entries(random() % 30 + 1);
    ObjectSizes sizes;
    std::unordered_map<std::string, std::int64_t> references;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i] = {.key = test_hash(std::to_string(i)),
                    .tenant = std::string(1, static_cast<char>('a' + random() % 3)),
                    .pinned = random() % 8 == 0};
      for (std::size_t part = random() % 3; part-- > 0;) {
        const std::string hash = test_hash(entries[i].tenant + std::to_string(random() % 20));
        entries[i].parts.push_back({.object = hash, .tokens = 1});
        total += sizes.contains(hash) ? 0 : 10 + static_cast<std::int64_t>(hash[0] % 7);
        sizes.emplace(hash, 10 + hash[0] % 7);
      }
      for (const std::string& hash : objects_of(entries[i])) {
        ++references[hash];
      }
    }
    std::vector<const StoreEntry*> all;
    for (const StoreEntry& entry : entries) {
      all.push_back(&entry);
    }
    const StoreEntry* written = random() % 2 == 0 ? &entries.back() : nullptr;
    const EvictionLimit limit{.max_bytes = 1 + total * static_cast<std::int64_t>(random() % 5) / 4,
                              .written = written};
    const auto gone = entries_to_evict(all, sizes, references, limit);
    const std::set<const StoreEntry*> out(gone.begin(), gone.end());
    std::map<std::string, std::set<std::string>> held;
    std::map<std::string, bool> can;
    std::set<std::string> left;
    for (const StoreEntry& entry : entries) {
      if (out.contains(&entry)) {
        EXPECT_FALSE(entry.pinned || entry.parts.empty() || &entry == written);
        continue;
      }
      for (const std::string& hash : objects_of(entry)) {
        held[entry.tenant].insert(hash);
        left.insert(hash);
      }
      can[entry.tenant] |= !entry.pinned && !entry.parts.empty() && &entry != written;
    }
    const auto bytes_of = [&](const std::set<std::string>& hashes) {
      std::int64_t bytes = 0;
      for (const std::string& hash : hashes) {
        bytes += sizes.at(hash);
      }
      return bytes;
    };
    if (bytes_of(left) > limit.max_bytes) {
      for (const auto& [tenant, hashes] : held) {
        const bool own = held.size() == 1 || (written != nullptr && written->tenant == tenant);
        const std::int64_t share = limit.max_bytes / static_cast<std::int64_t>(held.size());
        EXPECT_FALSE(can[tenant] && (own || bytes_of(hashes) > share)) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace quire::kv_store
