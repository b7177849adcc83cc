#include "api/extension.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "api/call.h"
#include "api/errors.h"
#include "api/fields.h"
#include "api/json.h"
#include "message.h"
#include "quire/chunk_types.h"
#include "quire/result.h"

namespace quire::server {
namespace {

constexpr double kMaxSeconds = 1e9;
constexpr double kMaxPosition = 2147483647;

constexpr FieldRule kBlendRules[] = {
    {.name = "selector",
     .kinds = kString,
     .help = "which context tokens are computed again",
     .words = "query_attn|value_dev|first_k|random|all|none|explicit"},
    {.name = "share", .kinds = kNumber, .help = "share of context tokens", .min = 0, .max = 1},
    {.name = "tokens",
     .kinds = kArray,
     .help = "for explicit: indices into the prompt",
     .max_size = 1 << 20,
     .elements = kInteger},
    {.name = "base",
     .kinds = kString,
     .help = "mode that contexts are computed in first",
     .words = "anchored|independent"},
    {.name = "seed", .kinds = kInteger, .help = "for random"},
    {.name = "layers",
     .kinds = kArray,
     .help = "in place of tokens: [first, last], layers that all context tokens run through again",
     .min_size = 2,
     .max_size = 2,
     .elements = kInteger},
};
const FieldTable& blend_table() {
  static const FieldTable table{"Blend", "Which tokens mode blend computes again.", {kBlendRules}};
  return table;
}

std::span<const FieldRule> how_rules() {
  static const FieldRule rules[] = {
      {.name = "mode",
       .kinds = kString,
       .help = "what a context has seen; default anchored",
       .words = "exact|anchored|independent|blend"},
      {.name = "positions",
       .kinds = kString,
       .help = "at which positions segments stand; default concat",
       .words = "concat|parallel|fixed"},
      {.name = "fixed",
       .kinds = kArray,
       .help = "for fixed: the start of each segment",
       .max_size = 4096,
       .elements = kInteger},
      {.name = "computed_in_place",
       .kinds = kBool,
       .help = "contexts are computed where they are used"},
      {.name = "bos_sink", .kinds = kBool, .help = "independent contexts see a BOS token"},
      {.name = "blend", .kinds = kObject, .help = "for mode blend", .members = &blend_table()},
  };
  return rules;
}

constexpr FieldRule kChunksRules[] = {
    {.name = "system", .kinds = kString, .help = "id of the system chunk", .max_size = 64},
    {.name = "contexts",
     .kinds = kArray,
     .help = "ids of context chunks, in order",
     .max_size = 4096,
     .elements = kString},
    {.name = "query", .kinds = kString, .help = "id of the query chunk", .max_size = 64},
};
const FieldTable& chunks_table() {
  static const FieldTable table{"QuireChunks", "Chunks in front of the question.", {kChunksRules}};
  return table;
}

constexpr FieldRule kServeRules[] = {
    {.name = "chunks",
     .kinds = kObject,
     .help = "chunks in front of one user message",
     .members = nullptr},
    {.name = "persist_chunks",
     .kinds = kBool,
     .help = "false deletes chunks that the request has made"},
    {.name = "explain", .kinds = kBool, .help = "adds `parts` to the answer's `quire`"},
    {.name = "session",
     .kinds = kString,
     .help = "name of the session that the request belongs to",
     .min_size = 1,
     .max_size = 256},
    {.name = "expected_return_seconds",
     .kinds = kNumber,
     .help = "pauses the session behind the answer",
     .min = 0,
     .max = kMaxSeconds},
    {.name = "close_session", .kinds = kBool, .help = "closes the session behind the answer"},
    {.name = "hold_seconds",
     .kinds = kNumber,
     .help = "keeps the KV of the prompt for so long",
     .min = 0,
     .max = kMaxSeconds,
     .above = true},
};

constexpr FieldRule kUrgencyRules[] = {
    {.name = "deadline_ms",
     .kinds = kInteger,
     .help = "milliseconds after which the request ends with 504",
     .min = 1,
     .max = 1e12},
    {.name = "priority",
     .kinds = kInteger,
     .help = "higher goes first, where the server orders requests by priority",
     .min = -1000,
     .max = 1000},
};

const FieldTable& extension_table() {
  static const std::vector<FieldRule> serve = [] {
    std::vector<FieldRule> rules(std::begin(kServeRules), std::end(kServeRules));
    rules.front().members = &chunks_table();
    return rules;
  }();
  static const FieldTable table{
      "QuireExtension", "Asks of a request beyond its API.", {how_rules(), serve, kUrgencyRules}};
  return table;
}

constexpr FieldRule kSpecRules[] = {
    {.name = "system_chunk_id", .kinds = kString, .help = "id of the system chunk"},
    {.name = "without_system", .kinds = kBool, .help = "true allows no system chunk"},
    {.name = "context_chunk_ids",
     .kinds = kArray,
     .help = "ids of contexts, in order",
     .max_size = 4096,
     .elements = kString},
    {.name = "query_chunk_id", .kinds = kString, .help = "id of the query chunk", .required = true},
};

template <class Enum>
Enum word_value(std::string_view word, const char* (*name)(Enum), Enum last) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (word == name(static_cast<Enum>(i))) {
      return static_cast<Enum>(i);
    }
  }
  return Enum{};
}
const char* mode_name(ReuseMode mode) { return reuse_mode_name(mode); }
const char* select_name(Selector selector) { return selector_name(selector); }
const char* positions_name(Positions positions) {
  constexpr const char* kNames[] = {"concat", "parallel", "fixed"};
  return kNames[static_cast<int>(positions)];
}

