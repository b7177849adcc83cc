#include "keys.h"

#include <gtest/gtest.h>

#include <string>

namespace quire::server {
namespace {

TEST(Keys, FilesOfKeysSayWhoAsks) {
  KeyTable keys;
  const std::string digest = hash_key("k");
  EXPECT_EQ(digest, "8254c329a92850f6d539dd376f4816ee2764517da5e0235514af433164480d7a");
  ASSERT_TRUE(keys.add_json(R"({"keys":[{"sha256":")" + digest +
                                R"(","tenant":"ada","role":"user","limits":{"rpm":5}}]})",
                            "f")
                  .ok());
  ASSERT_NE(keys.find("k"), nullptr);
  EXPECT_EQ(keys.find("k")->tenant, "ada");
  EXPECT_EQ(keys.find("k")->role, Role::kUser);
  EXPECT_EQ(keys.find("k")->limits.rpm, 5);
  EXPECT_EQ(keys.find("other"), nullptr);
  EXPECT_FALSE(keys.add_key("k").ok());  // tenant default, too
  for (const char* bad : {"", "[]", "{}", R"({"keys":[]})", R"({"keys":[{}]})",
                          R"({"keys":[{"sha256":"12","tenant":"a"}]})",
                          R"({"keys":[{"tenant":"a"}]})", R"({"keys":1})"}) {
    KeyTable table;
    EXPECT_FALSE(table.add_json(bad, "f").ok()) << bad;
  }
  KeyTable lines;
  EXPECT_TRUE(lines.add_lines("a\r\n\n b \n", "f").ok());
  EXPECT_NE(lines.find("b"), nullptr);
  EXPECT_FALSE(KeyTable().add_lines("\n", "f").ok());
  EXPECT_FALSE(KeyTable().add_lines("two words\n", "f").ok());
}

}  // namespace
}  // namespace quire::server
