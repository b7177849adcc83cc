// The commands of `quire chat` as data: dispatch, /help and completion read the same table.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"

namespace quire::cli {

class Repl;

// What stands behind a command, cut as its usage says.
struct Arguments {
  std::vector<std::string> words;
  std::string text;             // of usages that end with TEXT: the rest of the line
  std::string name;             // of name=NAME
  std::set<std::string> flags;  // "--drop"
};

struct Command {
  std::string_view name;  // without the slash
  // Words between blanks: X is required, [X] may be left out, X... may be repeated; TEXT takes the
  // rest of the line. [--x] and [name=NAME] may be left out too; with TEXT they stand before it.
  // The words ID, COMMAND, SETTING, BRANCH, CHECKPOINT and FILE also say what completion offers.
  std::string_view usage;
  std::string_view help;  // one line
  std::string_view more;  // what /help NAME adds; "" or lines
  Status (*run)(Repl& repl, const Arguments& arguments);
};

// The commands, in the order of /help: of items, of the conversation.
[[nodiscard]] std::span<const Command> item_commands();
[[nodiscard]] std::span<const Command> talk_commands();

// Null if there is none.
[[nodiscard]] const Command* find_command(std::string_view name);
// All names, without the slash.
[[nodiscard]] std::vector<std::string> command_names();
// "/tag ID TAG"
[[nodiscard]] std::string usage_of(const Command& command);

// Between words.
inline constexpr std::string_view kBlanks = " \t\r";
// Returns the text without the blanks at both ends.
[[nodiscard]] std::string_view trimmed(std::string_view text);

// kInvalidArgument naming the usage.
[[nodiscard]] Result<Arguments> parse_arguments(const Command& command, std::string_view rest);

}  // namespace quire::cli