Checked<std::vector<std::int32_t>> read_positions(const json::array& list,
                                                  const std::string& path) {
  std::vector<std::int32_t> positions;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::int64_t value = list[i].get_int64();
    if (value < 0 || value > static_cast<std::int64_t>(kMaxPosition)) {
      return invalid(element_path(path, i), "must be 0 or more");
    }
    positions.push_back(static_cast<std::int32_t>(value));
  }
  return positions;
}

// Reads what how_rules() has. Returns true where a member is there.
Checked<bool> read_how(const json::object& object, const std::string& path, CompositionSpec& spec) {
  const Members members(object);
  bool any = false;
  for (const FieldRule& rule : how_rules()) {
    any = any || members.has(rule.name);
  }
  if (const auto mode = members.text("mode")) {
    spec.mode = word_value(*mode, mode_name, ReuseMode::kBlend);
  }
  if (const auto positions = members.text("positions")) {
    spec.positions = word_value(*positions, positions_name, Positions::kFixed);
  }
  if (const json::array* const fixed = members.array("fixed")) {
    QUIRE_TRY(spec.fixed, read_positions(*fixed, member_path(path, "fixed")));
  }
  spec.computed_in_place = members.flag("computed_in_place");
  spec.bos_sink = members.flag("bos_sink");
  if (const json::object* const given = members.object("blend")) {
    const Members blend(*given);
    const std::string place = member_path(path, "blend");
    if (const auto selector = blend.text("selector")) {
      spec.blend.selector = word_value(*selector, select_name, Selector::kExplicit);
    }
    spec.blend.share = blend.number("share").value_or(0);
    if (const json::array* const tokens = blend.array("tokens")) {
      QUIRE_TRY(spec.blend.tokens, read_positions(*tokens, member_path(place, "tokens")));
    }
    if (const auto base = blend.text("base")) {
      spec.blend.base = word_value(*base, mode_name, ReuseMode::kBlend);
    }
    spec.blend.seed = static_cast<std::uint64_t>(blend.integer("seed").value_or(0));
    if (const json::array* const layers = blend.array("layers")) {
      QUIRE_TRY(const auto range, read_positions(*layers, member_path(place, "layers")));
      spec.blend.layers = LayerRange{.first = range.front(), .last = range.back()};
    }
  }
  return any;
}

std::vector<std::string> texts_of(const json::array* list) {
  std::vector<std::string> texts;
  if (list != nullptr) {
    for (const json::value& element : *list) {
      texts.emplace_back(view_of(element.get_string()));
    }
  }
  return texts;
}

// Reads the header `x-request-timeout-ms`.
Checked<std::optional<std::int64_t>> header_deadline(const Request& request) {
  const std::string_view text = request.header("x-request-timeout-ms");
  if (text.empty()) {
    return std::optional<std::int64_t>();
  }
  std::int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size() || value <= 0) {
    return invalid("x-request-timeout-ms", "must be an integer above 0");
  }
  return std::optional(value);
}

