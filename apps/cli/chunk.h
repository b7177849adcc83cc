// The commands of `quire script` on one model, whose chunks live as long as the process:
// chunk add/list/show/pin/rm/clear/stats, compose, run.
#pragma once

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
  Format format = Format::kText;  // of commands that name none
  bool interrupted = false;       // a request of it, by Ctrl-C
};

// Does one command. Wrong usage is kInvalidArgument.
[[nodiscard]] Status execute(ScriptSession& session, const std::string& line);
[[nodiscard]] Status execute(ScriptSession& session, std::vector<std::string> words);

// The chunk with this id, this beginning of an id, or this name (its metadata "name").
// kInvalidArgument when several have it, kNotFound when none has.
[[nodiscard]] Result<ChunkInfo> find_chunk(const ChunkedLLM& llm, const std::string& reference);

}  // namespace quire::cli
