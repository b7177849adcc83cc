#include "quire/engine/tier_service.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/str.h"
#include "quire/device/aligned_buffer.h"
#include "quire/engine/arrivals.h"
#include "quire/engine/block_run.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/saved_state.h"
#include "quire/engine/sequence_service.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_store.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

template <class Visit>
void for_each_head(const tensor::KVGeometry& geometry, Visit visit) {
  for (int layer = 0; layer < geometry.layers; ++layer) {
    for (int head = 0; head < geometry.kv_heads; ++head) {
      visit(layer, head);
    }
  }
}

void unpack(const HostSegment& segment, std::span<const BlockId> to,
            kv_store::PagedStore& shelves) {
  const auto piece = static_cast<std::size_t>(shelves.geometry().head_block_bytes());
  const std::byte* from = segment.bytes.data();
  for_each_head(shelves.geometry(), [&](int layer, int head) {
    for (const BlockId block : to) {
      std::memcpy(shelves.head_blocks(layer, head, block).data(), from, piece);
      from += piece;
    }
  });
}

Arrivals::Part take_last_block(Arrivals::Part& part) {
  Arrivals::Part last = part;
  last.to = {part.to.back()};
  part.to.pop_back();
  last.first_block += static_cast<std::int32_t>(part.to.size());
  return last;
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
  return kv_fingerprint(engine_.chunks().setup().model_digest, kernels_here());
}

base::KVFingerprint TierService::model_fingerprint() const {
  return kv_fingerprint(engine_.chunks().setup().model_digest, "");
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
    QUIRE_TRY_STATUS(await_arrival(part.blocks));
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
  unpack(segment, held->blocks, pool());
  return held;
}