// Takes what urgency_rules() has.
void take_urgency(const Members& members, Extension& extension) {
  extension.deadline_ms = members.integer("deadline_ms");
  extension.priority = static_cast<std::int32_t>(members.integer("priority").value_or(0));
}

// Takes the deadline of the headers where the body has none.
Check take_header_deadline(const Call& call, Extension& extension) {
  QUIRE_TRY(const auto deadline, header_deadline(*call.request));
  if (!extension.deadline_ms) {
    extension.deadline_ms = deadline;
  }
  return passed();
}

Check read_serving(const json::object& object, Extension& extension) {
  const Members members(object);
  QUIRE_TRY(extension.says_how, read_how(object, "quire", extension.how));
  if (const json::object* const given = members.object("chunks")) {
    const Members chunks(*given);
    extension.names_chunks = true;
    extension.how.system_chunk_id = std::string(chunks.text("system").value_or(""));
    extension.how.context_chunk_ids = texts_of(chunks.array("contexts"));
    extension.how.query_chunk_id = std::string(chunks.text("query").value_or(""));
  }
  extension.persist_chunks = members.flag("persist_chunks", true);
  extension.explain = members.flag("explain");
  extension.session = std::string(members.text("session").value_or(""));
  extension.expected_return_seconds = members.number("expected_return_seconds");
  extension.close_session = members.flag("close_session");
  extension.hold_seconds = members.number("hold_seconds");
  take_urgency(members, extension);
  return passed();
}

}  // namespace

std::span<const FieldRule> composition_rules() { return how_rules(); }

const FieldTable& composition_table() {
  static const FieldTable table{
      "CompositionSpec", "Which chunks, in which order, in which mode.", {kSpecRules, how_rules()}};
  return table;
}

std::span<const FieldRule> extension_rules() {
  static const FieldRule rules[] = {
      {.name = "quire",
       .kinds = kObject,
       .help = "what the request asks of Quire",
       .members = &extension_table()},
      {.name = "cache_salt",
       .kinds = kString,
       .help = "only requests of one salt share cached prefixes",
       .min_size = 1,
       .max_size = 512},
  };
  return rules;
}

std::span<const FieldRule> urgency_rules() { return kUrgencyRules; }

Check read_urgency(const Call& call, Extension& extension) {
  take_urgency(call.members(), extension);
  return take_header_deadline(call, extension);
}

Checked<Extension> read_extension(const Call& call) {
  Extension extension;
  const Members members = call.members();
  if (const json::object* const given = members.object("quire")) {
    QUIRE_TRY_STATUS(read_serving(*given, extension));
  }
  if (extension.session.empty()) {
    const std::string_view header = call.request->header("x-quire-session");
    if (header.size() > 256) {
      return invalid("x-quire-session", "must have 1 to 256 bytes");
    }
    extension.session = std::string(header);
  }
  if (extension.session.empty()) {
    // Its name of OpenAI, where the endpoint has it.
    extension.session = std::string(members.text("prompt_cache_key").value_or(""));
  }
  extension.explain = extension.explain || call.request->header("x-quire-explain") == "1";
  extension.cache_salt = std::string(members.text("cache_salt").value_or(""));
  QUIRE_TRY_STATUS(take_header_deadline(call, extension));
  if (extension.session.empty() && (extension.close_session || extension.expected_return_seconds)) {
    return invalid(
        extension.close_session ? "quire.close_session" : "quire.expected_return_seconds",
        "needs quire.session");
  }
  return extension;
}

Checked<CompositionSpec> read_composition(const json::object& object, std::string_view path) {
  const Members members(object);
  CompositionSpec spec;
  spec.system_chunk_id = std::string(members.text("system_chunk_id").value_or(""));
  spec.without_system = members.flag("without_system");
  spec.context_chunk_ids = texts_of(members.array("context_chunk_ids"));
  spec.query_chunk_id = std::string(members.text("query_chunk_id").value_or(""));
  QUIRE_TRY([[maybe_unused]] const bool any, read_how(object, std::string(path), spec));
  return spec;
}

}  // namespace quire::server
