// The commands of the `quire` program. Each add_x declares its arguments on `app`. When the command
// line names the command, parsing sets `action`, which main runs afterwards.
#pragma once

#include <functional>

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

// Exit codes of every command.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Runs the command and returns the exit code.
using Action = std::function<int()>;

void add_run(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_chunk(CLI::App& app, Action& action);
void add_compose(CLI::App& app, Action& action);
void add_script(CLI::App& app, Action& action);
void add_store(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
// Adds a command that reads the commands that `app` has by the time it runs, as the next function
// does.
void add_completion(CLI::App& app, Action& action);
void add_help(CLI::App& app, Action& action);
void add_version(CLI::App& app, Action& action);

}  // namespace quire::cli
