#include "quire/engine/tier_service.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/json.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/device/aligned_buffer.h"
#include "quire/device/cpu/isa.h"
#include "quire/engine/block_run.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/sequence_service.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_store.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::string_view kSequenceKind = "sequence";
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 30;

template <class Visit>
void for_each_head(const tensor::KVGeometry& geometry, Visit visit) {
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      visit(layer, head);
    }
  }
}

// What a saved sequence says besides the tokens with KV: the runs before its own one, the tokens
// without KV, and where its sampler stands.
struct SavedSequence {
  std::vector<kv::MergeRank> ranks;       // of the runs that it was composed of
  std::vector<std::int32_t> stored_from;  // of the same runs
  std::int32_t own_position = 0;
  std::vector<TokenId> tail;  // the last token of a sequence that has one
  std::int32_t sampled = 0;
  ReuseGrade grade = ReuseGrade::kExact;
  std::string kernels;  // that computed the KV
};

std::string to_json(const SavedSequence& saved) {
  base::json::array ranks;
  for (const kv::MergeRank& rank : saved.ranks) {
    ranks.push_back({rank.chunk, rank.variant});
  }
  const base::json::object object{{"kind", kSequenceKind},
                                  {"ranks", ranks},
                                  {"stored_from", base::json::value_from(saved.stored_from)},
                                  {"own_position", saved.own_position},
                                  {"tail", base::json::value_from(saved.tail)},
                                  {"sampled", saved.sampled},
                                  {"grade", reuse_grade_name(saved.grade)},
                                  {"kernels", saved.kernels}};
  return base::json::serialize(object);
}

Error not_a_sequence(const std::filesystem::path& path, std::string_view why) {
  return {.code = ErrorCode::kCorrupt,
          .message = base::str_cat(path.string(), " holds no sequence: ", why)};
}

// The reading side of to_json. The file's bytes are verified, but who wrote them is not known.
Result<SavedSequence> parse_saved(const std::filesystem::path& path,
                                  const kv_store::KVFileContent& content) {
  QUIRE_TRY(const auto value, base::parse_json(content.metadata_json, path.string()));
  if (!value.is_object()) {
    return not_a_sequence(path, "its metadata is no object");
  }
  const base::json::object& object = value.as_object();
  QUIRE_TRY(const std::string kind, base::get_string(object, "kind", ""));
  if (kind != kSequenceKind) {
    return not_a_sequence(path, base::str_cat("it is of kind '", kind, "'"));
  }
  SavedSequence saved;
  QUIRE_TRY(const std::int64_t position, base::get_int(object, "own_position", 0));
  QUIRE_TRY(const std::int64_t sampled, base::get_int(object, "sampled", 0));
  QUIRE_TRY(saved.kernels, base::get_string(object, "kernels", ""));
  QUIRE_TRY(const std::string grade, base::get_string(object, "grade", ""));
  if (position < 0 || position > kMaxTokens || sampled < 0 || sampled > kMaxTokens) {
    return not_a_sequence(path, "a number of it is out of range");
  }
  saved.own_position = static_cast<std::int32_t>(position);
  saved.sampled = static_cast<std::int32_t>(sampled);
  saved.grade = grade == reuse_grade_name(ReuseGrade::kExact)       ? ReuseGrade::kExact
                : grade == reuse_grade_name(ReuseGrade::kEqualMath) ? ReuseGrade::kEqualMath
                                                                    : ReuseGrade::kApproximate;
  const auto* tail = base::find(object, "tail");
  const auto tokens = tail == nullptr
                          ? base::json::result<std::vector<TokenId>>(std::vector<TokenId>())
                          : base::json::try_value_to<std::vector<TokenId>>(*tail);
  const auto* ranks = base::find(object, "ranks");
  using Ranks = std::vector<std::pair<std::uint64_t, std::uint32_t>>;
  const auto pairs = ranks == nullptr ? base::json::result<Ranks>(Ranks())
                                      : base::json::try_value_to<Ranks>(*ranks);
  const auto* stored = base::find(object, "stored_from");
  const auto positions = stored == nullptr
                             ? base::json::result<std::vector<std::int32_t>>(
                                   std::vector<std::int32_t>(pairs.has_error() ? 0 : pairs->size()))
                             : base::json::try_value_to<std::vector<std::int32_t>>(*stored);
  if (tokens.has_error() || pairs.has_error() || tokens->size() > 1 || positions.has_error() ||
      positions->size() != pairs->size() ||
      std::ranges::any_of(*positions, [](std::int64_t p) { return p < 0 || p > kMaxTokens; })) {
    return not_a_sequence(path, "its tail or its runs are malformed");
  }
  saved.tail = *tokens;
  saved.stored_from = *positions;
  for (const auto& [chunk, variant] : *pairs) {
    saved.ranks.push_back({chunk, variant});
  }
  const std::size_t runs = content.runs.size();
  if (saved.ranks.size() > runs || runs > saved.ranks.size() + 1) {
    return not_a_sequence(
        path, base::str_cat("it has ", runs, " runs and ", saved.ranks.size(), " ranks"));
  }
  return saved;
}

