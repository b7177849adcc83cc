// The commands of `quire script` on one model, whose chunks live as long as the process:
// chunk add/list/show/pin/rm/clear, compose, run.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "interrupts.h"
#include "options.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace quire::cli {

struct ScriptSession {
  ChunkedLLM llm;
  Interrupts& interrupts;
  bool adds_to_store = false;  // what adds a chunk fails unless it is saved
  bool interrupted = false;    // a request of it, by Ctrl-C
};

inline constexpr const char* kChunkWords = "add|list|show|pin|rm|clear";

// What a command does once it is parsed.
using ScriptAction = std::function<Status(ScriptSession&)>;

// A command as a line, or as its words. Wrong usage is kInvalidArgument. `format`: of commands that
// name none.
[[nodiscard]] Result<ScriptAction> parse_command(std::string line, Format format);
[[nodiscard]] Result<ScriptAction> parse_command(std::vector<std::string> words, Format format);

// What a command takes, such as "chunk" with all that stand below it.
[[nodiscard]] std::string script_help(const std::string& name);

}  // namespace quire::cli
