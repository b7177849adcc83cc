// The commands of `quire chat`, declared to CLI11 like those of the program. Parsing, hints, /help
// and completion read one tree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

class Repl;

// Holds the arguments of one command, which fills the fields that it declares.
struct Arguments {
  std::vector<std::string> ids;   // items
  std::string word;               // a branch, a setting or a tag
  std::string text;               // the rest of the line
  std::string name;               // NAME of name=NAME
  bool flag = false;              // the command's only one
  std::int32_t number = 0;        // a whole number
  std::optional<double> seconds;  // a time
};

using ChatWork = Status (*)(Repl&, const Arguments&);

// A line once it is parsed.
struct ParsedLine {
  ChatWork work = nullptr;
  Arguments arguments;
};

// Says whether an argument may be left out.
enum class Presence : std::uint8_t { kRequired, kOptional };

// One command while it is declared. Each call adds an argument behind those before it.
class LineCommand {
 public:
  LineCommand(CLI::App& command, std::shared_ptr<Arguments> to)
      : command_(command), to_(std::move(to)) {}

  LineCommand& ids(Presence presence = Presence::kRequired);  // ID...
  LineCommand& id(Presence presence = Presence::kRequired);   // ID
  // Adds an argument with this name. "ID", "COMMAND", "SETTING", "BRANCH", "CHECKPOINT" and "FILE"
  // also say what completion offers.
  LineCommand& word(const char* name, Presence presence = Presence::kOptional);
  // Adds the rest of the line, as it stands, as the last argument. Quotes in it stay, and --help in
  // it is text.
  LineCommand& text(const char* name, Presence presence = Presence::kRequired);
  LineCommand& name();  // --name NAME, and name=NAME for short
  LineCommand& flag(const char* option, const char* help);
  LineCommand& number();                 // NUMBER
  LineCommand& seconds();                // [SECONDS]
  LineCommand& more(const char* lines);  // lines that /help NAME adds

 private:
  CLI::App& command_;
  std::shared_ptr<Arguments> to_;
};

// Declares all commands anew for each line, because CLI11 leaves in its tree what it has parsed.
class LineCommands {
 public:
  LineCommands();
  ~LineCommands();
  LineCommands(const LineCommands&) = delete;
  LineCommands& operator=(const LineCommands&) = delete;

  // Declares a command of the group that was begun last.
  LineCommand add(const char* name, const char* help, ChatWork work);
  void begin_group(const char* group) { group_ = group; }

  // Parses a line without its slash, once. kInvalidArgument with the message that a command line
  // would get.
  [[nodiscard]] Result<ParsedLine> parse(std::string_view line);

  // Returns the tree of all commands.
  [[nodiscard]] const CLI::App& app() const { return *app_; }
  // Returns all names, without the slash.
  [[nodiscard]] std::vector<std::string> names() const;
  // Returns whether an argument of the command is called so. False where there is no such command.
  [[nodiscard]] bool takes(std::string_view command, std::string_view argument) const;
  // Returns a line for each command of the group: "/tag ID TAG", and what it does.
  [[nodiscard]] std::string table(const char* group) const;
  // Returns all about one command. kNotFound.
  [[nodiscard]] Result<std::string> help(const std::string& name) const;

 private:
  std::unique_ptr<CLI::App> app_;
  std::string group_;
  ParsedLine parsed_;
};

inline constexpr const char* kTalkGroup = "Conversation";
inline constexpr const char* kItemGroup = "Items";
// Declares the commands of the conversation; the next function declares those of items. Call both
// in the order of /help.
void declare_talk_commands(LineCommands& commands);
void declare_item_commands(LineCommands& commands);

// Characters between words.
inline constexpr std::string_view kBlanks = " \t\r";
// Returns the text without the blanks at both ends.
[[nodiscard]] std::string_view trimmed(std::string_view text);

}  // namespace quire::cli
