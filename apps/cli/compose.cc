#include "compose.h"

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "options.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace quire::cli {

void add_composing_options(CLI::App& command, CompositionSpec& spec) {
  const std::string group = kComposingGroup;
  add_named<ReuseMode>(
      command, "--mode", &reuse_mode_name,
      {ReuseMode::kExact, ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kBlend},
      [&spec](ReuseMode mode) { spec.mode = mode; }, "what contexts have seen (anchored)")
      ->group(group);
  command
      .add_flag_callback(
          "--parallel", [&spec] { spec.positions = Positions::kParallel; },
          "all contexts start where the system chunk ends")
      ->group(group);
  command.add_flag("--without-system", spec.without_system, "compose without a system chunk")
      ->group(group);
  command.add_flag("--bos-sink", spec.bos_sink, "independent contexts have seen a BOS token too")
      ->group(group);
  // Values are set in the order in which options are added, so the mode is known by now.
  const auto blend_only = [&spec](const char* option) {
    if (spec.mode != ReuseMode::kBlend) {
      throw CLI::ValidationError(option, "belongs to --mode blend");
    }
  };
  command
      .add_option_function<double>(
          "--recompute",
          [&spec, blend_only](double share) {
            blend_only("--recompute");
            spec.blend.share = share;
          },
          "blend: share of the context tokens")
      ->group(group);
  add_named<Selector>(
      command, "--selector", &selector_name,
      {Selector::kQueryAttention, Selector::kValueDeviation, Selector::kFirst, Selector::kRandom,
       Selector::kAll, Selector::kNone},
      [&spec, blend_only](Selector selector) {
        blend_only("--selector");
        spec.blend.selector = selector;
      },
      "blend: which tokens")
      ->group(group);
  add_named<ReuseMode>(
      command, "--base", &reuse_mode_name, {ReuseMode::kAnchored, ReuseMode::kIndependent},
      [&spec, blend_only](ReuseMode base) {
        blend_only("--base");
        spec.blend.base = base;
      },
      "blend: mode of the other tokens")
      ->group(group);
}

CLI::Option* add_chunk_option(CLI::App& command, std::vector<std::string>& chunks) {
  return command.add_option("--chunk", chunks, std::string(kChunkHelp) + "; may be repeated")
      ->allow_extra_args(false);
}

std::string name_of(const ChunkInfo& chunk) {
  const boost::json::object metadata = boost::json::parse(chunk.metadata_json).get_object();
  const boost::json::value* name = metadata.if_contains("name");
  return name != nullptr && name->is_string() ? std::string(name->get_string()) : std::string();
}

Result<ChunkInfo> find_chunk(const ChunkedLLM& llm, const std::string& reference) {
  constexpr std::size_t kLeastDigits = 4;  // of an id's beginning, as everywhere
  if (reference.empty()) {                 // an unset variable of a shell, not a chunk without name
    return {ErrorCode::kInvalidArgument, "an empty text names no chunk; give its id or name"};
  }
  QUIRE_TRY(const auto chunks, llm.list_chunks());
  std::vector<const ChunkInfo*> named;
  std::vector<const ChunkInfo*> begins;
  for (const ChunkInfo& chunk : chunks) {
    if (name_of(chunk) == reference) {
      named.push_back(&chunk);
    }
    if (reference.size() >= kLeastDigits && chunk.chunk_id.starts_with(reference)) {
      begins.push_back(&chunk);
    }
  }
  const auto& found = named.empty() ? begins : named;
  if (found.size() == 1) {
    return *found.front();
  }
  if (found.empty()) {
    return llm.get_chunk(reference);  // says what became of it
  }
  return {ErrorCode::kInvalidArgument, "\"" + reference + "\" means " +
                                           std::to_string(found.size()) +
                                           " chunks; give more of the id"};
}

Result<CompositionSpec> resolve(ChunkedLLM& llm, const ComposeOptions& options) {
  CompositionSpec spec = options.spec;
  for (const std::string& reference : options.chunks) {
    QUIRE_TRY(const ChunkInfo chunk, find_chunk(llm, reference));
    if (chunk.type == ChunkType::kContext) {
      spec.context_chunk_ids.push_back(chunk.chunk_id);
      continue;
    }
    std::string& place =
        chunk.type == ChunkType::kQuery ? spec.query_chunk_id : spec.system_chunk_id;
    if (!place.empty()) {
      return {ErrorCode::kInvalidComposition, "\"" + reference + "\" is a second " +
                                                  chunk_type_name(chunk.type) +
                                                  " chunk; a composition has exactly one"};
    }
    place = chunk.chunk_id;
  }
  if (spec.without_system && !spec.system_chunk_id.empty()) {
    return {ErrorCode::kInvalidArgument,
            "--without-system stands beside a system chunk; leave one of them out"};
  }
  if (options.query && !spec.query_chunk_id.empty()) {
    return {ErrorCode::kInvalidComposition, "give either the query's text or a query chunk"};
  }
  if (!options.query && spec.query_chunk_id.empty()) {
    return {ErrorCode::kInvalidComposition,
            "a composition has exactly one query; name a query chunk, or give run its text"};
  }
  if (spec.system_chunk_id.empty() && !spec.without_system) {
    return {ErrorCode::kInvalidComposition,
            "a composition has exactly one system chunk; name one, or give --without-system"};
  }
  if (options.query) {
    QUIRE_TRY(spec.query_chunk_id,
              llm.register_chunk({.content = *options.query, .type = ChunkType::kQuery}));
  }
  return spec;
}

}  // namespace quire::cli
