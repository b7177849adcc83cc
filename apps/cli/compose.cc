#include "compose.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "options.h"
#include "progress.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace quire::cli {
namespace {

constexpr double kBlendShare = 0.15;  // share of mode blend where none is given, as in Python

// Returns all of `text` as a share; nullopt for anything else.
std::optional<double> parse_share(const std::string& text) {
  double share = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, share);
  const bool fits = error == std::errc() && stop == end && share >= 0 && share <= 1;
  return fits ? std::optional(share) : std::nullopt;
}

void require(bool holds, const char* option, const std::string& otherwise) {
  if (!holds) {
    throw CLI::ValidationError(option, otherwise);
  }
}

// Options of a composition, in the order of their needs. Values are set in the order in which
// options are added, so each finds those that it depends on.
class Composing {
 public:
  Composing(CLI::App& command, CompositionSpec& spec) : command_(command), spec_(spec) {}

  void add_all() {
    add_modes("--mode", "what contexts have seen (anchored)",
              {ReuseMode::kExact, ReuseMode::kAnchored, ReuseMode::kIndependent, ReuseMode::kBlend},
              [&spec = spec_](ReuseMode mode) { spec.mode = mode; });
    add_places();
    grouped(command_.add_flag("--without-system", spec_.without_system,
                              "compose without a system chunk"));
    add_flag("--bos-sink", "independent: contexts have seen a BOS token too", [&spec = spec_] {
      require(spec.mode == ReuseMode::kIndependent, "--bos-sink", "belongs to --mode independent");
      spec.bos_sink = true;
    });
    add_blend();
    add_flag("--computed-in-place", "anchored: contexts are computed where they stand",
             [&spec = spec_] {
               const bool blends = spec.mode == ReuseMode::kBlend;
               require((blends ? spec.blend.base : spec.mode) == ReuseMode::kAnchored,
                       "--computed-in-place", "belongs to --mode anchored, or blend on that base");
               spec.computed_in_place = true;
             });
  }

 private:
  static CLI::Option* grouped(CLI::Option* option) { return option->group(kComposingGroup); }

  void add_modes(const char* option, const char* help, std::initializer_list<ReuseMode> modes,
                 const std::function<void(ReuseMode)>& set) {
    grouped(add_named<ReuseMode>(command_, option, &reuse_mode_name, modes, set, help));
  }

  void add_flag(const char* option, const char* help, const std::function<void()>& set) {
    grouped(command_.add_flag_callback(option, set, help));
  }

  void add_text(const char* option, const char* value, const char* help,
                const std::function<void(const std::string&)>& set) {
    grouped(command_.add_option_function<std::string>(option, set, help)->option_text(value));
  }

  static void check_moves(const CompositionSpec& spec, const char* option) {
    const bool in_line = spec.mode == ReuseMode::kExact || spec.mode == ReuseMode::kBlend;
    require(!in_line || spec.positions == Positions::kConcat, option,
            std::string("--mode ") + reuse_mode_name(spec.mode) +
                " is defined for concat only; choose --mode anchored or independent");
  }

  static void set_positions(CompositionSpec& spec, const std::string& text) {
    if (text == "parallel") {
      spec.positions = Positions::kParallel;
    } else if (text != "concat") {
      auto starts = parse_list(text);
      require(
          starts.has_value(), "--positions",
          "want concat, parallel, or the start of each segment as 0,16,40, got \"" + text + '"');
      spec.positions = Positions::kFixed;
      spec.fixed = std::move(*starts);  // NOLINT(bugprone-unchecked-optional-access): required
    }
    check_moves(spec, "--positions");
  }

  void add_places() {
    add_text("--positions", "concat|parallel|START,...",
             "where segments stand: one after the other (concat), all contexts where the system "
             "chunk ends, or the start of each, system and query included",
             [&spec = spec_](const std::string& text) { set_positions(spec, text); });
    add_flag("--parallel", "short for --positions parallel", [&spec = spec_] {
      spec.positions = Positions::kParallel;
      check_moves(spec, "--parallel");
    });
    command_.get_option("--parallel")->excludes("--positions");
  }

  static void blend_only(const CompositionSpec& spec, const char* option) {
    require(spec.mode == ReuseMode::kBlend, option, "belongs to --mode blend");
  }

  static void set_recomputed(Blend& blend, bool selects, const std::string& text) {
    const bool listed = blend.selector == Selector::kExplicit || text.find(',') != text.npos;
    if (!listed) {
      const auto share = parse_share(text);
      require(share.has_value(), "--recompute",
              "want a share from 0 to 1, or indices of tokens as 12,13,40, got \"" + text + '"');
      blend.share = share.value_or(0);
      return;
    }
    require(!selects || blend.selector == Selector::kExplicit, "--recompute",
            std::string("lists tokens; --selector ") + selector_name(blend.selector) +
                " would choose others: leave it out, or give a share");
    auto tokens = parse_list(text);
    require(tokens.has_value(), "--recompute",
            "want indices of tokens as 12,13,40, got \"" + text + '"');
    blend.selector = Selector::kExplicit;
    blend.tokens = std::move(*tokens);  // NOLINT(bugprone-unchecked-optional-access): required
  }

