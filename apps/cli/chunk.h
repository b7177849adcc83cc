// The commands of `quire script` on one model, whose chunks live as long as the process:
// chunk add/list/show/pin/rm/clear/stats, compose, run.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "interrupts.h"
#include "options.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace quire::cli {

struct ScriptSession {
  ChunkedLLM llm;
  Interrupts& interrupts;
  Format format = Format::kText;  // of commands that name none
  bool interrupted = false;       // a request of it, by Ctrl-C
};

// What a command of a script does once its line is parsed.
using ScriptAction = std::function<Status()>;

// Declares the commands on `app`. The one that the line names leaves in `action` what is to be
// done. `session` and `action` must outlive the parsing and the doing.
void add_script_commands(CLI::App& app, ScriptSession& session, ScriptAction& action);

// The chunk with this id, this beginning of an id, or this name (its metadata "name").
// kInvalidArgument when several have it, kNotFound when none has.
[[nodiscard]] Result<ChunkInfo> find_chunk(const ChunkedLLM& llm, const std::string& reference);

}  // namespace quire::cli
