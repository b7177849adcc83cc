// Chunks named on a command line, and their composition: `compose`, and `run` with --chunk.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "quire/chunks.h"
#include "quire/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace quire::cli {

inline constexpr const char* kChunkHelp = "id, beginning of an id (4 digits or more), or name";

struct ComposeOptions {
  std::vector<std::string> chunks;   // ids, beginnings of ids, or names, in order
  std::optional<std::string> query;  // text, where none of the chunks is a query
  CompositionSpec spec;              // how; its ids come from the above
};

inline constexpr const char* kComposingGroup = "Composition";
// Adds one option for each way to compose, in that group.
void add_composing_options(CLI::App& command, CompositionSpec& spec);
// Adds --chunk, which may be repeated.
CLI::Option* add_chunk_option(CLI::App& command, std::vector<std::string>& chunks);

// Finds the chunk with this id, this beginning of an id (4 digits or more), or this name (its
// metadata "name"). `deleted`: names of chunks that were there. kInvalidArgument when several match
// or `reference` is empty, kNotFound when none does.
[[nodiscard]] Result<ChunkInfo> find_chunk(const ChunkedLLM& llm, const std::string& reference,
                                           const std::set<std::string>& deleted = {});
// Returns the chunk's name, or "".
[[nodiscard]] std::string name_of(const ChunkInfo& chunk);

struct Resolved {
  CompositionSpec spec;
  bool adds_query = false;  // the query's text became a chunk that was not there
};
// Returns `options.spec` with each chunk where its kind belongs; contexts keep their order. The
// query's text becomes a chunk.
[[nodiscard]] Result<Resolved> resolve(ChunkedLLM& llm, const ComposeOptions& options,
                                       const std::set<std::string>& deleted = {});

// Returns how many tokens running these chunks will compute, if somebody watches; else 0.
[[nodiscard]] std::int64_t expected_tokens(const ChunkedLLM& llm, const Resolved& composed);

}  // namespace quire::cli
