#include "quire/kv_store/checkpoint_manager.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/kv_store/entry.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_store.h"
#include "quire/kv_store/store.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

namespace json = base::json;

Error corrupt(const Entry& entry, std::string_view what) {
  return {.code = ErrorCode::kCorrupt,
          .message = base::str_cat("checkpoint ", base::quoted(entry.name), ": ", what)};
}

Result<std::string> describe(const Checkpoint& checkpoint, const std::string& series) {
  json::array sequences;
  for (const SavedSequence& sequence : checkpoint.sequences) {
    QUIRE_TRY(json::value metadata, base::parse_json(sequence.metadata_json, "metadata"));
    sequences.push_back({{"name", sequence.name},
                         {"parts", sequence.parts.size()},
                         {"metadata", std::move(metadata)}});
  }
  return json::serialize(json::object{
      {"series", series}, {"number", checkpoint.number}, {"sequences", std::move(sequences)}});
}

Status take_sequence(const json::value& value, std::size_t& part, Checkpoint& checkpoint) {
  const Entry& entry = checkpoint.entry;
  const json::object* object = value.if_object();
  if (object == nullptr) {
    return corrupt(entry, "a sequence is no object");
  }
  QUIRE_TRY(std::string name, base::get_string(*object, "name", ""));
  QUIRE_TRY(const std::int64_t parts, base::get_int(*object, "parts", 0));
  if (parts < 0 || static_cast<std::size_t>(parts) > entry.parts.size() - part) {
    return corrupt(entry, base::str_cat(parts, " parts for sequence ", base::quoted(name), ", ",
                                        entry.parts.size() - part, " are left"));
  }
  const auto begin = entry.parts.begin() + static_cast<std::ptrdiff_t>(part);
  const json::value* metadata = base::find(*object, "metadata");
  checkpoint.sequences.push_back(
      {.name = std::move(name),
       .metadata_json = metadata == nullptr ? "{}" : json::serialize(*metadata),
       .parts = {begin, begin + parts}});
  part += static_cast<std::size_t>(parts);
  return {};
}

// What `describe` wrote, and the series it belongs to.
Result<std::pair<Checkpoint, std::string>> read_checkpoint(Entry entry) {
  Checkpoint checkpoint{.name = entry.name, .entry = std::move(entry)};
  QUIRE_TRY(const json::value value, base::parse_json(checkpoint.entry.metadata_json, "metadata"));
  const json::object* object = value.if_object();
  const json::value* sequences = object == nullptr ? nullptr : base::find(*object, "sequences");
  if (sequences == nullptr || !sequences->is_array()) {
    return corrupt(checkpoint.entry, "its metadata is not that of a checkpoint");
  }
  QUIRE_TRY(checkpoint.number, base::get_int(*object, "number", 0));
  QUIRE_TRY(std::string series, base::get_string(*object, "series", ""));
  std::size_t part = 0;
  for (const json::value& sequence : sequences->get_array()) {
    QUIRE_TRY_STATUS(take_sequence(sequence, part, checkpoint));
  }
  return std::pair(std::move(checkpoint), std::move(series));
}

// The sequences named in `only`, or all.
Result<std::vector<const CheckpointSequence*>> choose(std::span<const CheckpointSequence> sequences,
                                                      std::span<const std::string> only) {
  std::set<std::string_view> names;
  std::vector<const CheckpointSequence*> chosen;
  for (const CheckpointSequence& sequence : sequences) {
    if (!names.insert(sequence.name).second) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("two sequences are called ", base::quoted(sequence.name))};
    }
    if (only.empty() || std::find(only.begin(), only.end(), sequence.name) != only.end()) {
      chosen.push_back(&sequence);
    }
  }
  for (const std::string& name : only) {
    if (!names.contains(name)) {
      return {ErrorCode::kNotFound, base::str_cat("no sequence is called ", base::quoted(name),
                                                  "; there are ", sequences.size())};
    }
  }
  return chosen;
}

Status verify_parts(const Store& store, const Entry& entry) {
  for (const std::string& hash : objects_of(entry)) {
    QUIRE_TRY(const KVFile file, store.open_object(hash));
    QUIRE_TRY_STATUS(file.verify());
  }
  return {};
}

}  // namespace

Status CheckpointOptions::validate() const {
  const auto negative = [](const char* name, std::int64_t value) {
    return Status(ErrorCode::kInvalidArgument,
                  base::str_cat("checkpoints: ", name, " is ", value, ", must be at least 0"));
  };
  if (keep < 0) {
    return negative("keep", keep);
  }
  if (every_calls < 0) {
    return negative("every_calls", every_calls);
  }
  if (every_ms < 0) {
    return negative("every_ms", every_ms);
  }
  return {};
}

CheckpointManager::CheckpointManager(Store& store, CheckpointOptions options)
    : store_(&store), options_(std::move(options)), saved_ms_(store.now_ms()) {}

Result<CheckpointManager> CheckpointManager::create(Store& store, CheckpointOptions options) {
  QUIRE_TRY_STATUS(options.validate());
  return CheckpointManager(store, std::move(options));
}

