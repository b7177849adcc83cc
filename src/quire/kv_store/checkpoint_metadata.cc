#include "quire/kv_store/checkpoint_metadata.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/kv_store/checkpoint.h"
#include "quire/kv_store/corrupt.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using base::Json;
using base::JsonView;

Result<SavedSequence::RunShape> read_run(JsonView run) {
  const bool is_pair = run.is_array() && run.size() == 2;
  const auto length = is_pair ? run[0].exact<std::int64_t>() : std::nullopt;
  const auto position = is_pair ? run[1].exact<std::int32_t>() : std::nullopt;
  if (!length || !position) {
    return corrupt("the runs of a sequence are malformed");
  }
  return SavedSequence::RunShape{.tokens = *length, .start_position = *position};
}

// Takes the states of a sequence of `tokens` tokens, whose objects are the entry's next parts.
Status take_states(JsonView object, std::int64_t tokens, std::size_t& part,
                   const Checkpoint& checkpoint, SavedSequence& saved) {
  const JsonView list = object.find("states");
  if (list.is_null()) {
    return {};
  }
  const auto places = base::read_json_list<std::int32_t>(list);
  const std::vector<ObjectRange>& parts = checkpoint.entry.parts;
  if (!places || places->size() > parts.size() - part) {
    return corrupt("the states of a sequence are malformed");
  }
  std::int64_t before = 0;
  for (const std::int32_t place : *places) {
    const ObjectRange& object_of_state = parts[part++];
    if (place <= before || place > tokens || object_of_state.tokens != 0) {
      return corrupt(base::str_cat("a state behind ", place, " tokens follows one behind ", before,
                                   ", the sequence has ", tokens));
    }
    before = place;
    saved.states.push_back({.tokens = place, .object = object_of_state.object});
  }
  return {};
}

Status take_sequence(JsonView object, std::size_t& part, Checkpoint& checkpoint) {
  const StoreEntry& entry = checkpoint.entry;
  if (!object.is_object()) {
    return corrupt("a sequence is no object");
  }
  QUIRE_TRY(std::string name, base::get_string(object, "name", ""));
  QUIRE_TRY(const std::int64_t parts, base::get_int(object, "parts", 0));
  if (parts < 0 || static_cast<std::size_t>(parts) > entry.parts.size() - part) {
    return corrupt(base::str_cat(parts, " parts for sequence ", base::quoted(name), ", ",
                                 entry.parts.size() - part, " are left"));
  }
  const auto begin = entry.parts.begin() + static_cast<std::ptrdiff_t>(part);
  const JsonView metadata = object.find("metadata");
  SavedSequence saved{.name = std::move(name),
                      .metadata_json = metadata.is_null() ? "{}" : base::write_json(metadata),
                      .parts = {begin, begin + parts}};
  QUIRE_TRY(saved.kernels, base::get_string(object, "kernels", ""));
  QUIRE_TRY(saved.follows_from_tokens, base::get_bool(object, "follows_from_tokens", false));
  std::int64_t tokens = 0;
  for (const ObjectRange& range : saved.parts) {
    tokens += range.tokens;
  }
  const std::int64_t all = tokens;
  const JsonView runs = object.find("runs");
  if (!runs.is_null() && !runs.is_array()) {
    return corrupt("the runs of a sequence are malformed");
  }
  for (const JsonView run : runs.elements()) {
    QUIRE_TRY(const SavedSequence::RunShape shape, read_run(run));
    if (shape.tokens < 1 || shape.tokens > tokens || shape.start_position < 0) {
      return corrupt(base::str_cat("a run of ", shape.tokens, " tokens, ", tokens, " are left"));
    }
    tokens -= shape.tokens;
    saved.runs.push_back(shape);
  }
  if (tokens != 0) {
    return corrupt(base::str_cat(tokens, " tokens are of no run"));
  }
  part += static_cast<std::size_t>(parts);
  QUIRE_TRY_STATUS(take_states(object, all, part, checkpoint, saved));
  checkpoint.sequences.push_back(std::move(saved));
  return {};
}

Status take_metadata(Checkpoint& checkpoint) {
  QUIRE_TRY(const Json value, base::parse_json(checkpoint.entry.metadata_json, "metadata"));
  const JsonView object = value;
  const JsonView sequences = object.find("sequences");
  if (!sequences.is_array()) {
    return corrupt("its metadata is not that of a checkpoint");
  }
  QUIRE_TRY(checkpoint.number, base::get_int(object, "number", 0));
  std::size_t part = 0;
  for (const JsonView sequence : sequences.elements()) {
    QUIRE_TRY_STATUS(take_sequence(sequence, part, checkpoint));
  }
  return {};
}

}  // namespace

Result<std::string> describe_checkpoint(const Checkpoint& checkpoint, const std::string& series) {
  Json sequences = Json::array();
  for (const SavedSequence& sequence : checkpoint.sequences) {
    QUIRE_TRY(Json metadata, base::parse_json(sequence.metadata_json, "metadata"));
    Json runs = Json::array();
    for (const SavedSequence::RunShape& run : sequence.runs) {
      runs.push(Json::array(run.tokens, run.start_position));
    }
    auto object = Json::object({{"name", sequence.name},
                                {"parts", sequence.parts.size()},
                                {"runs", std::move(runs)},
                                {"kernels", sequence.kernels},
                                {"follows_from_tokens", sequence.follows_from_tokens},
                                {"metadata", std::move(metadata)}});
    if (!sequence.states.empty()) {
      Json states = Json::array();
      for (const SavedSequence::StateObject& state : sequence.states) {
        states.push(state.tokens);
      }
      object.set("states", std::move(states));
    }
    sequences.push(std::move(object));
  }
  return base::write_json(Json::object(
      {{"series", series}, {"number", checkpoint.number}, {"sequences", std::move(sequences)}}));
}

Result<Checkpoint> read_checkpoint(StoreEntry entry) {
  Checkpoint checkpoint{.name = entry.name, .entry = std::move(entry)};
  if (const Status taken = take_metadata(checkpoint); !taken.ok()) {
    return corrupt(
        base::str_cat("checkpoint ", base::quoted(checkpoint.name), ": ", taken.error().message));
  }
  return checkpoint;
}

}  // namespace quire::kv_store
