// Help, and what is said of a command line that cannot be done.
#pragma once

#include <span>
#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace quire::cli {

// The name of the program, and of the app that holds its commands.
inline constexpr const char* kProgram = "quire";
// The name of the app that holds the commands of a chat.
inline constexpr const char* kChatName = "/";

// Returns how a command is written: "quire run [OPTIONS] MODEL [PROMPT]", "/pin ID... [--off]".
[[nodiscard]] std::string synopsis(const CLI::App& command);

// Returns the help of the command that was named, or of `app`.
[[nodiscard]] std::string help_of(const CLI::App& app);

// Returns the help of `command` itself, whatever was named.
[[nodiscard]] std::string help_text(const CLI::App& command);

// Returns what to say where `word` stands in place of a command below `app`: the nearest right one,
// what there is for a word of another tool, and all commands.
[[nodiscard]] std::string unknown_command(const CLI::App& app, const std::string& word);

// Returns unknown_command of a word that nothing took and that should be a command; "" without one.
[[nodiscard]] std::string unknown_word(const CLI::App& app);

// Returns what to say of a word of `written` that CLI11 takes for -h and more, as "-hf": it is an
// unknown option. "" without one. `app` is the one that was asked for help.
[[nodiscard]] std::string unknown_help(const CLI::App& app, std::span<const char* const> written);

// Returns what is wrong, in one line: an unknown option or word before what is missing, with the
// nearest right one and the help to read. `app` is the one that has refused its command line.
[[nodiscard]] std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace quire::cli