std::string kernels_here() { return std::string(device::isa_name(device::best_isa())); }

// KV that is not what this machine would compute must not get into the prefix cache, where plain
// prompts find it: it becomes a run before the sequence's own one.
void seal_foreign(const kv_store::KVFileContent& content, SavedSequence& saved) {
  if (saved.kernels != kernels_here()) {
    saved.grade = std::max(saved.grade, ReuseGrade::kEqualMath);
  }
  if (saved.ranks.empty() && !content.runs.empty() && saved.grade != ReuseGrade::kExact) {
    const kv_store::SavedRun& run = content.runs.front();
    const std::int64_t end = run.start_position + std::ssize(run.tokens);  // checked with the run
    saved.own_position = static_cast<std::int32_t>(std::min(end, kMaxTokens));
    saved.ranks.emplace_back();
    saved.stored_from.emplace_back();
  }
  if (!saved.ranks.empty()) {
    saved.grade = std::max(saved.grade, ReuseGrade::kEqualMath);
  }
}

}  // namespace

Error missing_file(Error error) {
  if (error.code == ErrorCode::kNotFound) {
    error.code = ErrorCode::kIo;
  }
  return error;
}

HeldSegment::~HeldSegment() {
  if (const auto owner = engine.lock()) {
    owner->tiers().release(id);
  }
}

TierService::TierService(Engine& engine)
    : engine_(engine), arrivals_(pool(), ledger(), [&engine](std::function<void()> letter) {
        engine.post(std::move(letter));
      }) {}

kv::Ledger& TierService::ledger() const {
  auto& ledger = engine_.ledger_;
  QUIRE_CHECK(ledger.has_value(), "a running engine has a ledger");
  return *ledger;
}

kv_store::PagedStore& TierService::pool() const {
  auto& store = engine_.store_;
  QUIRE_CHECK(store.has_value(), "a running engine has a store");
  return *store;
}

const kv_store::PagedStore& TierService::shelves() const { return pool(); }

void TierService::release(kv::SegmentId segment) {
  engine_.post([this, segment] { ledger().drop_segment(segment); });
}

base::KVFingerprint TierService::fingerprint() const {
  base::FieldHasher hasher;
  hasher.add(engine_.chunks().setup().model_digest);
  hasher.add(kernels_here());
  return {.bytes = hasher.finish()};
}

base::KVFingerprint TierService::model_fingerprint() const {
  base::FieldHasher hasher;
  hasher.add(engine_.chunks().setup().model_digest);
  return {.bytes = hasher.finish()};
}

