// Chunks of several tenants in one registry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_registry_scene.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using testing::HasSubstr;

// A chunk of a tenant: two tenants have no id in common.
class TenantsTest : public ChunkRegistryTest {
 protected:
  TenantsTest() : ChunkRegistryTest(4, 6) {}

  static NewChunk of(const std::string& salt, char name, std::size_t tokens = 4,
                     ChunkType type = ChunkType::kContext) {
    NewChunk made = chunk(name, tokens, type);
    made.salt = salt;
    return made;
  }
  // Registered without KV.
  void add_ids(NewChunk what) {
    const std::string id = what.id;
    ASSERT_TRUE(registry.begin(std::move(what), std::nullopt).ok());
    registry.finish(id);
    pass(1);
  }
  std::string names(const std::string& salt) {
    std::string names;
    for (const Chunk* chunk : registry.list(salt)) {
      names += chunk->content;
    }
    return names;
  }
};

TEST_F(TenantsTest, OnesChunkIsForAnotherAsOneThatNeverWas) {
  add(of("ada", 'a'));
  EXPECT_TRUE(registry.get(id_of('a'), "ada").ok());
  for (const char* const other : {"", "bob"}) {
    EXPECT_EQ(registry.find(id_of('a'), other), nullptr);
    EXPECT_THAT(registry.get(id_of('a'), other).error().message, HasSubstr("never registered"));
    EXPECT_EQ(registry.update(id_of('a'), other, {.pinned = true}).error().code,
              ErrorCode::kNotFound);
    EXPECT_EQ(registry.clear(other, std::nullopt), 0);
    EXPECT_EQ(registry.evict_unused(other, 0), 0);
    EXPECT_EQ(registry.counts(other).bytes, 0);
  }
  EXPECT_EQ(registry.clear("ada", std::nullopt), 1);
  EXPECT_THAT(registry.get(id_of('a'), "ada").error().message, HasSubstr("cleared"));
  EXPECT_THAT(registry.get(id_of('a'), "").error().message, HasSubstr("never registered"));
}

TEST_F(TenantsTest, EachHasASystemChunkOfItsOwnAndATemporaryOneIsNobodys) {
  const ChunkType system = ChunkType::kSystemPrompt;
  add(of("ada", 'a', 4, system));
  add(of("bob", 'b', 4, system));
  NewChunk temporary = of("ada", 'c', 4, system);
  temporary.temporary = true;
  add(temporary);
  EXPECT_EQ(registry.last_system("ada"), id_of('a'));
  EXPECT_EQ(registry.last_system("bob"), id_of('b'));
  EXPECT_EQ(registry.last_system(""), "");
  registry.merge(of("ada", 'c', 4, system));
  EXPECT_EQ(registry.last_system("ada"), id_of('c')) << "registered to stay meanwhile";
}

TEST_F(TenantsTest, TheNumberOfChunksIsEachOnesOwn) {
  for (const char name : {'a', 'b', 'c'}) {
    add_ids(of("ada", name));
  }
  for (const char name : {'p', 'q', 'r', 's', 't', 'u'}) {
    add_ids(of("bob", name));
  }
  EXPECT_EQ(names("ada"), "abc");
  EXPECT_EQ(names("bob"), "rstu");
  EXPECT_EQ(registry.counts("bob").evictions, 2);
  EXPECT_EQ(registry.counts("ada").evictions, 0);
}

TEST_F(TenantsTest, WhoHoldsMostGivesWayAndNobodyBelowAnEqualShare) {
  add(of("ada", 'a'));
  add(of("ada", 'b'));
  add(of("bob", 'p'));
  add(of("bob", 'q', 8));
  add(of("bob", 'r'));  // two of ada's, four of bob's, six in all
  add(of("bob", 's'));
  EXPECT_EQ(names("ada"), "ab") << "bob holds most";
  EXPECT_EQ(names("bob"), "qrs");
  add(of("ada", 'c'));
  EXPECT_EQ(names("ada"), "abc") << "up to her share of three";
  EXPECT_EQ(names("bob"), "rs");
  add(of("ada", 'd'));
  EXPECT_EQ(names("ada"), "abcd") << "there was room";
  add(of("bob", 't'));
  EXPECT_EQ(names("bob"), "rst") << "and she holds more than her share";
  EXPECT_EQ(names("ada"), "bcd");
}

TEST_F(TenantsTest, NobodyIsEvictedForOneThatCannotFit) {
  add(of("ada", 'a', 12));
  ASSERT_TRUE(registry.update(id_of('a'), "ada", {.pinned = true}).ok());
  add(of("bob", 'p', 8));
  const Status refused =
      registry.room().make_room({.salt = "cleo", .chunks = 1, .bytes = 4 * kBlockBytes});
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(names("ada") + names("bob"), "ap");
}

}  // namespace
}  // namespace quire::kv
