#include "quire/kv_store/checkpoint_manager.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/kv/format.h"
#include "quire/kv_store/checkpoint.h"
#include "quire/kv_store/checkpoint_metadata.h"
#include "quire/kv_store/corrupt.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/saved_states.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

// Returns the sequences named in `only`, or all.
Result<std::vector<const LiveSequence*>> choose(std::span<const LiveSequence> sequences,
                                                std::span<const std::string> only) {
  std::set<std::string_view> names;
  std::vector<const LiveSequence*> chosen;
  for (const LiveSequence& sequence : sequences) {
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

// Returns the blocks of a range of the run, or none when the range is lost.
std::vector<BlockId> blocks_of(const LiveRun& live, const SavedRange& range, int block_tokens) {
  if (range.end <= live.run.lost_tokens(block_tokens)) {
    return {};
  }
  const std::int64_t first = range.begin / block_tokens - live.run.lost_blocks;
  const std::int64_t end = (range.end + block_tokens - 1) / block_tokens - live.run.lost_blocks;
  return {live.blocks.begin() + first, live.blocks.begin() + end};
}

// Reads the one run that a range has.
Status read_layers(const KVFileRange& range, PagedPool& pool) {
  for (int layer = 0; layer < pool.geometry().layers; ++layer) {
    QUIRE_TRY_STATUS(range.read_layer(layer, pool));
  }
  return {};
}

// Returns how many leading blocks of a range have lost their window part.
std::int32_t lost_parts_of(const LiveRun& live, const SavedRange& range, int block_tokens) {
  const std::int64_t blocks = (range.end - range.begin + block_tokens - 1) / block_tokens;
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(live.run.lost_parts - range.begin / block_tokens, 0, blocks));
}

// Puts what an object has behind what there is of a run of `run_tokens` tokens; false when it does
// not follow there. Only what comes first may be lost, but window parts before such as are there.
bool add_range(const KVFileContent& content, const ObjectRange& range, std::int64_t run_tokens,
               SavedRun& run) {
  if (content.runs.size() != 1) {
    return false;
  }
  const SavedRun& added = content.runs.front();
  const int block_tokens = content.geometry.block_tokens;
  const std::int64_t before = std::ssize(run.tokens);
  const bool follows = added.start_position == run.start_position + before &&
                       before % block_tokens == 0 && before + range.tokens <= run_tokens;
  const bool all_lost = run.lost_tokens(block_tokens) == before;
  if (!follows || range.first_token != 0 || std::ssize(added.tokens) != range.tokens ||
      (added.lost_blocks > 0 && !all_lost)) {
    return false;
  }
  run.lost_blocks += added.lost_blocks;
  if (added.lost_parts > 0) {
    run.lost_parts = static_cast<std::int32_t>(before / block_tokens) + added.lost_parts;
  }
  run.tokens.insert(run.tokens.end(), added.tokens.begin(), added.tokens.end());
  return true;
}

// Returns whether both are KV of one model in blocks of one size, whatever its formats.
bool is_alike(const tensor::KVGeometry& a, tensor::KVGeometry b) {
  b.dtype = a.dtype;
  b.format = a.format;
  return geometry_difference(a, b).empty();
}

// Returns the geometry of the pool that a sequence was saved from. It is that of its last run, or
// of blocks that are written whole where the last run is the rest behind them.
const tensor::KVGeometry& own_geometry(const LiveSequence& sequence) {
  const LiveRun& last = sequence.runs.back();
  if (sequence.runs.size() < 2) {
    return last.geometry;
  }
  const LiveRun& before = sequence.runs[sequence.runs.size() - 2];
  const bool goes_on =
      last.run.start_position == before.run.start_position + std::ssize(before.run.tokens);
  const bool is_rest = last.geometry.format == tensor::KVFormat::kPlain &&
                       std::ssize(last.run.tokens) < last.geometry.block_tokens;
  return goes_on && is_rest && tensor::is_written_by_block(before.geometry.format) ? before.geometry
                                                                                   : last.geometry;
}

// Makes a pool for the blocks of a saved sequence, and names them. Each run has its format there,
// and the pool its own, as where it was saved.
Result<PagedPool> scratch_pool(LiveSequence& sequence) {
  const tensor::KVGeometry& own = own_geometry(sequence);
  std::int64_t bytes = 0;  // of one head
  for (LiveRun& live : sequence.runs) {
    const std::int64_t block = live.geometry.head_block_bytes();
    bytes = (bytes + block - 1) / block * block;
    for (std::int32_t left = live.run.num_blocks_with_kv(own.block_tokens); left > 0; --left) {
      live.blocks.push_back({static_cast<std::int32_t>(bytes / block)});
      bytes += block;
    }
  }
  const std::int64_t blocks = (bytes + own.head_block_bytes() - 1) / own.head_block_bytes();
  QUIRE_TRY(PagedPool pool,
            PagedPool::create(own, static_cast<std::int32_t>(std::max<std::int64_t>(blocks, 1))));
  for (LiveRun& live : sequence.runs) {
    const auto known = pool.find_format(live.geometry);
    if (known) {
      live.format = *known;
    } else {
      QUIRE_TRY(live.format, pool.add_format(live.geometry));
    }
  }
  return pool;
}

Error not_a_range(const ObjectRange& range, const SavedSequence& saved) {
  return {.code = ErrorCode::kCorrupt,
          .message = base::str_cat("object ", range.object, " is no range of sequence ",
                                   base::quoted(saved.name))};
}

Status verify_parts(const Store& store, const StoreEntry& entry) {
  for (const std::string& hash : objects_of(entry)) {
    QUIRE_TRY(const KVFile file, store.objects().open(hash));
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
  if (every_tokens < 0) {
    return negative("every_tokens", every_tokens);
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

Status CheckpointManager::put_ranges(const LiveSequence& sequence,
                                     std::span<const SavedRange> ranges, const PagedPool& pool,
                                     Checkpoint& checkpoint) {
  SavedSequence saved{.name = sequence.name,
                      .metadata_json = sequence.metadata_json,
                      .kernels = sequence.kernels,
                      .follows_from_tokens = sequence.follows_from_tokens};
  for (const LiveRun& live : sequence.runs) {
    saved.runs.push_back({.tokens = static_cast<std::int64_t>(live.run.tokens.size()),
                          .start_position = live.run.start_position});
  }
  const int block_tokens = pool.geometry().block_tokens;
  for (const SavedRange& range : ranges) {
    const LiveRun& live = sequence.runs[range.run];
    const SavedRun& run = live.run;
    KVFileContent content{.fingerprint = sequence.fingerprint,
                          .geometry = pool.geometry(live.format)};
    content.runs = {
        {.tokens = {run.tokens.begin() + range.begin, run.tokens.begin() + range.end},
         .start_position = run.start_position + static_cast<std::int32_t>(range.begin)}};
    const std::vector<BlockId> held = blocks_of(live, range, block_tokens);
    if (held.empty()) {
      content.runs[0].lost_blocks = content.runs[0].num_blocks(block_tokens);
    }
    content.runs[0].lost_parts = range.lost_parts;
    std::string object = range.object;
    if (!range.instead.empty()) {  // only the known object has what has gone
      QUIRE_TRY(const bool there, store_->objects().has(object, content));
      if (!there) {
        object = range.instead;
        content.runs[0].lost_parts = lost_parts_of(live, range, block_tokens);
      }
    }
    QUIRE_TRY(const std::int64_t bytes,
              store_->objects().put(object, std::move(content), pool, {&held, 1}));
    checkpoint.written_objects += bytes > 0 ? 1 : 0;
    checkpoint.written_bytes += bytes;
    saved.parts.push_back({.object = std::move(object), .tokens = range.end - range.begin});
    checkpoint.entry.parts.push_back(saved.parts.back());
  }
  QUIRE_TRY_STATUS(put_states(sequence, pool, checkpoint, saved));
  checkpoint.sequences.push_back(std::move(saved));
  return {};
}

// Puts each state of a sequence as an object of its own. One that a later state makes of less use
// goes with its checkpoint.
Status CheckpointManager::put_states(const LiveSequence& sequence, const PagedPool& pool,
                                     Checkpoint& checkpoint, SavedSequence& saved) {
  for (std::size_t i = 0; i < sequence.states.at.size(); ++i) {
    const StateAt& state = sequence.states.at[i];
    KVFileContent content{.fingerprint = sequence.fingerprint, .geometry = pool.geometry()};
    content.states = {.parts = sequence.states.parts, .at = {state}};
    const std::string object = name_of_state(sequence, i, options_.tenant, pool);
    QUIRE_TRY(const std::int64_t bytes, store_->objects().put(object, std::move(content), pool, {},
                                                              {&sequence.state_bytes[i], 1}));
    checkpoint.written_objects += bytes > 0 ? 1 : 0;
    checkpoint.written_bytes += bytes;
    saved.states.push_back({.tokens = state.tokens, .object = object});
    checkpoint.entry.parts.push_back({.object = object});
  }
  return {};
}

Result<KVFile> CheckpointManager::open_state(const SavedSequence& saved, std::size_t index) const {
  const SavedSequence::StateObject& state = saved.states[index];
  QUIRE_TRY(KVFile file, store_->objects().open(state.object));
  const KVFileContent& content = file.content();
  if (!content.runs.empty() || content.states.at.size() != 1 ||
      content.states.at.front().tokens != state.tokens) {
    return corrupt(base::str_cat("object ", state.object, " is no state of sequence ",
                                 base::quoted(saved.name), " behind ", state.tokens, " tokens"));
  }
  return file;
}

Status CheckpointManager::complete_entry(Checkpoint& checkpoint) const {
  checkpoint.entry.key = key_of(checkpoint.name);
  checkpoint.entry.tenant = options_.tenant;
  checkpoint.entry.kind = EntryKind::kCheckpoint;
  checkpoint.entry.name = checkpoint.name;
  QUIRE_TRY(checkpoint.entry.metadata_json, describe_checkpoint(checkpoint, options_.series));
  return {};
}

Status CheckpointManager::put_numbered(Checkpoint& checkpoint) {
  for (;; ++checkpoint.number) {
    checkpoint.name = base::str_cat("checkpoint-", checkpoint.number);
    QUIRE_TRY_STATUS(complete_entry(checkpoint));
    QUIRE_TRY(const bool put, store_->entries().put_new(checkpoint.entry));
    if (put) {
      return {};
    }
  }
}

Result<Checkpoint> CheckpointManager::put_checkpoint(Checkpoint checkpoint) {
  if (checkpoint.name.empty()) {
    QUIRE_TRY_STATUS(put_numbered(checkpoint));
  } else {
    QUIRE_TRY_STATUS(complete_entry(checkpoint));
    QUIRE_TRY_STATUS(store_->entries().put(checkpoint.entry));
  }
  QUIRE_TRY(Checkpoint stored, find(checkpoint.name));
  stored.written_objects = checkpoint.written_objects;
  stored.written_bytes = checkpoint.written_bytes;
  return stored;
}

Result<Checkpoint> CheckpointManager::save(const std::string& name,
                                           std::span<const LiveSequence> sequences,
                                           const PagedPool& pool,
                                           std::span<const std::string> only) {
  QUIRE_TRY(const auto chosen, choose(sequences, only));
  QUIRE_TRY(Checkpoint stored, put_until_there([&] { return put(name, chosen, pool); }));
  saved_ms_ = store_->now_ms();
  if (options_.keep > 0) {
    QUIRE_TRY_STATUS(prune(options_.keep));
  }
  return stored;
}

Result<Checkpoint> CheckpointManager::put(const std::string& name,
                                          std::span<const LiveSequence* const> sequences,
                                          const PagedPool& pool) {
  QUIRE_TRY(const std::vector<Checkpoint> earlier, list());
  RangeCutter cutter(options_.tenant);
  for (const Checkpoint& known : earlier) {
    for (const SavedSequence& sequence : known.sequences) {
      cutter.learn(sequence.parts);
    }
  }
  Checkpoint checkpoint{.name = name, .number = earlier.empty() ? 1 : earlier.front().number + 1};
  const auto cuts = common_cuts(sequences);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    QUIRE_TRY_STATUS(
        put_ranges(*sequences[i], cutter.cut(*sequences[i], pool, cuts[i]), pool, checkpoint));
  }
  return put_checkpoint(std::move(checkpoint));
}

Result<LiveSequence> CheckpointManager::tokens_of(const SavedSequence& saved) const {
  LiveSequence sequence{.name = saved.name,
                        .metadata_json = saved.metadata_json,
                        .kernels = saved.kernels,
                        .follows_from_tokens = saved.follows_from_tokens};
  for (const SavedSequence::RunShape& run : saved.runs) {
    sequence.runs.push_back({.run = {.start_position = run.start_position}});
  }
  std::size_t run = 0;
  for (const ObjectRange& range : saved.parts) {
    QUIRE_TRY(const KVFile file, store_->objects().open(range.object));
    const KVFileContent& content = file.content();
    if (run == sequence.runs.size()) {
      return not_a_range(range, saved);
    }
    SavedRun& whole = sequence.runs[run].run;
    const bool alike = sequence.fingerprint.empty() ||
                       (sequence.fingerprint == content.fingerprint &&
                        is_alike(sequence.runs.front().geometry, content.geometry));
    const bool goes_on = whole.tokens.empty() ||
                         geometry_difference(sequence.runs[run].geometry, content.geometry).empty();
    if (!alike || !goes_on || !add_range(content, range, saved.runs[run].tokens, whole)) {
      return not_a_range(range, saved);
    }
    sequence.fingerprint = content.fingerprint;
    sequence.runs[run].geometry = content.geometry;
    run += std::ssize(whole.tokens) == saved.runs[run].tokens ? 1 : 0;
  }
  for (const LiveRun& live : sequence.runs) {
    QUIRE_TRY_STATUS(check_goes_on(live.geometry, live.run));
  }
  return sequence;
}

Result<std::vector<KVFileRange>> CheckpointManager::open_blocks(const SavedSequence& saved,
                                                                const BlockRange& wanted,
                                                                std::int64_t block_tokens) const {
  const auto run = static_cast<std::size_t>(wanted.run);
  const std::int64_t first = wanted.first_block, last = first + std::ssize(wanted.to);
  std::vector<KVFileRange> opened;
  std::int64_t at = 0;  // begin of a range, in tokens of the run
  for (std::size_t before = 0; before < run; ++before) {
    at -= saved.runs[before].tokens;
  }
  for (const ObjectRange& range : saved.parts) {
    const std::int64_t start = std::exchange(at, at + range.tokens);
    if (start < 0 || start >= saved.runs[run].tokens) {
      continue;  // a range of another run
    }
    const std::int64_t begin = start / block_tokens;  // blocks that the range has
    const std::int64_t end = (at + block_tokens - 1) / block_tokens;
    const std::int64_t from = std::max(begin, first), until = std::min(end, last);
    if (from < until) {
      QUIRE_TRY(KVFile file, store_->objects().open(range.object));
      BlockRange blocks = wanted.part(static_cast<std::int32_t>(from - first),
                                      static_cast<std::int32_t>(until - from));
      blocks.run = 0;
      blocks.first_block = static_cast<std::int32_t>(from - begin);
      opened.push_back(
          {.file = std::make_shared<const KVFile>(std::move(file)), .blocks = std::move(blocks)});
    }
  }
  return opened;
}

Status CheckpointManager::read(const SavedSequence& saved, std::size_t run,
                               std::int32_t first_block, std::span<const BlockId> to,
                               PagedPool& pool, std::int32_t without_part) const {
  QUIRE_TRY(const auto ranges, open_blocks(saved,
                                           {.run = static_cast<int>(run),
                                            .first_block = first_block,
                                            .to = {to.begin(), to.end()},
                                            .without_part = without_part},
                                           pool.geometry().block_tokens));
  for (const KVFileRange& range : ranges) {
    QUIRE_TRY_STATUS(read_layers(range, pool));
  }
  return {};
}

// Compacts one sequence, with a scratch pool that holds this one alone.
Status CheckpointManager::compact_sequence(const SavedSequence& saved, LiveSequence sequence,
                                           RangeCutter& cutter, std::span<const std::int64_t> cuts,
                                           Checkpoint& checkpoint) {
  if (saved.parts.empty()) {
    checkpoint.sequences.push_back(saved);
    return {};
  }
  QUIRE_TRY(PagedPool pool, scratch_pool(sequence));
  for (std::size_t run = 0; run < sequence.runs.size(); ++run) {
    const LiveRun& live = sequence.runs[run];
    QUIRE_TRY_STATUS(
        read(saved, run, live.run.lost_blocks, live.blocks, pool, live.run.lost_parts));
  }
  QUIRE_TRY_STATUS(put_ranges(sequence, cutter.cut(sequence, pool, cuts), pool, checkpoint));
  checkpoint.sequences.back().states = saved.states;  // each is an object of its own already
  for (const SavedSequence::StateObject& state : saved.states) {
    checkpoint.entry.parts.push_back({.object = state.object});
  }
  return {};
}

Result<Checkpoint> CheckpointManager::compact(std::string_view name) {
  QUIRE_TRY(const Checkpoint before, find(name));
  std::vector<LiveSequence> sequences;
  std::vector<const LiveSequence*> borrowed;
  sequences.reserve(before.sequences.size());
  for (const SavedSequence& saved : before.sequences) {
    QUIRE_TRY(sequences.emplace_back(), tokens_of(saved));
    borrowed.push_back(&sequences.back());
  }
  const auto cuts = common_cuts(borrowed);
  RangeCutter cutter(options_.tenant);
  Checkpoint checkpoint{.name = before.name, .number = before.number};
  checkpoint.entry.pinned = before.entry.pinned;
  checkpoint.entry.created_ms = before.entry.created_ms;
  checkpoint.entry.ttl_ms = before.entry.ttl_ms;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    QUIRE_TRY_STATUS(compact_sequence(before.sequences[i], std::move(sequences[i]), cutter, cuts[i],
                                      checkpoint));
  }
  return put_checkpoint(std::move(checkpoint));
}

Result<std::vector<Checkpoint>> CheckpointManager::list(std::vector<Error>* malformed) const {
  QUIRE_TRY(std::vector<StoreEntry> entries,
            store_->entries().list({.kind = EntryKind::kCheckpoint, .tenant = options_.tenant}));
  std::vector<Checkpoint> checkpoints;
  for (StoreEntry& entry : entries) {
    if (entry.key != key_of(entry.name)) {
      continue;  // an entry of another series
    }
    auto checkpoint = read_checkpoint(std::move(entry));
    if (checkpoint.ok()) {
      checkpoints.push_back(std::move(checkpoint).value());
    } else if (malformed != nullptr) {
      malformed->push_back(std::move(checkpoint).error());
    }
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const Checkpoint& a, const Checkpoint& b) { return a.number > b.number; });
  return checkpoints;
}

Result<Checkpoint> CheckpointManager::find(std::string_view name) const {
  QUIRE_TRY(std::optional<StoreEntry> entry, store_->entries().find(key_of(name), options_.tenant));
  if (!entry) {
    return {ErrorCode::kNotFound, base::str_cat("no checkpoint ", base::quoted(name), " in series ",
                                                base::quoted(options_.series))};
  }
  return read_checkpoint(std::move(*entry));
}

Result<Checkpoint> CheckpointManager::latest() const {
  std::vector<Error> malformed;
  QUIRE_TRY([[maybe_unused]] const auto known, list(&malformed));
  std::set<std::int64_t> passed_over;
  auto newest = take_newest(*this, [&](Checkpoint& checkpoint) -> Result<Checkpoint> {
    const Status whole = verify_parts(*store_, checkpoint.entry);
    if (whole.ok()) {
      return std::move(checkpoint);
    }
    passed_over.insert(checkpoint.number);
    return {ErrorCode::kCorrupt, whole.error().message};
  });
  const std::size_t damaged = passed_over.size() + malformed.size();
  if (newest.ok() || (damaged == 0 && newest.error().code != ErrorCode::kNotFound)) {
    return newest;
  }
  return {ErrorCode::kNotFound,
          base::str_cat("no whole checkpoint in series ", base::quoted(options_.series), ", ",
                        damaged, " are damaged (", newest.error().message, ")")};
}

Result<bool> CheckpointManager::remove(std::string_view name) {
  return store_->remover().remove(key_of(name), options_.tenant);
}

Result<std::int64_t> CheckpointManager::prune(std::int64_t keep) {
  QUIRE_TRY(const std::vector<Checkpoint> checkpoints, list());
  std::int64_t kept = 0, removed = 0;
  for (const Checkpoint& checkpoint : checkpoints) {
    if (checkpoint.entry.pinned || kept++ < keep) {
      continue;
    }
    QUIRE_TRY(const bool there, store_->remover().remove(checkpoint.entry.key, options_.tenant));
    removed += there ? 1 : 0;
  }
  return removed;
}

bool CheckpointManager::due(std::int64_t new_tokens) const {
  return new_tokens > 0 &&
         ((options_.every_tokens > 0 && new_tokens >= options_.every_tokens) ||
          (options_.every_ms > 0 && store_->now_ms() - saved_ms_ >= options_.every_ms));
}

}  // namespace quire::kv_store
