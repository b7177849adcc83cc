// How the commands of a chat are declared and how lines are cut. Scripts in tests/scripts test what
// commands do.
#include "commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "quire/result.h"

namespace quire::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Declare = std::function<void(LineCommand)>;

// Parses a line of the command /do.
Result<ParsedLine> parse(const Declare& declare, const std::string& rest) {
  LineCommands commands;
  declare(commands.add("do", "does", nullptr));
  return commands.parse("do " + rest);
}

bool accepts(const Declare& declare, const std::string& rest) { return parse(declare, rest).ok(); }

std::string refused(const Declare& declare, const std::string& rest) {
  const auto parsed = parse(declare, rest);
  EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
  return parsed.error().message;
}

void nothing(LineCommand /*command*/) {}
void id_and_tag(LineCommand command) { command.id().word("TAG", Presence::kRequired); }
void an_id_or_none(LineCommand command) { command.id(Presence::kOptional); }
void some_ids(LineCommand command) { command.ids(); }
void ids_or_none(LineCommand command) { command.ids(Presence::kOptional); }
void name_and_text(LineCommand command) { command.name().text("TEXT"); }
void just_text(LineCommand command) { command.text("TEXT"); }
void setting_and_text(LineCommand command) {
  command.word("SETTING").text("TEXT", Presence::kOptional);
}
void ids_and_drop(LineCommand command) { command.ids().flag("--drop", "drops"); }

TEST(Commands, AreFoundByTheirOnlyName) {
  const LineCommands commands;
  const std::vector<std::string> names = commands.names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    const std::string help = commands.help(name).value();
    EXPECT_TRUE(help.starts_with("/" + name + " ")) << help;
    EXPECT_TRUE(help.ends_with('\n')) << help;
    EXPECT_FALSE(help.ends_with("  \n")) << "no word on what it does: " << help;
  }
  EXPECT_EQ(commands.help("").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(commands.help("sho").error().code, ErrorCode::kNotFound);
}

TEST(Commands, TakeAsManyWordsAsTheyDeclare) {
  EXPECT_TRUE(accepts(nothing, " \t"));
  EXPECT_FALSE(accepts(nothing, "a"));
  EXPECT_TRUE(accepts(id_and_tag, " a  b "));
  EXPECT_FALSE(accepts(id_and_tag, "a"));
  EXPECT_FALSE(accepts(id_and_tag, "a b c"));
  EXPECT_TRUE(accepts(an_id_or_none, ""));
  EXPECT_FALSE(accepts(an_id_or_none, "a b"));
  EXPECT_TRUE(accepts(some_ids, "a b c"));
  EXPECT_FALSE(accepts(some_ids, ""));
  EXPECT_TRUE(accepts(ids_or_none, ""));
}

TEST(Commands, TakeTextAsItStands) {
  const Arguments named =
      parse(name_and_text, " name=ada  two  words name=x --y ").value().arguments;
  EXPECT_EQ(named.name, "ada");
  EXPECT_EQ(named.text, "two  words name=x --y");
  EXPECT_THAT(named.ids, IsEmpty());
  for (const char* nameless : {"name=", "name= x", "name=ada name= x"}) {
    EXPECT_FALSE(accepts(name_and_text, nameless)) << nameless;
  }
  EXPECT_EQ(parse(just_text, "name= x").value().arguments.text, "name= x");
  for (const char* text : {"--help", "-h me", "-- x", "--", "'tis \"so", "[a, b]", "{}", "do x"}) {
    EXPECT_EQ(parse(just_text, text).value().arguments.text, text);
  }
  EXPECT_FALSE(accepts(name_and_text, " name=ada "));
  const Arguments set = parse(setting_and_text, "stop a b").value().arguments;
  EXPECT_EQ(set.word, "stop");
  EXPECT_EQ(set.text, "a b");
  EXPECT_EQ(parse(setting_and_text, "stop -1").value().arguments.text, "-1");
  EXPECT_TRUE(accepts(setting_and_text, ""));
}

TEST(Commands, TakeANameInBothSpellings) {
  for (const char* line : {"name=ada text", "--name ada text", "--name=ada text"}) {
    const Arguments named = parse(name_and_text, line).value().arguments;
    EXPECT_EQ(named.name, "ada") << line;
    EXPECT_EQ(named.text, "text") << line;
  }
}

TEST(Commands, TakeQuotesOffWordsButNotOffText) {
  EXPECT_THAT(parse(some_ids, "'two words' it's").value().arguments.ids,
              ElementsAre("two words", "it's"));
  EXPECT_THAT(refused(some_ids, "a 'b c"), HasSubstr("the quote ' is not closed"));
  EXPECT_EQ(parse(just_text, "'two words'").value().arguments.text, "'two words'");
}

TEST(Commands, KnowTheirFlagsOnly) {
  const Arguments arguments = parse(ids_and_drop, "a --drop b").value().arguments;
  EXPECT_THAT(arguments.ids, ElementsAre("a", "b"));
  EXPECT_TRUE(arguments.flag);
  EXPECT_FALSE(accepts(ids_and_drop, "a --fast"));
  EXPECT_FALSE(accepts(ids_and_drop, "--drop"));
}

TEST(Commands, AreRefusedInTheWordsOfTheCommandLine) {
  EXPECT_EQ(refused(ids_and_drop, "a --drap"),
            "unknown option \"--drap\"; did you mean --drop?; see /help do");
  EXPECT_EQ(refused(ids_and_drop, ""), "ID is required: /do ID... [--drop]; see /help do");
  EXPECT_EQ(refused(name_and_text, "name=ada"),
            "TEXT is required: /do [name=NAME] TEXT; see /help do");
  EXPECT_THAT(refused(an_id_or_none, "a b"),
              HasSubstr("\"b\" is one argument too many: /do [ID]; "));
  LineCommands commands;
  EXPECT_EQ(commands.parse("forgt").error().message,
            "unknown command \"/forgt\"; did you mean /forget? /help lists them");
  EXPECT_EQ(commands.parse("BYE").error().message,
            "unknown command \"/BYE\"; did you mean /bye? /help lists them");
}

TEST(Commands, ShowTheirHelpWhenALineAsksForIt) {
  LineCommands commands;
  commands.add("do", "does", nullptr).ids().more("More.\n");
  EXPECT_EQ(commands.parse("do a --help").value().arguments.text, "/do ID...  does\nMore.\n");
}

TEST(Commands, SayWhatCompletionOffers) {
  const LineCommands commands;
  EXPECT_TRUE(commands.takes("show", "ID"));
  EXPECT_TRUE(commands.takes("system", "FILE"));
  EXPECT_FALSE(commands.takes("list", "ID"));
  EXPECT_FALSE(commands.takes("nobody", "ID"));
}

}  // namespace
}  // namespace quire::cli
