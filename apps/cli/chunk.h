// The commands of `quire script` on one model, whose chunks live as long as the process:
// chunk add/list/show/pin/rm/clear, compose, run.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "interrupts.h"
#include "options.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace CLI {
class App;
}  // namespace CLI

namespace quire::cli {

struct ScriptSession {
  ChunkedLLM llm;
  Interrupts& interrupts;
  bool adds_to_store = false;          // a command that adds a chunk fails unless it is saved
  bool interrupted = false;            // Ctrl-C has ended a request of it
  std::set<std::string> deleted = {};  // names of chunks that it has deleted
};

inline constexpr const char* kChunkWords = "add|list|show|pin|update|rm|clear";

// Runs a parsed command.
using ScriptAction = std::function<Status(ScriptSession&)>;

// Parses a line into its command. `format` is that of commands that name none. kInvalidArgument for
// wrong usage.
[[nodiscard]] Result<ScriptAction> parse_command(const std::string& line, Format format);

// Declares the commands of a script below `app` as commands of the program, each with MODEL first:
// those of `chunk`, and `compose`. Parsing sets `model` and `action`, which must outlive `app`.
void declare_stored_chunk(CLI::App& app, std::string& model, ScriptAction& action);
void declare_stored_compose(CLI::App& app, std::string& model, ScriptAction& action);

}  // namespace quire::cli
