#include "quire/engine/tier_service.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/engine/arrivals.h"
#include "quire/engine/block_run.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/saved_state.h"
#include "quire/engine/sequence_service.h"
#include "quire/engine/session_service.h"
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

// From so many bytes on layers are read by several threads: one core copies and hashes more slowly
// than memory and disk give.
constexpr std::int64_t kSharedBytes = std::int64_t{1} << 20;
constexpr int kMostReaders = 4;

std::vector<BlockId> first_blocks(std::int64_t count) {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<std::size_t>(count));
  for (std::int32_t block = 0; block < count; ++block) {
    blocks.push_back({block});
  }
  return blocks;
}

// All of a part. The readers take one layer after the other; one of them is the caller, who is
// alone when the system gives no thread.
Status read_layers(const kv_store::KVFile& file, const kv_store::RunPart& part,
                   kv_store::PagedStore& shelves, int readers) {
  std::atomic<int> next = 0;
  const auto read = [&] {
    Status status;
    for (int layer = next++; layer < shelves.geometry().layers && status.ok(); layer = next++) {
      status = file.read_layer(part.run, layer, part.first_block, part.to, shelves);
    }
    return status;
  };
  std::vector<std::future<Status>> others;
  try {
    while (std::ssize(others) + 1 < readers) {
      others.push_back(std::async(std::launch::async, read));
    }
  } catch (const std::system_error&) {
    readers = static_cast<int>(std::ssize(others)) + 1;  // those that there are read all
  }
  Status status = read();
  for (std::future<Status>& other : others) {
    const Status also = other.get();
    status = status.ok() ? also : status;
  }
  return status;
}

