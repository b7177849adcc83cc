#include "quire/sequences/saved_state.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/engine/reuse_grade.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::sequences {
namespace {

using base::Json;
using base::JsonView;

constexpr std::string_view kKind = "sequence";
constexpr std::string_view kMalformed = "its tail or its runs are malformed";
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

bool in_range(std::int64_t number) { return number >= 0 && number <= kMostTokens; }

Error no_sequence(std::string_view what, std::string_view why) {
  return {.code = ErrorCode::kCorrupt, .message = base::str_cat(what, " is no sequence: ", why)};
}

ReuseGrade grade_called(std::string_view name) {
  for (const ReuseGrade grade : {ReuseGrade::kExact, ReuseGrade::kEqualMath}) {
    if (name == reuse_grade_name(grade)) {
      return grade;
    }
  }
  return ReuseGrade::kApproximate;
}

// Returns the pairs of chunk and variant; nullopt for anything else.
std::optional<std::vector<kv::MergeRank>> read_ranks(JsonView list) {
  std::vector<kv::MergeRank> ranks;
  for (const JsonView pair : list.elements()) {
    const bool is_pair = pair.is_array() && pair.size() == 2;
    const auto chunk = is_pair ? pair[0].exact<std::uint64_t>() : std::nullopt;
    const auto variant = is_pair ? pair[1].exact<std::uint32_t>() : std::nullopt;
    if (!chunk || !variant) {
      return std::nullopt;
    }
    ranks.push_back({*chunk, *variant});
  }
  return list.is_array() ? std::optional(std::move(ranks)) : std::nullopt;
}

// Returns whether each run has one or two of `num_runs` saved runs. The first ones have another one
// for their maps.
bool are_parts(std::span<const std::int32_t> parts, std::span<const std::int32_t> map_blocks,
               std::size_t num_runs) {
  std::size_t sum = 0;
  for (std::size_t run = 0; run < parts.size(); ++run) {
    const std::int32_t with_tokens = parts[run] - (run < map_blocks.size() ? 1 : 0);
    if (with_tokens != 1 && with_tokens != 2) {
      return false;
    }
    sum += static_cast<std::size_t>(parts[run]);
  }
  return sum == num_runs;
}

// Returns whether each run before the own one has maps, or none has.
bool are_maps(std::span<const std::int32_t> map_blocks, const SavedState& state) {
  const bool all = map_blocks.size() == state.ranks.size() && !state.parts.empty() &&
                   std::ranges::all_of(map_blocks, [](std::int32_t count) { return count > 0; });
  return map_blocks.empty() || all;
}

// Members with a type of their own, and the object for the lists.
struct Fields {
  Json object;
  std::string kind;
  std::int64_t position = 0;
  std::int64_t sampled = 0;
  std::string grade;
  std::string kernels;
  std::string kv_dtype;
};

Result<Fields> parse_fields(std::string_view text, std::string_view what) {
  QUIRE_TRY(Json value, base::parse_json(text, what));
  if (!value.view().is_object()) {
    return {ErrorCode::kCorrupt, "its metadata is no object"};
  }
  Fields fields{.object = std::move(value)};
  QUIRE_TRY(fields.kind, base::get_string(fields.object, "kind", ""));
  QUIRE_TRY(fields.position, base::get_int(fields.object, "own_position", -1));
  QUIRE_TRY(fields.sampled, base::get_int(fields.object, "sampled", -1));
  QUIRE_TRY(fields.grade, base::get_string(fields.object, "grade", ""));
  QUIRE_TRY(fields.kernels, base::get_string(fields.object, "kernels", ""));
  QUIRE_TRY(fields.kv_dtype, base::get_string(fields.object, "kv_dtype", ""));
  return fields;
}

}  // namespace

std::string to_json(const SavedState& state) {
  Json ranks = Json::array();
  for (const kv::MergeRank& rank : state.ranks) {
    ranks.push(Json::array(rank.chunk, rank.variant));
  }
  Json object = Json::object({{"kind", kKind},
                              {"ranks", std::move(ranks)},
                              {"stored_from", Json::list(state.stored_from)},
                              {"own_position", state.own_position},
                              {"tail", Json::list(state.tail)},
                              {"sampled", state.sampled},
                              {"grade", reuse_grade_name(state.grade)},
                              {"kernels", state.kernels}});
  if (!state.kv_dtype.empty()) {
    object.set("kv_dtype", state.kv_dtype);
  }
  if (!state.parts.empty()) {
    object.set("parts", Json::list(state.parts));
  }
  if (!state.map_blocks.empty()) {
    object.set("map_blocks", Json::list(state.map_blocks));
  }
  return base::write_json(object);
}

