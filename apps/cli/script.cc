// quire script: commands on chunks, line by line from a file or a pipe, on one loaded model.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "chunk.h"
#include "command.h"
#include "generate.h"
#include "interrupts.h"
#include "options.h"
#include "output.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/tools.h"
#include "utf8.h"

namespace quire::cli {
namespace {

struct ScriptOptions {
  std::string model;
  std::string file = "-";
  bool verbose = false;
  Format format = Format::kText;
  LLMOptions engine;
  ChunkCacheOptions chunks;
};

bool is_command(const std::string& line) {
  const std::size_t first = line.find_first_not_of(" \t\r");
  return first != std::string::npos && line[first] != '#';
}

Status execute(ScriptSession& session, const std::string& line, Format format) {
  QUIRE_TRY_STATUS(check_utf8(line, "the line"));
  QUIRE_TRY(const ScriptAction action, parse_command(line, format));
  return action(session);
}

int fail_reading(const std::string& file) {
  return fail({ErrorCode::kIo, "cannot read \"" + file + "\": " + std::strerror(errno)});
}

// Stops at the first command that fails: those behind it build on it.
int run_script(const ScriptOptions& options) {
  for (const Status& valid : {options.engine.validate(), options.chunks.validate()}) {
    if (!valid.ok()) {
      return fail_options(valid.error());
    }
  }
  Interrupts interrupts;
  std::ifstream file;
  if (options.file != "-") {
    file.open(expand_home(options.file));
    if (!file) {
      return fail_reading(options.file);
    }
  }
  std::istream& lines = options.file == "-" ? std::cin : file;
  auto llm = load_chunked(options.model, options.engine, options.chunks, options.verbose);
  if (!llm.ok()) {
    return fail(llm.error());
  }
  ScriptSession session{.llm = std::move(llm).value(), .interrupts = interrupts};
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const Status done = is_command(line) ? execute(session, line, options.format) : Status();
    if (!done.ok()) {
      Error error = done.error();
      error.message = "line " + std::to_string(number) + ": " + error.message;
      return fail_options(error);
    }
    if (session.interrupted) {
      return kExitInterrupted;
    }
  }
  // A folder opens, but cannot be read.
  return lines.bad() ? fail_reading(options.file) : kExitOk;
}

}  // namespace

void add_script(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("script", std::string("Do commands from a file or a pipe: chunk ") +
                                       kChunkWords + ", compose, run");
  auto options = std::make_shared<ScriptOptions>();
  add_model(*command, options->model);
  command->add_option("FILE", options->file, "file with one command a line; without it stdin");
  command->add_option("--max-chunks", options->chunks.max_chunks, "most chunks at a time");
  command->add_option("--chunk-memory-ratio", options->chunks.chunk_memory_ratio,
                      "share of the KV budget that chunks may hold, (0, 1]");
  command->add_flag("--verbose", options->verbose, "report the time of loading on stderr");
  add_format(*command, options->format);
  add_engine_options(*command, options->engine);
  command->get_option("--store")->description("directory where chunks live on");
  add_salt(*command, options->chunks.salt);
  command->callback([options, &action] { action = [options] { return run_script(*options); }; });
}

}  // namespace quire::cli
