#include "quire/engine/saved_state.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/device/cpu/isa.h"
#include "quire/engine/reuse_grade.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/output.h"
#include "quire/result.h"

namespace quire::engine {
namespace {

namespace json = base::json;

constexpr std::string_view kKind = "sequence";
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

// The list under `key`; nothing when there is none or it holds anything else.
template <class T>
bool read_list(const json::object& object, std::string_view key, std::vector<T>& list) {
  const json::value* const found = base::find(object, key);
  if (found == nullptr) {
    return false;
  }
  auto values = json::try_value_to<std::vector<T>>(*found);
  if (values.has_error()) {
    return false;
  }
  list = *std::move(values);
  return true;
}

// Members with a type of their own, and the object for the lists.
struct Fields {
  json::object object;
  std::string kind;
  std::int64_t position = 0;
  std::int64_t sampled = 0;
  std::string grade;
  std::string kernels;
};

Result<Fields> parse_fields(std::string_view text, std::string_view what) {
  QUIRE_TRY(json::value value, base::parse_json(text, what));
  if (!value.is_object()) {
    return {ErrorCode::kCorrupt, "its metadata is no object"};
  }
  Fields fields{.object = std::move(value.as_object())};
  QUIRE_TRY(fields.kind, base::get_string(fields.object, "kind", ""));
  QUIRE_TRY(fields.position, base::get_int(fields.object, "own_position", -1));
  QUIRE_TRY(fields.sampled, base::get_int(fields.object, "sampled", -1));
  QUIRE_TRY(fields.grade, base::get_string(fields.object, "grade", ""));
  QUIRE_TRY(fields.kernels, base::get_string(fields.object, "kernels", ""));
  return fields;
}

}  // namespace

std::string kernels_here() {
  // Counts changes of the kernels that change bits. 2: row scales of quantised products have few
  // bits. 3: AVX-512 takes 2^x of attention from another series. 4: queries carry the scale of
  // scores, and 2^x is of degree 3 there.
  constexpr int kArithmetic = 4;
  return base::str_cat(device::isa_name(device::best_isa()), "-", kArithmetic);
}

base::KVFingerprint kv_fingerprint(std::string_view model_digest, std::string_view kernels) {
  base::FieldHasher hasher;
  hasher.add(model_digest);
  hasher.add(kernels);
  return {.bytes = hasher.finish()};
}

std::string to_json(const SavedState& state) {
  json::array ranks;
  for (const kv::MergeRank& rank : state.ranks) {
    ranks.push_back({rank.chunk, rank.variant});
  }
  return json::serialize(json::object{{"kind", kKind},
                                      {"ranks", std::move(ranks)},
                                      {"stored_from", json::value_from(state.stored_from)},
                                      {"own_position", state.own_position},
                                      {"tail", json::value_from(state.tail)},
                                      {"sampled", state.sampled},
                                      {"grade", reuse_grade_name(state.grade)},
                                      {"kernels", state.kernels}});
}

Result<SavedState> parse_saved_state(std::string_view text, std::size_t num_runs,
                                     std::string_view what) {
  const auto parsed = parse_fields(text, what);
  if (!parsed.ok()) {
    return no_sequence(what, parsed.error().message);
  }
  const auto& [object, kind, position, sampled, grade, kernels] = *parsed;
  SavedState state{.kernels = kernels};
  if (kind != kKind) {
    return no_sequence(what, base::str_cat("it is of kind ", base::quoted(kind)));
  }
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ranks;
  const bool read = read_list(object, "tail", state.tail) && read_list(object, "ranks", ranks) &&
                    read_list(object, "stored_from", state.stored_from);
  // The KV of a last token is computed when it is wanted, so behind KV there always is one.
  const bool has_last = state.tail.size() == 1 || (state.tail.empty() && num_runs == 0);
  if (!read || !has_last || state.stored_from.size() != ranks.size()) {
    return no_sequence(what, "its tail or its runs are malformed");
  }
  if (!in_range(position) || !in_range(sampled) ||
      !std::ranges::all_of(state.stored_from, in_range)) {
    return no_sequence(what, "a number of it is out of range");
  }
  if (ranks.size() > num_runs || num_runs > ranks.size() + 1) {
    return no_sequence(what,
                       base::str_cat("it has ", num_runs, " runs and ", ranks.size(), " ranks"));
  }
  state.own_position = static_cast<std::int32_t>(position);
  state.sampled = static_cast<std::int32_t>(sampled);
  state.grade = grade_called(grade);
  for (const auto& [chunk, variant] : ranks) {
    state.ranks.push_back({chunk, variant});
  }
  return state;
}

void seal_foreign(std::span<const kv_store::SavedRun> runs, SavedState& state,
                  std::string_view kernels) {
  state.grade = graded(state.grade, state.kernels == kernels);
  if (state.ranks.empty() && !runs.empty() && runs.front().lost_blocks == 0 &&
      state.grade != ReuseGrade::kExact) {
    const kv_store::SavedRun& run = runs.front();
    const std::int64_t end = run.start_position + std::ssize(run.tokens);  // checked with the run
    state.own_position = static_cast<std::int32_t>(std::min(end, kMostTokens));
    state.ranks.emplace_back();
    state.stored_from.emplace_back();
  }
  state.grade = graded(state.grade, state.ranks.empty());
}

}  // namespace quire::engine
