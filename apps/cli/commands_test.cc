// The table of commands and how lines are cut. What commands do: tests/scripts.
#include "commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "quire/result.h"

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Command with_usage(std::string_view usage) {
  return {.name = "do", .usage = usage, .help = "", .more = "", .run = nullptr};
}

bool accepts(std::string_view usage, std::string_view rest) {
  return parse_arguments(with_usage(usage), rest).ok();
}

TEST(Commands, AreFoundByTheirOnlyName) {
  const std::vector<std::string> names = command_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    const Command* command = find_command(name);
    ASSERT_NE(command, nullptr);
    EXPECT_THAT(usage_of(*command), HasSubstr("/" + name));
    EXPECT_FALSE(command->help.empty()) << name;
    EXPECT_TRUE(command->more.empty() || command->more.ends_with('\n')) << name;
  }
  EXPECT_EQ(find_command(""), nullptr);
  EXPECT_EQ(find_command("sho"), nullptr);
}

TEST(Commands, TakeAsManyWordsAsTheirUsageSays) {
  EXPECT_TRUE(accepts("", " \t"));
  EXPECT_FALSE(accepts("", "a"));
  EXPECT_TRUE(accepts("ID TAG", " a  b "));
  EXPECT_FALSE(accepts("ID TAG", "a"));
  EXPECT_FALSE(accepts("ID TAG", "a b c"));
  EXPECT_TRUE(accepts("[ID]", ""));
  EXPECT_FALSE(accepts("[ID]", "a b"));
  EXPECT_TRUE(accepts("ID...", "a b c"));
  EXPECT_FALSE(accepts("ID...", ""));
  EXPECT_TRUE(accepts("[ID...]", ""));
}

TEST(Commands, TakeTextAsItStands) {
  const Command add = with_usage("[name=NAME] TEXT");
  const Arguments named = parse_arguments(add, " name=ada  two  words name=x --y ").value();
  EXPECT_EQ(named.name, "ada");
  EXPECT_EQ(named.text, "two  words name=x --y");
  EXPECT_THAT(named.words, IsEmpty());
  for (const char* nameless : {"name=", "name= x", "name=ada name= x"}) {
    EXPECT_FALSE(accepts("[name=NAME] TEXT", nameless)) << nameless;
  }
  EXPECT_EQ(parse_arguments(with_usage("TEXT"), "name= x").value().text, "name= x");
  EXPECT_FALSE(accepts("[name=NAME] TEXT", " name=ada "));
  const Arguments set = parse_arguments(with_usage("[SETTING] [TEXT]"), "stop a b").value();
  EXPECT_THAT(set.words, ElementsAre("stop"));
  EXPECT_EQ(set.text, "a b");
  EXPECT_TRUE(accepts("[SETTING] [TEXT]", ""));
}

TEST(Commands, KnowTheirFlagsOnly) {
  const Arguments arguments = parse_arguments(with_usage("ID... [--drop]"), "a --drop b").value();
  EXPECT_THAT(arguments.words, ElementsAre("a", "b"));
  EXPECT_THAT(arguments.flags, ElementsAre("--drop"));
  const auto refused = parse_arguments(with_usage("ID... [--drop]"), "a --fast");
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("/do ID... [--drop]"));
  EXPECT_FALSE(accepts("ID... [--drop]", "--drop"));
}

}  // namespace
}  // namespace quire::cli