kv_store::RunPart take_last_block(kv_store::RunPart& part) {
  kv_store::RunPart last = part;
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

std::string TierService::kernels() const {
  const device::Accelerator* const accelerator = engine_.accelerator();
  return accelerator == nullptr ? kernels_here()
                                : accelerator->kernels(engine_.options_.deterministic);
}

base::KVFingerprint TierService::fingerprint() const {
  return kv_fingerprint(engine_.chunks().setup().model_digest, kernels());
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

Result<HeldRef> TierService::reserve(const std::vector<TokenId>& tokens, std::int32_t stored_from) {
  return engine_.ask_for_blocks<HeldRef>([&]() -> Result<HeldRef> {
    QUIRE_TRY(const kv::SegmentId id, reserve_blocks(tokens, stored_from));
    return keep(id);
  });
}

// Engine thread. Nobody waits for blocks that must be moved for these: they are written at once.
Result<kv::SegmentId> TierService::reserve_blocks(std::vector<TokenId> tokens,
                                                  std::int32_t stored_from) {
  QUIRE_TRY(const kv::SegmentId id, ledger().reserve_segment(std::move(tokens), stored_from));
  if (Status copied = engine_.copy_blocks_now(); !copied.ok()) {
    ledger().drop_segment(id);
    return copied.error();
  }
  return id;
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
    QUIRE_TRY_STATUS(pool().copy_run(part.blocks, part.first, part.count, copy->blocks));
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
  const auto block_bytes = static_cast<std::size_t>(pool().geometry().block_bytes());
  auto host = std::make_shared<HostSegment>();
  host->tokens = segment->tokens;
  host->bytes = pool().host_buffer(segment->blocks.size() * block_bytes);
  if (host->bytes.size() == 0) {
    return {ErrorCode::kOutOfBlocks, "the machine has no memory left for a copy of the KV"};
  }
  QUIRE_TRY_STATUS(pool().read_blocks(segment->blocks, host->bytes.span()));
  return HostRef(std::move(host));
}

Result<HeldRef> TierService::from_host(const HostSegment& segment) {
  QUIRE_TRY(HeldRef held, reserve(segment.tokens));
  QUIRE_TRY_STATUS(pool().write_blocks(held->blocks, segment.bytes.span()));
  return held;
}

Result<TierService::Shelved> TierService::shelve(const HostSegment& segment) const {
  const tensor::KVGeometry& geometry = shelves().geometry();
  const auto count = std::ssize(segment.bytes) / geometry.block_bytes();
  QUIRE_TRY(auto copy, kv_store::PagedStore::create(geometry, static_cast<std::int32_t>(count)));
  Shelved shelved{.shelves = std::move(copy), .blocks = first_blocks(count)};
  QUIRE_TRY_STATUS(shelved.shelves.write_blocks(shelved.blocks, segment.bytes.span()));
  return shelved;
}

Result<TierService::Readable> TierService::readable(
    std::span<const std::vector<BlockId>> runs) const {
  Readable readable{.runs = {runs.begin(), runs.end()}};
  if (!pool().on_device()) {
    readable.pool = &pool();
    return readable;
  }
  std::vector<BlockId> all;
  for (std::vector<BlockId>& run : readable.runs) {
    for (BlockId& block : run) {
      all.push_back(std::exchange(block, {static_cast<std::int32_t>(all.size())}));
    }
  }
  QUIRE_TRY(auto copy, staging(std::ssize(all)));
  if (!all.empty()) {
    QUIRE_TRY_STATUS(pool().read_blocks(all, copy.all_bytes()));
  }
  readable.copy = std::make_unique<kv_store::PagedStore>(std::move(copy));
  return readable;
}

// Shelves in host memory for KV on its way to or from the device.
Result<kv_store::PagedStore> TierService::staging(std::int64_t blocks) const {
  return pool().create_beside(static_cast<std::int32_t>(std::max<std::int64_t>(blocks, 1)));
}

// `read` fills blocks of the shelves that it is given; what it has filled ends in `to`.
Status TierService::fill(std::span<const BlockId> to, const FillBlocks& read) const {
  if (!pool().on_device()) {
    return read(to, pool());
  }
  QUIRE_TRY(auto copy, staging(std::ssize(to)));
  QUIRE_TRY_STATUS(read(first_blocks(std::ssize(to)), copy));
  return to.empty() ? Status() : pool().write_blocks(to, copy.all_bytes());
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

Status TierService::read_part(const kv_store::KVFile& file, const kv_store::RunPart& part,
                              kv_store::PagedStore& shelves) {
  const auto start = std::chrono::steady_clock::now();
  const bool large = std::ssize(part.to) * shelves.geometry().block_bytes() >= kSharedBytes;
  const int readers = large ? std::min(engine_.pool_.threads(), kMostReaders) : 1;
  QUIRE_TRY_STATUS(read_layers(file, part, shelves, readers));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  pace_.note_read(std::ssize(part.to) * shelves.geometry().block_tokens, taken.count());
  return {};
}

Status TierService::read_run(const kv_store::KVFile& file, int run, std::span<const BlockId> to) {
  return fill(to, [&](std::span<const BlockId> blocks, kv_store::PagedStore& shelves) {
    return read_part(file, {.run = run, .to = {blocks.begin(), blocks.end()}}, shelves);
  });
}

Result<std::vector<TokenId>> TierService::tokens_of_run(const kv_store::KVFile& file,
                                                        int run) const {
  QUIRE_TRY_STATUS(file.check_fits(fingerprint(), pool().geometry()));
  const auto& runs = file.content().runs;
  if (run < 0 || run >= std::ssize(runs)) {
    return {ErrorCode::kCorrupt, base::str_cat("the file has no run ", run)};
  }
  const kv_store::SavedRun& found = runs[static_cast<std::size_t>(run)];
  if (found.lost_blocks > 0) {
    return {ErrorCode::kCorrupt, base::str_cat("run ", run, " of the file has lost ",
                                               found.lost_blocks, " blocks: only a sequence may")};
  }
  return found.tokens;
}

Result<HeldRef> TierService::from_file(const kv_store::KVFile& file, int run) {
  QUIRE_TRY(const auto tokens, tokens_of_run(file, run));
  QUIRE_TRY(HeldRef held, reserve(tokens));
  QUIRE_TRY_STATUS(read_run(file, run, held->blocks));
  return held;
}

Result<kv::SegmentId> TierService::read_segment(const kv_store::KVFile& file, int run) {
  QUIRE_TRY(auto tokens, tokens_of_run(file, run));
  QUIRE_TRY(const kv::SegmentId id, reserve_blocks(std::move(tokens), 0));
  const Status read = read_run(file, run, ledger().segment(id)->blocks().ids());
  if (!read.ok()) {
    ledger().drop_segment(id);
    return read.error();
  }
  return id;
}

Result<kv::SegmentId> TierService::add_to(JointRead& read,
                                          std::shared_ptr<const kv_store::KVFile> file, int run) {
  QUIRE_TRY(auto tokens, tokens_of_run(*file, run));
  const std::int64_t count = std::ssize(tokens);
  QUIRE_TRY(const kv::SegmentId id, ledger().reserve_segment(std::move(tokens)));
  const auto alias = ledger().derive(id, {});
  if (!alias.ok()) {
    ledger().drop_segment(id);
    return alias.error();
  }
  read.held.push_back(keep(*alias));
  read.parts.push_back(
      {.file = std::move(file), .part = {.run = run, .to = read.held.back()->blocks}});
  read.tokens += count;
  return id;
}

void TierService::start(JointRead read, std::function<void(Arrivals::Load&)> done) {
  if (read.parts.empty()) {
    return;
  }
  arrivals_.start(std::move(read.parts),
                  [this, held = std::move(read.held), tokens = read.tokens, done = std::move(done)](
                      Arrivals::Load& load, double seconds) {
                    if (load.outcome().ok()) {
                      pace_.note_read(tokens, seconds);
                    }
                    done(load);
                  });
}

std::vector<HeldRef> TierService::from_files(
    std::span<const std::shared_ptr<const kv_store::KVFile>> files, Loads& loads) {
  JointRead read;
  std::vector<HeldRef> arriving;
  for (const auto& file : files) {
    const auto begun = engine_.ask_for_blocks<HeldRef>([&]() -> Result<HeldRef> {
      QUIRE_TRY(const kv::SegmentId segment, add_to(read, file, 0));
      return keep(segment);
    });
    arriving.push_back(begun.ok() ? *begun : nullptr);
  }
  [[maybe_unused]] const Status closed = engine_.call([&] {
    start(std::move(read), [](Arrivals::Load&) {});
    for (const HeldRef& segment : arriving) {
      if (segment != nullptr) {
        std::ranges::move(arrivals_.filling(segment->blocks), std::back_inserter(loads));
      }
    }
  });
  return arriving;
}

Result<TierService::Described> TierService::describe(const StateRef& state) {
  using Runs = std::vector<kv::RunView>;  // valid as long as the state
  QUIRE_TRY(const Runs runs,
            engine_.ask<Runs>([&]() -> Result<Runs> { return ledger().runs(state->sequence); }));
  Described described{
      .rest = {.sampled = state->sampled, .grade = state->grade, .kernels = kernels()}};
  if (!state->tokens.empty()) {
    described.rest.tail = {state->tokens.back()};
  }
  auto token = state->tokens.begin();
  for (const kv::RunView& run : runs) {
    if (run.num_tokens > 0) {
      const auto lost = std::ranges::count(run.blocks, -1, &BlockId::value);
      described.runs.push_back({.tokens = {token, token + run.num_tokens},
                                .start_position = run.start_position,
                                .lost_blocks = static_cast<std::int32_t>(lost)});
      const auto blocks = run.blocks.subspan(
          static_cast<std::size_t>(lost),
          static_cast<std::size_t>(
              described.runs.back().num_blocks_with_kv(pool().geometry().block_tokens)));
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
  QUIRE_TRY(const Readable from, readable(described.blocks));
  const Status written = kv_store::write_kv_file(path, content, from.shelves(), from.runs, options);
  return written.ok() ? written : missing_file(written.error());
}

Status TierService::await_arrival(std::span<const BlockId> blocks) {
  QUIRE_TRY(const Loads loads, engine_.ask<Loads>([&]() -> Result<Loads> {
    QUIRE_TRY_STATUS(arrivals_.check(blocks));
    return arrivals_.filling(blocks);
  }));
  for (const Arrivals::LoadRef& load : loads) {
    QUIRE_TRY_STATUS(load->outcome(blocks));
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
    if (run.lost_blocks > 0) {
      return {ErrorCode::kCorrupt,
              base::str_cat("saved run ", i, " has lost ", run.lost_blocks,
                            " blocks: only the last run, the sequence's own, loses any")};
    }
    QUIRE_TRY(const HeldRef held, reserve(run.tokens, rest.stored_from[i]));
    restored.before.push_back(held);
    restored.uses.push_back(
        {.segment = held->id, .position = run.start_position, .rank = rest.ranks[i]});
  }
  return {};
}

Result<TierService::Restored> TierService::prepare(std::span<const kv_store::SavedRun> runs,
                                                   SavedState rest, const std::string& salt) {
  seal_foreign(runs, rest, kernels());
  Restored restored{.position = rest.own_position, .grade = rest.grade, .salt = salt};
  QUIRE_TRY_STATUS(reserve_before(runs, rest, restored));
  if (runs.size() > rest.ranks.size()) {
    QUIRE_TRY_STATUS(kv_store::check_goes_on(pool().geometry(), runs.back()));
    restored.own = runs.back().tokens;
  }
  restored.num_kv = static_cast<std::int32_t>(restored.own.size());
  restored.own.insert(restored.own.end(), rest.tail.begin(), rest.tail.end());
  QUIRE_TRY_STATUS(check_run(restored.own, rest.own_position));
  restored.sampled = std::min(rest.sampled, static_cast<std::int32_t>(restored.own.size()));
  const auto made = engine_.ask_for_blocks<bool>([&]() -> Result<bool> {
    const Status status = make_room(restored);
    return status.ok() ? Result<bool>(true) : status.error();
  });
  return made.ok() ? Result<Restored>(std::move(restored)) : made.error();
}

// Engine thread: the sequence, with room for its KV. What the prefix cache has of its own tokens is
// there already, if it is the same: of another grade it is composed, if only of its own run.
Status TierService::make_room(Restored& restored) {
  const bool same = restored.grade == ReuseGrade::kExact || restored.num_kv == 0;
  if (restored.uses.empty() && same) {
    restored.sequence = ledger().open(restored.own, true, {}, restored.salt);
  } else {
    QUIRE_TRY(restored.sequence, ledger().compose(restored.uses, {.tokens = restored.own,
                                                                  .position = restored.position}));
  }
  ledger().begin_behind_window(restored.sequence, restored.num_kv);
  const std::int32_t there = ledger().num_computed(restored.sequence);
  restored.missing = restored.num_kv - there;
  Status made = ledger().extend(restored.sequence, restored.missing);
  if (made.ok()) {
    made = engine_.copy_blocks_now();
  }
  if (!made.ok()) {
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
                                      const OpenPart& open, const LoadSequenceOptions& options) {
  QUIRE_TRY_STATUS(SessionService::check_user({.salt = options.salt}));
  QUIRE_TRY(Restored restored, prepare(runs, std::move(rest), engine_.salt_of(options.salt)));
  // A window gives up blocks while they are still being filled.
  const bool waits = options.wait || pool().geometry().forget_after_tokens() != 0;
  auto state = waits ? restore_now(restored, open) : restore_in_background(restored, open);
  if (!state.ok()) {
    engine_.post([this, sequence = restored.sequence] { ledger().close(sequence); });
  }
  return state;
}

Result<StateRef> TierService::restore_now(const Restored& restored, const OpenPart& open) {
  for (const kv_store::RunPart& part : restored.parts) {
    const auto read = [&](std::span<const BlockId> blocks, kv_store::PagedStore& shelves) {
      return read_now(
          {.run = part.run, .first_block = part.first_block, .to = {blocks.begin(), blocks.end()}},
          open, shelves);
    };
    QUIRE_TRY_STATUS(fill(part.to, read));
  }
  return engine_.ask<StateRef>([&] {
    ledger().advance(restored.sequence, restored.missing);
    return engine_.sequences().adopt(restored.sequence, restored.sampled, restored.grade,
                                     restored.salt);
  });
}

Status TierService::read_now(const kv_store::RunPart& part, const OpenPart& open,
                             kv_store::PagedStore& shelves) {
  QUIRE_TRY(const auto files, open(part));
  for (const kv_store::KVFilePart& from : files) {
    QUIRE_TRY_STATUS(read_part(*from.file, from.part, shelves));
  }
  return {};
}

// The blocks stay with the loading sequence until all is read; the caller gets a fork of it.
Result<StateRef> TierService::restore_in_background(Restored& restored, const OpenPart& open) {
  std::vector<kv_store::KVFilePart> last, others;
  // What is appended first copies the last block, in all layers, so that one is read before.
  if (!restored.parts.empty()) {
    QUIRE_TRY(last, open(take_last_block(restored.parts.back())));
  }
  for (const kv_store::RunPart& part : restored.parts) {
    QUIRE_TRY(auto files, open(part));
    std::ranges::move(files, std::back_inserter(others));
  }
  return engine_.ask<StateRef>([&] {
    ledger().advance_unpublished(restored.sequence, restored.missing);
    const SeqId state = ledger().fork(restored.sequence);
    const auto done = [this, sequence = restored.sequence, held = std::move(restored.before)](
                          Arrivals::Load& load, double) {
      const bool last_is_right = arrivals_.check(ledger().runs(sequence).back().blocks).ok();
      if (load.outcome().ok() && last_is_right) {  // the last block was a load of its own
        ledger().publish(sequence);
      }
      ledger().close(sequence);
    };
    if (!last.empty()) {
      arrivals_.start(std::move(last), [](Arrivals::Load&, double) {});
    }
    arrivals_.start(std::move(others), done);
    return engine_.sequences().adopt(state, restored.sampled, restored.grade, restored.salt);
  });
}

Result<StateRef> TierService::load(const std::filesystem::path& path,
                                   const LoadSequenceOptions& options) {
  auto opened = kv_store::KVFile::open(path);
  if (!opened.ok()) {
    return missing_file(std::move(opened).error());
  }
  const auto file = std::make_shared<const kv_store::KVFile>(std::move(opened).value());
  QUIRE_TRY_STATUS(file->check_fits(model_fingerprint(), pool().geometry()));
  const kv_store::KVFileContent& content = file->content();
  QUIRE_TRY(SavedState rest,
            parse_saved_state(content.metadata_json, content.runs.size(), path.string()));
  const auto open = [&file](const kv_store::RunPart& part) {
    std::vector<kv_store::KVFilePart> parts;
    parts.push_back({.file = file, .part = part});
    return Result(std::move(parts));
  };
  return restore(content.runs, std::move(rest), open, options);
}

}  // namespace quire::engine