// The segment is the caller's from now on.
HeldRef TierService::keep(kv::SegmentId id) {
  const kv::Segment* segment = ledger().segment(id);
  QUIRE_CHECK(segment != nullptr, "no such segment");
  auto held = std::make_shared<HeldSegment>();
  held->id = id;
  held->tokens.assign(segment->tokens().begin(), segment->tokens().end());
  held->blocks.assign(segment->blocks().ids().begin(), segment->blocks().ids().end());
  held->engine = engine_.weak_from_this();
  return held;
}

Result<HeldRef> TierService::reserve(std::vector<TokenId> tokens, std::int32_t stored_from) {
  return engine_.ask<HeldRef>([&]() -> Result<HeldRef> {
    QUIRE_TRY(const kv::SegmentId id, ledger().reserve_segment(std::move(tokens), stored_from));
    return keep(id);
  });
}

Result<HeldRef> TierService::hold(const StateRef& state, const Interrupt& interrupted) {
  // Whatever follows the last token makes its KV necessary.
  QUIRE_TRY(const StateRef followed,
            engine_.sequences().append(state, std::array<TokenId, 1>{}, interrupted));
  return engine_.ask<HeldRef>([&]() -> Result<HeldRef> {
    QUIRE_TRY(const kv::SegmentId id, ledger().seal(followed->sequence));
    return keep(id);
  });
}

Result<std::vector<HeldRef>> TierService::copy_out(const StateRef& state, std::int64_t first,
                                                   std::int64_t last) {
  struct Part {
    std::vector<BlockId> blocks;  // of the run
    std::int32_t first = 0, count = 0, stored_from = 0;
  };
  using Parts = std::vector<Part>;
  QUIRE_TRY(const Parts parts, engine_.ask<Parts>([&]() -> Result<Parts> {
    Parts found;
    std::int64_t begin = 0;
    for (const kv::RunView& run : ledger().runs(state->sequence)) {
      const auto from = static_cast<std::int32_t>(std::max<std::int64_t>(first - begin, 0));
      const auto to =
          static_cast<std::int32_t>(std::min<std::int64_t>(last - begin, run.num_tokens));
      if (from < to) {
        found.push_back({.blocks = {run.blocks.begin(), run.blocks.end()},
                         .first = from,
                         .count = to - from,
                         .stored_from = run.stored_from + from});
      }
      begin += run.num_tokens;
    }
    return found;
  }));
  std::vector<HeldRef> copies;
  auto token = state->tokens.begin() + first;
  for (const Part& part : parts) {
    QUIRE_TRY_STATUS(await_arrival({&part.blocks, 1}));
    QUIRE_TRY(const HeldRef copy, reserve({token, token + part.count}, part.stored_from));
    pool().copy_run(part.blocks, part.first, part.count, copy->blocks);
    token += part.count;
    copies.push_back(copy);
  }
  return copies;
}

BlockRun TierService::run_of(const HeldRef& segment) {
  BlockRun run{.engine = segment->engine, .held = segment, .tokens = std::ssize(segment->tokens)};
  for (const BlockId block : segment->blocks) {
    run.blocks.push_back(block.value);
  }
  return run;
}

Result<HostRef> TierService::to_host(const HeldRef& segment) const {
  const kv_store::PagedStore& shelves = pool();
  const tensor::KVGeometry& geometry = shelves.geometry();
  const auto piece = static_cast<std::size_t>(geometry.head_block_bytes());
  const std::size_t heads =
      static_cast<std::size_t>(geometry.layers) * static_cast<std::size_t>(geometry.kv_heads);
  auto host = std::make_shared<HostSegment>();
  host->tokens = segment->tokens;
  host->bytes = device::AlignedBuffer<std::byte>(heads * segment->blocks.size() * piece);
  if (host->bytes.size() == 0) {
    return {ErrorCode::kOutOfBlocks, "the machine has no memory left for a copy of the KV"};
  }
  std::byte* to = host->bytes.data();
  for_each_head(geometry, [&](int layer, int head) {
    for (const BlockId block : segment->blocks) {
      std::memcpy(to, shelves.head_blocks(layer, head, block).data(), piece);
      to += piece;
    }
  });
  return HostRef(std::move(host));
}

