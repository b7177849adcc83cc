#include "quire/kv/chunk_id.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<TokenId>;

TEST(ChunkId, EverythingThatDecidesTheKVChangesIt) {
  const ChunkIdentity plain{.model = "m", .salt = "s", .anchor = "a", .serial = "1"};
  std::set<std::string> ids;
  ids.insert(chunk_id(plain, Tokens{1, 2}));
  std::vector<ChunkIdentity> others(5, plain);
  others[0].model = "m2";
  others[1].salt = "";
  others[2].anchor = "";
  others[3].type = ChunkType::kQuery;
  others[4].serial = "2";
  for (const ChunkIdentity& other : others) {
    ids.insert(chunk_id(other, Tokens{1, 2}));
  }
  ids.insert(chunk_id(plain, Tokens{1, 3}));
  ids.insert(chunk_id(plain, Tokens{1}));
  ids.insert(chunk_id(plain, Tokens{}));
  EXPECT_EQ(ids.size(), 9U);
  EXPECT_TRUE(ids.contains(chunk_id(plain, Tokens{1, 2}))) << "and nothing else does";
}

TEST(ChunkId, FieldsDoNotRunIntoEachOther) {
  const ChunkIdentity ab{.model = "ab", .salt = "c"};
  const ChunkIdentity a{.model = "a", .salt = "bc"};
  EXPECT_NE(chunk_id(ab, Tokens{1}), chunk_id(a, Tokens{1}));
  const ChunkIdentity same{.model = "m"};
  EXPECT_NE(chunk_text_id(same, {.prefix = "x", .suffix = "y"}, "z"),
            chunk_text_id(same, {.prefix = "", .suffix = "xy"}, "z"));
  EXPECT_NE(chunk_text_id(same, {.prefix = "x"}, "z"), chunk_text_id(same, {}, "xz"));
  EXPECT_NE(chunk_text_id(same, {}, ""), chunk_id(same, Tokens{})) << "text is no list of ids";
}

// Expected: Python's hashlib over "quire chunk 1", "m", "s", "", "context", "" and the ids as
// little-endian int32, each behind its length as little-endian uint64.
TEST(ChunkId, IsTheSameInEveryProcess) {
  const std::string id = chunk_id({.model = "m", .salt = "s"}, Tokens{1, 2, 3});
  EXPECT_EQ(id.size(), 64U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(id, "ff0544d25c76ebf544939145d1f2f3f83ce15bf8695214679763804afd6b27ad");
}

}  // namespace
}  // namespace quire::kv
