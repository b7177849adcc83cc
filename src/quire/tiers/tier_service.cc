#include "quire/tiers/tier_service.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/tasks.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/kv_identity.h"
#include "quire/types.h"

namespace quire::tiers {
namespace {

std::vector<BlockId> first_blocks(std::int64_t count) {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<std::size_t>(count));
  for (std::int32_t block = 0; block < count; ++block) {
    blocks.push_back({block});
  }
  return blocks;
}

// Calls `read` for each layer. The readers take one after the other; one of them is the caller, who
// is alone when the system gives no thread.
Status for_each_layer(int layers, const std::function<Status(int layer)>& read_layer, int readers) {
  std::atomic<int> next = 0;
  const auto read = [&] {
    Status status;
    for (int layer = next++; layer < layers && status.ok(); layer = next++) {
      status = read_layer(layer);
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

}  // namespace

Error missing_file(Error error) {
  if (error.code == ErrorCode::kNotFound) {
    error.code = ErrorCode::kIo;
  }
  return error;
}

TierService::TierService(engine::Engine& engine)
    : engine_(engine),
      background_loads_(
          writable_pool(), ledger(),
          [&engine](engine::Tasks task) { engine.thread().post(std::move(task)); }, engine.log()) {}

kv::Ledger& TierService::ledger() const { return engine_.core().ledger; }

kv_store::PagedPool& TierService::writable_pool() const { return engine_.core().paged_pool; }

const kv_store::PagedPool& TierService::paged_pool() const { return engine_.core().paged_pool; }

std::string TierService::kernels() const {
  const device::Accelerator* const accelerator = engine_.accelerator();
  return accelerator == nullptr ? kernels_here()
                                : accelerator->kernels(engine_.options().deterministic);
}

Status TierService::check_leaves_pool(kv::FormatId format) const {
  if (!tensor::is_written_by_block(paged_pool().geometry(format).format)) {
    return {};
  }
  return {ErrorCode::kUnsupported,
          base::str_cat("KV in ", base::quoted(engine_.core().kv_name(format)),
                        " is not moved to files, to the host or to other blocks yet; use another "
                        "kv_dtype")};
}

base::KVFingerprint TierService::fingerprint() const {
  return kv_fingerprint(engine_.model_digest(), kernels());
}

base::KVFingerprint TierService::model_fingerprint() const {
  return kv_fingerprint(engine_.model_digest(), "");
}

Status TierService::await_arrival(std::span<const BlockId> blocks, kv::FormatId format) {
  QUIRE_TRY(const Loads loads, engine_.thread().ask<Loads>([&]() -> Result<Loads> {
    QUIRE_TRY_STATUS(background_loads_.check(blocks, format));
    return background_loads_.filling(blocks, format);
  }));
  for (const BackgroundLoads::LoadRef& load : loads) {
    QUIRE_TRY_STATUS(load->outcome(blocks, format));
  }
  return {};
}

// Gives a segment to the caller, who owns it from now on.
HeldRef TierService::keep(kv::SegmentId id) {
  const kv::Segment* segment = ledger().segments().find(id);
  QUIRE_CHECK(segment != nullptr, "no such segment");
  auto held = std::make_shared<HeldSegment>();
  held->id = id;
  held->tokens.assign(segment->tokens().begin(), segment->tokens().end());
  held->blocks.assign(segment->blocks().ids().begin(), segment->blocks().ids().end());
  held->format = segment->blocks().format();
  held->engine = engine_.self();
  return held;
}

Result<HeldRef> TierService::reserve(const std::vector<TokenId>& tokens, std::int32_t stored_from,
                                     kv::FormatId format) {
  return engine_.thread().ask_for_blocks<HeldRef>([&]() -> Result<HeldRef> {
    QUIRE_TRY(const kv::SegmentId id, reserve_blocks(tokens, stored_from, format));
    return keep(id);
  });
}

// Reserves a segment. Engine thread. Copies of blocks that must be moved for it are made at once,
// as nobody waits for them.
Result<kv::SegmentId> TierService::reserve_blocks(std::vector<TokenId> tokens,
                                                  std::int32_t stored_from, kv::FormatId format) {
  QUIRE_TRY(const kv::SegmentId id,
            ledger().segments().reserve(std::move(tokens), stored_from, format));
  if (Status copied = engine_.copy_blocks_now(); !copied.ok()) {
    ledger().segments().drop(id);
    return copied.error();
  }
  return id;
}

Result<HostRef> TierService::to_host(const HeldRef& segment) const {
  QUIRE_CHECK(segment->format == kv::kOwnFormat, "host copies have the pool's own format");
  QUIRE_TRY_STATUS(check_leaves_pool(kv::kOwnFormat));
  const auto block_bytes = static_cast<std::size_t>(paged_pool().geometry().block_bytes());
  auto host = std::make_shared<HostSegment>();
  host->tokens = segment->tokens;
  host->bytes = paged_pool().host_buffer(segment->blocks.size() * block_bytes);
  if (host->bytes.size() == 0) {
    return {ErrorCode::kOutOfBlocks, "the machine has no memory left for a copy of the KV"};
  }
  QUIRE_TRY_STATUS(paged_pool().read_blocks(segment->blocks, host->bytes.span()));
  return HostRef(std::move(host));
}

Result<HeldRef> TierService::from_host(const HostSegment& segment) {
  QUIRE_TRY(HeldRef held, reserve(segment.tokens));
  QUIRE_TRY_STATUS(writable_pool().write_blocks(held->blocks, segment.bytes.span()));
  return held;
}

Result<TierService::PoolCopy> TierService::copy_to_pool(const HostSegment& segment) const {
  const tensor::KVGeometry& geometry = paged_pool().geometry();
  const auto count = std::ssize(segment.bytes) / geometry.block_bytes();
  QUIRE_TRY(auto copy, kv_store::PagedPool::create(geometry, static_cast<std::int32_t>(count)));
  PoolCopy made{.pool = std::move(copy), .blocks = first_blocks(count)};
  QUIRE_TRY_STATUS(made.pool.write_blocks(made.blocks, segment.bytes.span()));
  return made;
}

Result<TierService::Readable> TierService::readable(std::span<const std::vector<BlockId>> runs,
                                                    kv::FormatId format) const {
  QUIRE_TRY_STATUS(check_leaves_pool(format));
  Readable readable{.runs = {runs.begin(), runs.end()}};
  if (!paged_pool().on_device()) {
    readable.whole = &paged_pool();
    return readable;
  }
  std::vector<BlockId> all;
  for (std::vector<BlockId>& run : readable.runs) {
    for (BlockId& block : run) {
      all.push_back(std::exchange(block, {static_cast<std::int32_t>(all.size())}));
    }
  }
  QUIRE_TRY(auto copy, staging(std::ssize(all), format));
  if (!all.empty()) {
    QUIRE_TRY_STATUS(paged_pool().read_blocks(all, copy.all_bytes(), format));
  }
  readable.copy = std::make_unique<kv_store::PagedPool>(std::move(copy));
  return readable;
}

// Makes a pool in host memory for KV on its way to or from the device.
Result<kv_store::PagedPool> TierService::staging(std::int64_t blocks, kv::FormatId format) const {
  return paged_pool().create_beside(static_cast<std::int32_t>(std::max<std::int64_t>(blocks, 1)),
                                    format);
}

// Fills blocks. `read` fills blocks of the pool that it is given; what it has filled ends in `to`.
Status TierService::fill(std::span<const BlockId> to, const FillBlocks& read,
                         kv::FormatId format) const {
  if (!paged_pool().on_device()) {
    return read(to, writable_pool());
  }
  QUIRE_TRY(auto copy, staging(std::ssize(to), format));
  QUIRE_TRY_STATUS(read(first_blocks(std::ssize(to)), copy));
  return to.empty() ? Status() : writable_pool().write_blocks(to, copy.all_bytes(), format);
}

kv_store::KVFileContent TierService::content_of(std::span<const HeldRef> segments,
                                                std::vector<std::vector<BlockId>>& blocks) const {
  const kv::FormatId format = segments.empty() ? kv::kOwnFormat : segments.front()->format;
  kv_store::KVFileContent content{.fingerprint = fingerprint(),
                                  .geometry = paged_pool().geometry(format)};
  for (const HeldRef& segment : segments) {
    QUIRE_CHECK(segment->format == format, "a file has one format");
    content.runs.push_back({.tokens = segment->tokens});
    blocks.push_back(segment->blocks);
  }
  return content;
}

Status TierService::for_each_layer_of(const kv_store::BlockRange& range,
                                      const PerLayer& read) const {
  const tensor::KVGeometry& geometry = paged_pool().geometry();
  const bool large = std::ssize(range.to) * geometry.block_bytes() >= kParallelReadBytes;
  const int readers = large ? std::min(engine_.pool().threads(), kMostReaders) : 1;
  return for_each_layer(geometry.layers, read, readers);
}

Status TierService::read_range(const kv_store::KVFile& file, const kv_store::BlockRange& range,
                               kv_store::PagedPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY_STATUS(for_each_layer_of(range, [&](int layer) {
    return file.read_layer(range.run, layer, range.first_block, range.to, pool);
  }));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  reload_policy_.note_read(std::ssize(range.to) * pool.geometry().block_tokens, taken.count());
  return {};
}

Status TierService::read_run(const kv_store::KVFile& file, int run, std::span<const BlockId> to,
                             kv::FormatId format) {
  return fill(
      to,
      [&](std::span<const BlockId> blocks, kv_store::PagedPool& pool) {
        return read_range(
            file, {.run = run, .to = {blocks.begin(), blocks.end()}, .format = format}, pool);
      },
      format);
}

Result<std::vector<TokenId>> TierService::tokens_of_run(const kv_store::KVFile& file, int run,
                                                        kv::FormatId format) const {
  QUIRE_TRY_STATUS(file.check_fits(fingerprint(), paged_pool().geometry(format)));
  const auto& runs = file.content().runs;
  if (run < 0 || run >= std::ssize(runs)) {
    return {ErrorCode::kCorrupt, base::str_cat("the file has no run ", run)};
  }
  const kv_store::SavedRun& found = runs[static_cast<std::size_t>(run)];
  if (found.lost_blocks > 0) {
    return {ErrorCode::kCorrupt, base::str_cat("run ", run, " of the file has lost ",
                                               found.lost_blocks, " blocks: only a sequence may")};
  }
  if (found.type) {
    return {ErrorCode::kCorrupt, base::str_cat("run ", run, " of the file has another KV format ",
                                               "than the file: only a sequence may")};
  }
  return found.tokens;
}

Result<HeldRef> TierService::from_file(const kv_store::KVFile& file, int run) {
  QUIRE_TRY(const auto tokens, tokens_of_run(file, run));
  QUIRE_TRY(HeldRef held, reserve(tokens));
  QUIRE_TRY_STATUS(read_run(file, run, held->blocks));
  return held;
}

Result<kv::SegmentId> TierService::read_segment(const kv_store::KVFile& file, int run,
                                                kv::FormatId format) {
  QUIRE_TRY(auto tokens, tokens_of_run(file, run, format));
  QUIRE_TRY(const kv::SegmentId id, reserve_blocks(std::move(tokens), 0, format));
  const Status read = read_run(file, run, ledger().segments().find(id)->blocks().ids(), format);
  if (!read.ok()) {
    ledger().segments().drop(id);
    return read.error();
  }
  return id;
}

Result<kv::SegmentId> TierService::add_to(JointRead& read,
                                          std::shared_ptr<const kv_store::KVFile> file, int run,
                                          kv::FormatId format) {
  QUIRE_TRY(auto tokens, tokens_of_run(*file, run, format));
  const std::int64_t count = std::ssize(tokens);
  QUIRE_TRY(const kv::SegmentId id, reserve_blocks(std::move(tokens), 0, format));
  const auto alias = ledger().segments().derive(id, {});
  if (!alias.ok()) {
    ledger().segments().drop(id);
    return alias.error();
  }
  read.held.push_back(keep(*alias));
  read.ranges.push_back({.file = std::move(file),
                         .blocks = {.run = run, .to = read.held.back()->blocks, .format = format}});
  read.tokens += count;
  return id;
}

void TierService::start(JointRead read, std::function<void(BackgroundLoads::Load&)> done) {
  if (read.ranges.empty()) {
    return;
  }
  std::vector<BackgroundLoads::Order> orders(1);
  orders[0].ranges = std::move(read.ranges);
  orders[0].done = [this, held = std::move(read.held), tokens = read.tokens,
                    done = std::move(done)](BackgroundLoads::Load& load, double seconds) {
    if (load.outcome().ok()) {
      reload_policy_.note_read(tokens, seconds);
    }
    done(load);
  };
  background_loads_.start(std::move(orders));
}

std::vector<HeldRef> TierService::from_files(
    std::span<const std::shared_ptr<const kv_store::KVFile>> files, Loads& loads) {
  JointRead read;
  std::vector<HeldRef> arriving;
  for (const auto& file : files) {
    const auto begun = engine_.thread().ask_for_blocks<HeldRef>([&]() -> Result<HeldRef> {
      QUIRE_TRY(const kv::SegmentId segment, add_to(read, file, 0));
      return keep(segment);
    });
    arriving.push_back(begun.ok() ? *begun : nullptr);
  }
  [[maybe_unused]] const Status closed = engine_.thread().call([&] {
    start(std::move(read), [](BackgroundLoads::Load&) {});
    for (const HeldRef& segment : arriving) {
      if (segment != nullptr) {
        std::ranges::move(background_loads_.filling(segment->blocks), std::back_inserter(loads));
      }
    }
  });
  return arriving;
}

}  // namespace quire::tiers