Result<HeldRef> TierService::from_host(const HostSegment& segment) {
  QUIRE_TRY(HeldRef held, reserve(segment.tokens));
  kv_store::PagedStore& shelves = pool();
  const auto piece = static_cast<std::size_t>(shelves.geometry().head_block_bytes());
  const std::byte* from = segment.bytes.data();
  for_each_head(shelves.geometry(), [&](int layer, int head) {
    for (const BlockId block : held->blocks) {
      std::memcpy(shelves.head_blocks(layer, head, block).data(), from, piece);
      from += piece;
    }
  });
  return held;
}

kv_store::KVFileContent TierService::content_of(std::span<const HeldRef> segments,
                                                std::vector<std::vector<BlockId>>& blocks) const {
  kv_store::KVFileContent content{.fingerprint = fingerprint(), .geometry = pool().geometry()};
  for (const HeldRef& segment : segments) {
    content.runs.push_back({.tokens = segment->tokens});
    blocks.push_back(segment->blocks);
  }
  return content;
}

Status TierService::read_run(const kv_store::KVFile& file, int run, std::int32_t first_block,
                             std::span<const BlockId> to) {
  for (int layer = 0; layer < pool().geometry().layers; ++layer) {
    QUIRE_TRY_STATUS(file.read_layer(run, layer, first_block, to, pool()));
  }
  return {};
}

Result<std::vector<TokenId>> TierService::tokens_of_run(const kv_store::KVFile& file,
                                                        int run) const {
  QUIRE_TRY_STATUS(file.check_fits(fingerprint(), pool().geometry()));
  const auto& runs = file.content().runs;
  if (run < 0 || run >= std::ssize(runs)) {
    return {ErrorCode::kCorrupt, base::str_cat("the file has no run ", run)};
  }
  return runs[static_cast<std::size_t>(run)].tokens;
}

Result<HeldRef> TierService::from_file(const kv_store::KVFile& file, int run) {
  QUIRE_TRY(auto tokens, tokens_of_run(file, run));
  QUIRE_TRY(HeldRef held, reserve(std::move(tokens)));
  QUIRE_TRY_STATUS(read_run(file, run, 0, held->blocks));
  return held;
}

Result<kv::SegmentId> TierService::read_segment(const kv_store::KVFile& file, int run) {
  QUIRE_TRY(auto tokens, tokens_of_run(file, run));
  QUIRE_TRY(const kv::SegmentId id, ledger().reserve_segment(std::move(tokens)));
  const Status read = read_run(file, run, 0, ledger().segment(id)->blocks().ids());
  if (!read.ok()) {
    ledger().drop_segment(id);
    return read.error();
  }
  return id;
}

Status TierService::save(const StateRef& state, const std::filesystem::path& path,
                         const kv_store::WriteOptions& options) {
  SavedSequence saved{.sampled = state->sampled, .grade = state->grade, .kernels = kernels_here()};
  if (!state->tokens.empty()) {
    saved.tail = {state->tokens.back()};
  }
  kv_store::KVFileContent content{.fingerprint = model_fingerprint(),
                                  .geometry = pool().geometry()};
  std::vector<std::vector<BlockId>> blocks;
  using Runs = std::vector<kv::RunView>;
  QUIRE_TRY(const Runs runs, engine_.ask<Runs>([&]() -> Result<Runs> {
    Runs runs = ledger().runs(state->sequence);
    auto token = state->tokens.begin();
    for (const kv::RunView& run : runs) {
      const auto lost = std::ranges::count(run.blocks, -1, &BlockId::value);
      if (lost > 0) {
        return {ErrorCode::kUnsupported,
                base::str_cat("the model's window has freed the first ", lost,
                              " blocks of the sequence; it cannot be saved")};
      }
      if (run.num_tokens == 0) {
        continue;
      }
      blocks.emplace_back(run.blocks.begin(), run.blocks.end());
      content.runs.push_back(
          {.tokens = {token, token + run.num_tokens}, .start_position = run.start_position});
      token += run.num_tokens;
    }
    return runs;
  }));
  for (const kv::RunView& run : std::span(runs).first(runs.size() - 1)) {
    saved.ranks.push_back(run.rank);
    saved.stored_from.push_back(run.stored_from);
  }
  saved.own_position = runs.back().start_position;
  content.metadata_json = to_json(saved);
  QUIRE_TRY_STATUS(await_arrival(blocks));
  const Status written = kv_store::write_kv_file(path, content, pool(), blocks, options);
  return written.ok() ? written : missing_file(written.error());
}