std::string CheckpointManager::key_of(std::string_view name) const {
  return base::to_hex(
      base::FieldHasher().add("quire checkpoint").add(options_.series).add(name).finish());
}

Status CheckpointManager::put_pieces(const CheckpointSequence& sequence, const PagedStore& shelves,
                                     Checkpoint& checkpoint) {
  SavedSequence saved{.name = sequence.name, .metadata_json = sequence.metadata_json};
  for (const CheckpointPiece& piece : sequence.pieces) {
    QUIRE_TRY(const std::int64_t bytes,
              store_->put_object(piece.object, piece.content, shelves, piece.blocks));
    checkpoint.written_objects += bytes > 0 ? 1 : 0;
    checkpoint.written_bytes += bytes;
    EntryPart part{.object = piece.object};
    for (const SavedRun& run : piece.content.runs) {
      part.tokens += static_cast<std::int64_t>(run.tokens.size());
    }
    saved.parts.push_back(part);
    checkpoint.entry.parts.push_back(std::move(part));
  }
  checkpoint.sequences.push_back(std::move(saved));
  return {};
}

Result<Checkpoint> CheckpointManager::save(std::string name,
                                           std::span<const CheckpointSequence> sequences,
                                           const PagedStore& shelves,
                                           std::span<const std::string> only) {
  QUIRE_TRY(const auto chosen, choose(sequences, only));
  QUIRE_TRY(const std::vector<Checkpoint> earlier, list());
  Checkpoint checkpoint{.number = earlier.empty() ? 1 : earlier.front().number + 1};
  checkpoint.name =
      name.empty() ? base::str_cat("checkpoint-", checkpoint.number) : std::move(name);
  for (const CheckpointSequence* sequence : chosen) {
    QUIRE_TRY_STATUS(put_pieces(*sequence, shelves, checkpoint));
  }
  checkpoint.entry.key = key_of(checkpoint.name);
  checkpoint.entry.tenant = options_.tenant;
  checkpoint.entry.kind = EntryKind::kCheckpoint;
  checkpoint.entry.name = checkpoint.name;
  QUIRE_TRY(checkpoint.entry.metadata_json, describe(checkpoint, options_.series));
  QUIRE_TRY_STATUS(store_->put_entry(checkpoint.entry));
  calls_ = 0;
  saved_ms_ = store_->now_ms();
  if (options_.keep > 0) {
    QUIRE_TRY_STATUS(prune(options_.keep));
  }
  QUIRE_TRY(Checkpoint stored, find(checkpoint.name));
  stored.written_objects = checkpoint.written_objects;
  stored.written_bytes = checkpoint.written_bytes;
  return stored;
}

Result<std::vector<Checkpoint>> CheckpointManager::list() const {
  QUIRE_TRY(std::vector<Entry> entries,
            store_->list({.kind = EntryKind::kCheckpoint, .tenant = options_.tenant}));
  std::vector<Checkpoint> checkpoints;
  for (Entry& entry : entries) {
    QUIRE_TRY(auto read, read_checkpoint(std::move(entry)));
    if (read.second == options_.series) {
      checkpoints.push_back(std::move(read.first));
    }
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.number > b.number; });
  return checkpoints;
}

Result<Checkpoint> CheckpointManager::find(std::string_view name) const {
  QUIRE_TRY(std::optional<Entry> entry, store_->find(key_of(name), options_.tenant));
  if (!entry) {
    return {ErrorCode::kNotFound, base::str_cat("no checkpoint ", base::quoted(name), " in series ",
                                                base::quoted(options_.series))};
  }
  QUIRE_TRY(auto read, read_checkpoint(std::move(*entry)));
  return std::move(read.first);
}

Result<Checkpoint> CheckpointManager::latest() const {
  QUIRE_TRY(std::vector<Checkpoint> checkpoints, list());
  std::string reason = "none was saved";
  for (Checkpoint& checkpoint : checkpoints) {
    const Status whole = verify_parts(*store_, checkpoint.entry);
    if (whole.ok()) {
      return std::move(checkpoint);
    }
    reason = whole.error().message;
  }
  return {ErrorCode::kNotFound,
          base::str_cat("no whole checkpoint in series ", base::quoted(options_.series), ", ",
                        checkpoints.size(), " are damaged (", reason, ")")};
}

Result<bool> CheckpointManager::remove(std::string_view name) {
  return store_->remove(key_of(name), options_.tenant);
}

Result<std::int64_t> CheckpointManager::prune(std::int64_t keep) {
  QUIRE_TRY(const std::vector<Checkpoint> checkpoints, list());
  std::int64_t kept = 0, removed = 0;
  for (const Checkpoint& checkpoint : checkpoints) {
    if (checkpoint.entry.pinned || kept++ < keep) {
      continue;
    }
    QUIRE_TRY(const bool there, store_->remove(checkpoint.entry.key, options_.tenant));
    removed += there ? 1 : 0;
  }
  return removed;
}

bool CheckpointManager::due() {
  ++calls_;
  return (options_.every_calls > 0 && calls_ >= options_.every_calls) ||
         (options_.every_ms > 0 && store_->now_ms() - saved_ms_ >= options_.every_ms);
}

}  // namespace quire::kv_store
