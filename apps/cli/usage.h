// Help, and the message for a command line that is wrong.
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

// Returns the help of the command that the command line named, or of `app`.
[[nodiscard]] std::string help_of(const CLI::App& app);

// Returns the help of `command` itself, whatever the command line named.
[[nodiscard]] std::string help_text(const CLI::App& command);

// Returns the message for `word` in place of a command below `app`. It has the nearest right one,
// Quire's word for that of another tool, and all commands.
[[nodiscard]] std::string unknown_command(const CLI::App& app, const std::string& word);

// Returns unknown_command() of a word that nothing took and that should be a command, or "".
[[nodiscard]] std::string unknown_word(const CLI::App& app);

// Returns the message for a word of `written` that CLI11 takes for -h and more, such as "-hf": it
// is an unknown option. "" where there is none. `app` is the one that was asked for help.
[[nodiscard]] std::string unknown_help(const CLI::App& app, std::span<const char* const> written);

// Returns one line on the error. An unknown option or word comes before a missing one, with the
// nearest right one and the help to read. `app` is the one that has refused its command line.
[[nodiscard]] std::string usage_message(const CLI::App& app, const CLI::ParseError& error);

}  // namespace quire::cli