Status TierService::await_arrival(std::span<const std::vector<BlockId>> blocks) {
  std::vector<BlockId> all;
  for (const std::vector<BlockId>& run : blocks) {
    all.insert(all.end(), run.begin(), run.end());
  }
  using Loads = std::vector<Arrivals::LoadRef>;
  QUIRE_TRY(const Loads loads, engine_.ask<Loads>([&]() -> Result<Loads> {
    QUIRE_TRY_STATUS(arrivals_.check(all));
    return arrivals_.filling(all);
  }));
  for (const Arrivals::LoadRef& load : loads) {
    QUIRE_TRY_STATUS(load->wait());
  }
  return {};
}

// A stranger's file may say anything.
Status TierService::check_run(std::span<const TokenId> tokens, std::int32_t position) const {
  if (!tokens.empty()) {
    QUIRE_TRY_STATUS(engine_.check_prompt(tokens));
  }
  const std::int64_t end = position + std::ssize(tokens);
  const std::int64_t limit = engine_.model_config().max_positions;
  if (position >= 0 && end <= limit) {
    return {};
  }
  return {ErrorCode::kOverflow, base::str_cat("the file's tokens stand at ", position, " to ", end,
                                              ", the model's context ends at ", limit)};
}

Result<TierService::Loaded> TierService::parse(const kv_store::KVFile& file,
                                               const std::filesystem::path& path) {
  QUIRE_TRY_STATUS(file.check_fits(model_fingerprint(), pool().geometry()));
  const kv_store::KVFileContent& content = file.content();
  QUIRE_TRY(SavedSequence saved, parse_saved(path, content));
  seal_foreign(content, saved);
  Loaded loaded{.position = saved.own_position, .grade = saved.grade};
  for (std::size_t i = 0; i < saved.ranks.size(); ++i) {
    const kv_store::SavedRun& run = content.runs[i];
    QUIRE_TRY_STATUS(check_run(run.tokens, run.start_position));
    QUIRE_TRY(const HeldRef held, reserve(run.tokens, saved.stored_from[i]));
    loaded.before.push_back(held);
    loaded.uses.push_back(
        {.segment = held->id, .position = run.start_position, .rank = saved.ranks[i]});
  }
  if (content.runs.size() > saved.ranks.size()) {
    loaded.own = content.runs.back().tokens;
  }
  loaded.num_kv = static_cast<std::int32_t>(loaded.own.size());
  loaded.own.insert(loaded.own.end(), saved.tail.begin(), saved.tail.end());
  QUIRE_TRY_STATUS(check_run(loaded.own, saved.own_position));
  loaded.sampled = std::min(saved.sampled, static_cast<std::int32_t>(loaded.own.size()));
  return loaded;
}