Result<TierService::Shelved> TierService::shelve(const HostSegment& segment) const {
  const tensor::KVGeometry& geometry = shelves().geometry();
  const auto count = std::ssize(segment.bytes) / geometry.block_bytes();
  QUIRE_TRY(auto copy, kv_store::PagedStore::create(geometry, static_cast<std::int32_t>(count)));
  Shelved shelved{.shelves = std::move(copy)};
  for (std::int32_t block = 0; block < count; ++block) {
    shelved.blocks.push_back({block});
  }
  unpack(segment, shelved.blocks, shelved.shelves);
  return shelved;
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
  const auto start = std::chrono::steady_clock::now();
  for (int layer = 0; layer < pool().geometry().layers; ++layer) {
    QUIRE_TRY_STATUS(file.read_layer(run, layer, first_block, to, pool()));
  }
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  pace_.note_read(std::ssize(to) * pool().geometry().block_tokens, taken.count());
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

Result<TierService::Described> TierService::describe(const StateRef& state) {
  using Runs = std::vector<kv::RunView>;  // valid as long as the state
  QUIRE_TRY(const Runs runs,
            engine_.ask<Runs>([&]() -> Result<Runs> { return ledger().runs(state->sequence); }));
  Described described{
      .rest = {.sampled = state->sampled, .grade = state->grade, .kernels = kernels_here()}};
  if (!state->tokens.empty()) {
    described.rest.tail = {state->tokens.back()};
  }
  auto token = state->tokens.begin();
  for (const kv::RunView& run : runs) {
    const auto lost = std::ranges::count(run.blocks, -1, &BlockId::value);
    if (lost > 0) {
      return {ErrorCode::kUnsupported,
              base::str_cat("the model's window has freed the first ", lost,
                            " blocks of the sequence; it cannot be saved")};
    }
    if (run.num_tokens > 0) {
      described.runs.push_back(
          {.tokens = {token, token + run.num_tokens}, .start_position = run.start_position});
      const auto blocks = run.blocks.first(static_cast<std::size_t>(
          described.runs.back().num_blocks(pool().geometry().block_tokens)));
      described.blocks.emplace_back(blocks.begin(), blocks.end());
      token += run.num_tokens;
    }
  }
  for (const kv::RunView& run : std::span(runs).first(runs.size() - 1)) {
    described.rest.ranks.push_back(run.rank);
    described.rest.stored_from.push_back(run.stored_from);
  }
  described.rest.own_position = runs.back().start_position;
  for (const std::vector<BlockId>& run : described.blocks) {
    QUIRE_TRY_STATUS(await_arrival(run));
  }
  return described;
}

Status TierService::save(const StateRef& state, const std::filesystem::path& path,
                         const kv_store::WriteOptions& options) {
  QUIRE_TRY(Described described, describe(state));
  const kv_store::KVFileContent content{.fingerprint = model_fingerprint(),
                                        .geometry = pool().geometry(),
                                        .runs = std::move(described.runs),
                                        .metadata_json = to_json(described.rest)};
  const Status written = kv_store::write_kv_file(path, content, pool(), described.blocks, options);
  return written.ok() ? written : missing_file(written.error());
}

Status TierService::await_arrival(std::span<const BlockId> blocks) {
  using Loads = std::vector<Arrivals::LoadRef>;
  QUIRE_TRY(const Loads loads, engine_.ask<Loads>([&]() -> Result<Loads> {
    QUIRE_TRY_STATUS(arrivals_.check(blocks));
    return arrivals_.filling(blocks);
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
  return {ErrorCode::kOverflow, base::str_cat("saved tokens stand at ", position, " to ", end,
                                              ", the model's context ends at ", limit)};
}

// Room for the runs that the sequence was composed of.
Status TierService::reserve_before(std::span<const kv_store::SavedRun> runs, const SavedState& rest,
                                   Restored& restored) {
  for (std::size_t i = 0; i < rest.ranks.size(); ++i) {
    const kv_store::SavedRun& run = runs[i];
    QUIRE_TRY_STATUS(check_run(run.tokens, run.start_position));
    QUIRE_TRY(const HeldRef held, reserve(run.tokens, rest.stored_from[i]));
    restored.before.push_back(held);
    restored.uses.push_back(
        {.segment = held->id, .position = run.start_position, .rank = rest.ranks[i]});
  }
  return {};
}

Result<TierService::Restored> TierService::prepare(std::span<const kv_store::SavedRun> runs,
                                                   SavedState rest) {
  seal_foreign(runs, rest);
  Restored restored{.position = rest.own_position, .grade = rest.grade};
  QUIRE_TRY_STATUS(reserve_before(runs, rest, restored));
  if (runs.size() > rest.ranks.size()) {
    restored.own = runs.back().tokens;
  }
  restored.num_kv = static_cast<std::int32_t>(restored.own.size());
  restored.own.insert(restored.own.end(), rest.tail.begin(), rest.tail.end());
  QUIRE_TRY_STATUS(check_run(restored.own, rest.own_position));
  restored.sampled = std::min(rest.sampled, static_cast<std::int32_t>(restored.own.size()));
  const auto made = engine_.ask<bool>([&]() -> Result<bool> {
    const Status status = make_room(restored);
    return status.ok() ? Result<bool>(true) : status.error();
  });
  return made.ok() ? Result<Restored>(std::move(restored)) : made.error();
}

// Engine thread: the sequence, with room for its KV. What the prefix cache has of its own tokens is
// there already.
Status TierService::make_room(Restored& restored) {
  if (restored.uses.empty()) {
    restored.sequence = ledger().open(restored.own, true);
  } else {
    QUIRE_TRY(restored.sequence, ledger().compose(restored.uses, {.tokens = restored.own,
                                                                  .position = restored.position}));
  }
  const std::int32_t there = ledger().num_computed(restored.sequence);
  restored.missing = restored.num_kv - there;
  if (Status made = ledger().extend(restored.sequence, restored.missing); !made.ok()) {
    ledger().close(restored.sequence);
    return made;
  }
  for (const HeldRef& held : restored.before) {
    restored.parts.push_back({.run = static_cast<int>(restored.parts.size()), .to = held->blocks});
  }
  if (restored.missing > 0) {
    const std::int32_t first = there / pool().geometry().block_tokens;
    const kv::RunView own = ledger().runs(restored.sequence).back();
    restored.parts.push_back({.run = static_cast<int>(restored.parts.size()),
                              .first_block = first,
                              .to = {own.blocks.begin() + first, own.blocks.end()}});
  }
  return {};
}

Result<StateRef> TierService::restore(std::span<const kv_store::SavedRun> runs, SavedState rest,
                                      const ReadPart& read_part) {
  QUIRE_TRY(const Restored restored, prepare(runs, std::move(rest)));
  Status read;
  for (const Arrivals::Part& part : restored.parts) {
    read = read.ok() ? read_part(part, pool()) : read;
  }
  return engine_.ask<StateRef>([&]() -> Result<StateRef> {
    if (!read.ok()) {
      ledger().close(restored.sequence);
      return read.error();
    }
    ledger().advance(restored.sequence, restored.missing);
    return engine_.sequences().adopt(restored.sequence, restored.sampled, restored.grade);
  });
}

// The blocks stay with the loading sequence until all is read; the caller gets a fork of it.
Result<StateRef> TierService::restore_in_background(kv_store::KVFile file, SavedState rest) {
  QUIRE_TRY(Restored restored, prepare(file.content().runs, std::move(rest)));
  return engine_.ask<StateRef>([&] {
    ledger().advance_unpublished(restored.sequence, restored.missing);
    const SeqId state = ledger().fork(restored.sequence);
    const auto done = [this, sequence = restored.sequence,
                       held = std::move(restored.before)](const Status& status) {
      const bool last_is_right = arrivals_.check(ledger().runs(sequence).back().blocks).ok();
      if (status.ok() && last_is_right) {  // the last block was a load of its own
        ledger().publish(sequence);
      }
      ledger().close(sequence);
    };
    const auto shared = std::make_shared<const kv_store::KVFile>(std::move(file));
    // What is appended first copies the last block, in all layers, so that one is read before.
    if (!restored.parts.empty()) {
      arrivals_.start(shared, {take_last_block(restored.parts.back())}, [](const Status&) {});
    }
    arrivals_.start(shared, std::move(restored.parts), done);
    return engine_.sequences().adopt(state, restored.sampled, restored.grade);
  });
}

Result<StateRef> TierService::load(const std::filesystem::path& path, bool wait) {
  auto opened = kv_store::KVFile::open(path);
  if (!opened.ok()) {
    return missing_file(std::move(opened).error());
  }
  kv_store::KVFile file = std::move(opened).value();
  QUIRE_TRY_STATUS(file.check_fits(model_fingerprint(), pool().geometry()));
  const kv_store::KVFileContent& content = file.content();
  QUIRE_TRY(SavedState rest,
            parse_saved_state(content.metadata_json, content.runs.size(), path.string()));
  // A window gives up blocks while they are still being filled.
  if (!wait && pool().geometry().forget_after_tokens() == 0) {
    return restore_in_background(std::move(file), std::move(rest));
  }
  return restore(content.runs, std::move(rest),
                 [&](const Arrivals::Part& part, kv_store::PagedStore&) {
                   return read_run(file, part.run, part.first_block, part.to);
                 });
}

}  // namespace quire::engine