  void add_blend() {
    spec_.blend.share = kBlendShare;
    const auto given = [&command = command_](const char* option) {
      return command.get_option(option)->count() > 0;
    };
    grouped(add_named<Selector>(
        command_, "--selector", &selector_name,
        {Selector::kQueryAttention, Selector::kValueDeviation, Selector::kFirst, Selector::kRandom,
         Selector::kAll, Selector::kNone, Selector::kExplicit},
        [&spec = spec_, given](Selector selector) {
          blend_only(spec, "--selector");
          require(selector != Selector::kExplicit || given("--recompute"), "--selector",
                  "explicit wants --recompute with indices of tokens as 12,13,40");
          spec.blend.selector = selector;
        },
        "blend: which tokens (query_attn)"));
    add_text("--recompute", "SHARE|INDEX,...",
             "blend: share of the context tokens (0.15), or tokens by their index in the "
             "composition, which is --selector explicit",
             [&spec = spec_, given](const std::string& text) {
               blend_only(spec, "--recompute");
               set_recomputed(spec.blend, given("--selector"), text);
             });
    grouped(command_
                .add_option_function<std::uint64_t>(
                    "--selector-seed",
                    [&spec = spec_](std::uint64_t seed) {
                      blend_only(spec, "--selector-seed");
                      spec.blend.seed = seed;
                    },
                    "blend: of --selector random (0)")
                ->check(refuse_seed));
    add_text("--recompute-layers", "FIRST,LAST",
             "blend: layers from FIRST to the one before LAST for all context tokens, in place of "
             "tokens",
             [&spec = spec_, given](const std::string& text) {
               blend_only(spec, "--recompute-layers");
               require(!given("--recompute") && !given("--selector"), "--recompute-layers",
                       "computes all tokens again; leave --recompute and --selector out");
               const auto layers = parse_list(text).value_or(std::vector<std::int32_t>());
               require(layers.size() == 2, "--recompute-layers",
                       "want two layers as 4,6, got \"" + text + '"');
               spec.blend.layers = LayerRange{.first = layers.front(), .last = layers.back()};
             });
    add_modes("--base", "blend: mode of the other tokens (anchored)",
              {ReuseMode::kAnchored, ReuseMode::kIndependent}, [&spec = spec_](ReuseMode base) {
                blend_only(spec, "--base");
                spec.blend.base = base;
              });
  }

  CLI::App& command_;
  CompositionSpec& spec_;
};

// Returns whether `text` is a whole id, which the library may know from before.
bool is_id(const std::string& text) {
  constexpr std::size_t kIdDigits = 64;
  return text.size() == kIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Refuses starts as the library does, but before the query's text becomes a chunk.
Status check_starts(const ComposeOptions& options) {
  const std::size_t segments = options.chunks.size() + (options.query ? 1 : 0);
  if (options.spec.positions != Positions::kFixed || options.spec.fixed.size() == segments) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          "--positions has " + std::to_string(options.spec.fixed.size()) + " starts for " +
              std::to_string(segments) + " segments; give one for each, system and query included"};
}

}  // namespace

void add_composing_options(CLI::App& command, CompositionSpec& spec) {
  Composing(command, spec).add_all();
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

Result<ChunkInfo> find_chunk(const ChunkedLLM& llm, const std::string& reference,
                             const std::set<std::string>& deleted) {
  constexpr std::size_t kLeastDigits = 4;  // fewest digits of an id's beginning, as everywhere
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
  if (found.empty() && deleted.contains(reference)) {
    return {ErrorCode::kNotFound, "no chunk \"" + reference + "\": deleted; register it again"};
  }
  if (found.empty()) {
    return is_id(reference) ? llm.get_chunk(reference)  // says what became of it
                            : Error{.code = ErrorCode::kNotFound,
                                    .message = "no chunk \"" + reference +
                                               "\": none has this name, and no id begins so; "
                                               "chunk list shows those that are there",
                                    .chunk_id = reference};
  }
  return {ErrorCode::kInvalidArgument, "\"" + reference + "\" means " +
                                           std::to_string(found.size()) +
                                           " chunks; give more of the id"};
}

Result<Resolved> resolve(ChunkedLLM& llm, const ComposeOptions& options,
                         const std::set<std::string>& deleted) {
  QUIRE_TRY_STATUS(check_starts(options));
  CompositionSpec spec = options.spec;
  for (const std::string& reference : options.chunks) {
    QUIRE_TRY(const ChunkInfo chunk, find_chunk(llm, reference, deleted));
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
    return {
        ErrorCode::kInvalidComposition,
        "a composition has exactly one query; name a query chunk, or give its text to quire run "
        "--chunk"};
  }
  if (spec.system_chunk_id.empty() && !spec.without_system) {
    return {ErrorCode::kInvalidComposition,
            "a composition has exactly one system chunk; name one, or give --without-system"};
  }
  bool adds_query = false;
  if (options.query) {
    QUIRE_TRY(const auto before, llm.list_chunks(ChunkType::kQuery));
    QUIRE_TRY(spec.query_chunk_id,
              llm.register_chunk({.content = *options.query, .type = ChunkType::kQuery}));
    adds_query =
        std::ranges::find(before, spec.query_chunk_id, &ChunkInfo::chunk_id) == before.end();
  }
  return Resolved{.spec = std::move(spec), .adds_query = adds_query};
}

std::int64_t expected_tokens(const ChunkedLLM& llm, const Resolved& composed) {
  if (!watched()) {
    return 0;
  }
  const auto preview = llm.preview_composition(composed.spec);
  return preview.ok() ? preview->tokens_computed : 0;
}

}  // namespace quire::cli