// Engine thread: the sequence, with room for its KV. What the prefix cache has of its own tokens is
// there already.
Result<TierService::Room> TierService::make_room(const Loaded& loaded) {
  Room room;
  if (loaded.uses.empty()) {
    room.sequence = ledger().open(loaded.own, true);
  } else {
    QUIRE_TRY(room.sequence,
              ledger().compose(loaded.uses, {.tokens = loaded.own, .position = loaded.position}));
  }
  const std::int32_t there = ledger().num_computed(room.sequence);
  room.missing = loaded.num_kv - there;
  if (Status made = ledger().extend(room.sequence, room.missing); !made.ok()) {
    ledger().close(room.sequence);
    return made.error();
  }
  for (const HeldRef& held : loaded.before) {
    room.parts.push_back({.run = static_cast<int>(room.parts.size()), .to = held->blocks});
  }
  if (room.missing > 0) {
    const std::int32_t first = there / pool().geometry().block_tokens;
    const kv::RunView own = ledger().runs(room.sequence).back();
    room.parts.push_back({.run = static_cast<int>(room.parts.size()),
                          .first_block = first,
                          .to = {own.blocks.begin() + first, own.blocks.end()}});
  }
  return room;
}

Status TierService::read_parts(const kv_store::KVFile& file,
                               std::span<const Arrivals::Part> parts) {
  for (const Arrivals::Part& part : parts) {
    QUIRE_TRY_STATUS(read_run(file, part.run, part.first_block, part.to));
  }
  return {};
}

Result<StateRef> TierService::load_now(const kv_store::KVFile& file, const Loaded& loaded,
                                       Room room) {
  const Status read = read_parts(file, room.parts);
  return engine_.ask<StateRef>([&]() -> Result<StateRef> {
    if (!read.ok()) {
      ledger().close(room.sequence);
      return read.error();
    }
    ledger().advance(room.sequence, room.missing);
    return engine_.sequences().adopt(room.sequence, loaded.sampled, loaded.grade);
  });
}

// The blocks stay with the loading sequence until all is read; the caller gets a fork of it.
Result<StateRef> TierService::load_in_background(kv_store::KVFile file, Loaded loaded, Room room) {
  // What is appended first copies the partly filled block, in all layers: that one is read now.
  Status tail;
  const bool partly_filled = loaded.num_kv % pool().geometry().block_tokens != 0;
  if (room.missing > 0 && partly_filled) {
    Arrivals::Part& own = room.parts.back();
    const BlockId last = own.to.back();
    own.to.pop_back();
    const auto at = own.first_block + static_cast<std::int32_t>(own.to.size());
    tail = read_run(file, own.run, at, {&last, 1});
  }
  return engine_.ask<StateRef>([&]() -> Result<StateRef> {
    if (!tail.ok()) {
      ledger().close(room.sequence);
      return tail.error();
    }
    ledger().advance_unpublished(room.sequence, room.missing);
    const SeqId state = ledger().fork(room.sequence);
    const auto done = [this, sequence = room.sequence,
                       held = std::move(loaded.before)](const Status& status) {
      if (status.ok()) {
        ledger().publish(sequence);
      }
      ledger().close(sequence);
    };
    arrivals_.start(std::move(file), std::move(room.parts), done);
    return engine_.sequences().adopt(state, loaded.sampled, loaded.grade);
  });
}

Result<StateRef> TierService::load(const std::filesystem::path& path, bool wait) {
  auto opened = kv_store::KVFile::open(path);
  if (!opened.ok()) {
    return missing_file(std::move(opened).error());
  }
  kv_store::KVFile file = std::move(opened).value();
  QUIRE_TRY(Loaded loaded, parse(file, path));
  QUIRE_TRY(Room room, engine_.ask<Room>([&] { return make_room(loaded); }));
  // A window gives up blocks while they are still being filled.
  if (wait || pool().geometry().forget_after_tokens() > 0 || room.parts.empty()) {
    return load_now(file, loaded, std::move(room));
  }
  return load_in_background(std::move(file), std::move(loaded), std::move(room));
}

}  // namespace quire::engine
