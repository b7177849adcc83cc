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
  std::vector<kv::MergeRank> ranks;  // of the runs that it was composed of
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
  if (tokens.has_error() || pairs.has_error() || tokens->size() > 1) {
    return not_a_sequence(path, "its tail or its ranks are malformed");
  }
  saved.tail = *tokens;
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

Result<HeldRef> TierService::reserve(std::vector<TokenId> tokens) {
  return engine_.ask<HeldRef>([&]() -> Result<HeldRef> {
    QUIRE_TRY(const kv::SegmentId id, ledger().reserve_segment(std::move(tokens)));
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
  kv_store::KVFileContent content{.fingerprint = fingerprint(), .geometry = pool().geometry()};
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
  }
  saved.own_position = runs.back().start_position;
  content.metadata_json = to_json(saved);
  const Status written = kv_store::write_kv_file(path, content, pool(), blocks, options);
  return written.ok() ? written : missing_file(written.error());
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

// Engine thread: the sequence behind `before`, with room for the KV of its first `num_kv` own
// tokens. What the prefix cache has of them is there already.
Result<TierService::Room> TierService::make_room(std::span<const kv::SegmentUse> before,
                                                 std::span<const TokenId> own,
                                                 std::int32_t position, std::int32_t num_kv) {
  Room room;
  if (before.empty()) {
    room.sequence = ledger().open(own, true);
  } else {
    QUIRE_TRY(room.sequence, ledger().compose(before, {.tokens = own, .position = position}));
  }
  room.first = ledger().num_computed(room.sequence);
  if (Status made = ledger().extend(room.sequence, num_kv - room.first); !made.ok()) {
    ledger().close(room.sequence);
    return made.error();
  }
  const kv::RunView run = ledger().runs(room.sequence).back();
  room.blocks.assign(run.blocks.begin(), run.blocks.end());
  return room;
}

Result<StateRef> TierService::load(const std::filesystem::path& path) {
  auto opened = kv_store::KVFile::open(path);
  if (!opened.ok()) {
    return missing_file(std::move(opened).error());
  }
  const kv_store::KVFile file = std::move(opened).value();
  QUIRE_TRY_STATUS(file.check_fits(fingerprint(), pool().geometry()));
  const kv_store::KVFileContent& content = file.content();
  QUIRE_TRY(SavedSequence saved, parse_saved(path, content));
  seal_foreign(content, saved);
  std::vector<HeldRef> held;
  std::vector<kv::SegmentUse> before;
  held.reserve(saved.ranks.size());
  before.reserve(saved.ranks.size());
  for (std::size_t i = 0; i < saved.ranks.size(); ++i) {
    const kv_store::SavedRun& run = content.runs[i];
    QUIRE_TRY_STATUS(check_run(run.tokens, run.start_position));
    QUIRE_TRY(held.emplace_back(), from_file(file, static_cast<int>(i)));
    before.push_back(
        {.segment = held[i]->id, .position = run.start_position, .rank = saved.ranks[i]});
  }
  std::vector<TokenId> own;
  if (content.runs.size() > before.size()) {
    own = content.runs.back().tokens;
  }
  const auto num_kv = static_cast<std::int32_t>(own.size());
  own.insert(own.end(), saved.tail.begin(), saved.tail.end());
  QUIRE_TRY_STATUS(check_run(own, saved.own_position));
  const std::int32_t sampled = std::min(saved.sampled, static_cast<std::int32_t>(own.size()));
  QUIRE_TRY(const Room room,
            engine_.ask<Room>([&] { return make_room(before, own, saved.own_position, num_kv); }));
  const std::int32_t first_block = room.first / pool().geometry().block_tokens;
  const Status read =
      num_kv == room.first
          ? Status()
          : read_run(file, static_cast<int>(before.size()), first_block,
                     std::span(room.blocks).subspan(static_cast<std::size_t>(first_block)));
  return engine_.ask<StateRef>([&]() -> Result<StateRef> {
    if (!read.ok()) {
      ledger().close(room.sequence);
      return read.error();
    }
    ledger().advance(room.sequence, num_kv - room.first);
    return engine_.sequences().adopt(room.sequence, sampled, saved.grade);
  });
}

}  // namespace quire::engine