Result<SavedState> parse_saved_state(std::string_view text, std::size_t num_runs,
                                     std::string_view what) {
  const auto parsed = parse_fields(text, what);
  if (!parsed.ok()) {
    return no_sequence(what, parsed.error().message);
  }
  const auto& [object, kind, position, sampled, grade, kernels, kv_dtype] = *parsed;
  SavedState state{.kernels = kernels, .kv_dtype = kv_dtype};
  if (kind != kKind) {
    return no_sequence(what, base::str_cat("it is of kind ", base::quoted(kind)));
  }
  auto tail = base::read_json_list<TokenId>(object.view().find("tail"));
  auto ranks = read_ranks(object.view().find("ranks"));
  auto stored_from = base::read_json_list<std::int32_t>(object.view().find("stored_from"));
  if (!tail || !ranks || !stored_from) {
    return no_sequence(what, kMalformed);
  }
  state.tail = *std::move(tail);
  state.ranks = *std::move(ranks);
  state.stored_from = *std::move(stored_from);
  if (const JsonView maps = object.view().find("map_blocks"); !maps.is_null()) {
    auto counts = base::read_json_list<std::int32_t>(maps);
    if (!counts) {
      return no_sequence(what, kMalformed);
    }
    state.map_blocks = *std::move(counts);
  }
  if (const JsonView parts = object.view().find("parts"); !parts.is_null()) {
    auto counts = base::read_json_list<std::int32_t>(parts);
    if (!counts || !are_parts(*counts, state.map_blocks, num_runs)) {
      return no_sequence(what, kMalformed);
    }
    state.parts = *std::move(counts);
    num_runs = state.parts.size();
  }
  if (!are_maps(state.map_blocks, state)) {
    return no_sequence(what, kMalformed);
  }
  // The KV of a last token is computed when it is wanted, so behind KV there always is one.
  const bool alone = state.tail.size() == 1 || !state.kv_dtype.empty();
  const bool has_last = state.tail.empty() ? num_runs == 0 : alone;
  if (!has_last || state.stored_from.size() != state.ranks.size()) {
    return no_sequence(what, kMalformed);
  }
  if (!in_range(position) || !in_range(sampled) ||
      !std::ranges::all_of(state.stored_from, in_range)) {
    return no_sequence(what, "a number of it is out of range");
  }
  const std::size_t num_ranks = state.ranks.size();
  if (num_ranks > num_runs || num_runs > num_ranks + 1) {
    return no_sequence(what, base::str_cat("it has ", num_runs, " runs and ", num_ranks, " ranks"));
  }
  state.own_position = static_cast<std::int32_t>(position);
  state.sampled = static_cast<std::int32_t>(sampled);
  state.grade = grade_called(grade);
  return state;
}

std::vector<std::span<const kv_store::SavedRun>> parts_of(std::span<const kv_store::SavedRun> runs,
                                                          const SavedState& state) {
  std::vector<std::span<const kv_store::SavedRun>> parts;
  for (std::size_t run = 0; !runs.empty(); ++run) {
    const std::size_t count = state.parts.empty() ? 1 : static_cast<std::size_t>(state.parts[run]);
    parts.push_back(runs.first(count - (run < state.map_blocks.size() ? 1 : 0)));
    runs = runs.subspan(count);
  }
  return parts;
}

const kv_store::SavedRun& maps_of(std::span<const kv_store::SavedRun> runs, const SavedState& state,
                                  std::size_t index) {
  const auto until = std::span(state.parts).first(index + 1);
  return runs[static_cast<std::size_t>(std::accumulate(until.begin(), until.end(), 0)) - 1];
}

void seal_foreign(std::span<const kv_store::SavedRun> runs, SavedState& state,
                  std::string_view kernels, bool has_states) {
  state.grade = engine::graded(state.grade, state.kernels == kernels);
  if (state.ranks.empty() && !runs.empty() && runs.front().lost_blocks == 0 &&
      runs.front().lost_parts == 0 && !has_states && state.grade != ReuseGrade::kExact) {
    const kv_store::SavedRun& last = runs.back();  // of its own run, which is the only one
    const std::int64_t end = last.start_position + std::ssize(last.tokens);  // checked with it
    state.own_position = static_cast<std::int32_t>(std::min(end, kMostTokens));
    state.ranks.emplace_back();
    state.stored_from.emplace_back();
  }
  state.grade = engine::graded(state.grade, state.ranks.empty());
}

}  // namespace quire::sequences
