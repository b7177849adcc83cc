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
#include "quire/base/json.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/tasks.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/kv_identity.h"
#include "quire/types.h"

namespace quire::tiers {
namespace {

// Returns `count` blocks from `first` on.
std::vector<BlockId> blocks_from(std::int64_t first, std::int64_t count) {
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<std::size_t>(count));
  for (std::int64_t block = first; block < first + count; ++block) {
    blocks.push_back({static_cast<std::int32_t>(block)});
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

constexpr const char* kMapBlocks = "map_blocks";  // metadata of a segment with maps

// Returns how many blocks of maps stand behind the tokens of a file; 0 for none.
std::int32_t map_blocks_of(const kv_store::KVFileContent& content) {
  const auto metadata = base::parse_json(content.metadata_json, "metadata");
  const auto count =
      metadata.ok() ? base::get_int(metadata->view(), kMapBlocks, 0) : Result<std::int64_t>(0);
  const std::int64_t most =
      content.runs.empty() ? 0 : content.runs.back().num_blocks(content.geometry.block_tokens);
  return count.ok() && *count > 0 && *count <= most ? static_cast<std::int32_t>(*count) : 0;
}

// Returns the runs with KV of tokens.
std::span<const kv_store::SavedRun> runs_of_tokens(const kv_store::KVFileContent& content) {
  return std::span(content.runs).first(content.runs.size() - (map_blocks_of(content) > 0 ? 1 : 0));
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
  held->format = segment->format();
  held->last_format = segment->blocks().last_format();
  held->blocks.assign(segment->blocks().ids().begin(), segment->blocks().ids().end());
  if (segment->maps() != nullptr) {
    held->map_blocks.assign(segment->maps()->ids().begin(), segment->maps()->ids().end());
    held->num_map_blocks = segment->maps()->size();
  }
  held->engine = engine_.self();
  return held;
}

Result<HeldRef> TierService::reserve(const SegmentShape& segment, std::int32_t stored_from) {
  return engine_.thread().ask_for_blocks<HeldRef>([&]() -> Result<HeldRef> {
    QUIRE_TRY(const kv::SegmentId id, reserve_blocks(segment, stored_from));
    return keep(id);
  });
}

// Reserves a segment. Engine thread. Copies of blocks that must be moved for it are made at once,
// as nobody waits for them.
Result<kv::SegmentId> TierService::reserve_blocks(SegmentShape segment, std::int32_t stored_from) {
  QUIRE_TRY(const kv::SegmentId id,
            ledger().segments().reserve(std::move(segment.tokens), stored_from, segment.format,
                                        segment.last_format));
  Status made = segment.num_map_blocks == 0
                    ? Status()
                    : ledger().segments().hold_maps(id, segment.num_map_blocks);
  made = made.ok() ? engine_.copy_blocks_now() : made;
  if (!made.ok()) {
    ledger().segments().drop(id);
    return made.error();
  }
  return id;
}

Result<HostRef> TierService::to_host(const HeldRef& segment) const {
  auto host = std::make_shared<HostSegment>();
  static_cast<SegmentShape&>(*host) = *segment;
  host->bytes = paged_pool().host_buffer(static_cast<std::size_t>(bytes_of(*segment)));
  if (host->bytes.size() == 0) {
    return {ErrorCode::kOutOfBlocks, "the machine has no memory left for a copy of the KV"};
  }
  std::span<std::byte> to = host->bytes.span();
  for (const kv::BlockPart& part : segment->parts()) {
    QUIRE_TRY_STATUS(paged_pool().read_blocks(part.blocks, to.first(bytes_of(part)), part.format));
    to = to.subspan(bytes_of(part));
  }
  return HostRef(std::move(host));
}

Result<HeldRef> TierService::from_host(const HostSegment& segment) {
  QUIRE_TRY(HeldRef held, reserve(segment));
  std::span<const std::byte> from = segment.bytes.span();
  for (const kv::BlockPart& part : held->parts()) {
    QUIRE_TRY_STATUS(
        writable_pool().write_blocks(part.blocks, from.first(bytes_of(part)), part.format));
    from = from.subspan(bytes_of(part));
  }
  return held;
}

std::int64_t TierService::bytes_of(const HeldSegment& segment) const {
  std::size_t bytes = 0;
  for (const kv::BlockPart& part : segment.parts()) {
    bytes += bytes_of(part);
  }
  return static_cast<std::int64_t>(bytes);
}

std::size_t TierService::bytes_of(const kv::BlockPart& part) const {
  return part.blocks.size() *
         static_cast<std::size_t>(paged_pool().geometry(part.format).block_bytes());
}

Result<TierService::Readable> TierService::readable(std::span<const std::vector<BlockId>> runs,
                                                    std::span<const kv::FormatId> formats) const {
  if (!paged_pool().on_device()) {
    Readable readable{.runs = {runs.begin(), runs.end()}};
    readable.whole = &paged_pool();
    return readable;
  }
  std::vector<std::int64_t> counts;
  std::ranges::transform(runs, std::back_inserter(counts),
                         [](const std::vector<BlockId>& run) { return std::ssize(run); });
  QUIRE_TRY(Readable readable, room_beside(counts, formats));
  if (std::ranges::all_of(formats, [](kv::FormatId format) { return format == kv::kOwnFormat; })) {
    std::vector<BlockId> all;  // which lie in the copy as they are read
    for (const std::vector<BlockId>& run : runs) {
      all.insert(all.end(), run.begin(), run.end());
    }
    QUIRE_TRY_STATUS(all.empty() ? Status()
                                 : paged_pool().read_blocks(all, readable.copy->all_bytes()));
    return readable;
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    device::HostBuffer bytes =
        paged_pool().host_buffer(bytes_of({.blocks = runs[i], .format = formats[i]}));
    if (bytes.size() == 0 && !runs[i].empty()) {
      return {ErrorCode::kOutOfBlocks, "the machine has no memory left for a copy of the KV"};
    }
    QUIRE_TRY_STATUS(paged_pool().read_blocks(runs[i], bytes.span(), formats[i]));
    QUIRE_TRY_STATUS(readable.copy->write_blocks(readable.runs[i], bytes.span(), formats[i]));
  }
  return readable;
}

Result<TierService::Readable> TierService::readable(const HeldSegment& segment) const {
  std::vector<std::vector<BlockId>> runs;
  std::vector<kv::FormatId> formats;
  for (const kv::BlockPart& part : segment.parts()) {
    runs.emplace_back(part.blocks.begin(), part.blocks.end());
    formats.push_back(part.format);
  }
  return readable(runs, formats);
}

Result<TierService::Readable> TierService::readable(const HostSegment& segment) const {
  const kv_store::KVFileContent content = content_of(segment);
  std::vector<std::int64_t> counts;
  std::vector<kv::FormatId> formats;
  for (const kv_store::SavedRun& run : content.runs) {
    counts.push_back(run.num_blocks(content.geometry.block_tokens));
    formats.push_back(run.type ? segment.last_format : segment.format);
  }
  QUIRE_TRY(Readable readable, room_beside(counts, formats));
  std::span<const std::byte> from = segment.bytes.span();
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const std::size_t bytes = bytes_of({.blocks = readable.runs[i], .format = formats[i]});
    QUIRE_TRY_STATUS(readable.copy->write_blocks(readable.runs[i], from.first(bytes), formats[i]));
    from = from.subspan(bytes);
  }
  return readable;
}

// A run begins at the next place for a block of its format.
Result<TierService::Readable> TierService::room_beside(
    std::span<const std::int64_t> blocks, std::span<const kv::FormatId> formats) const {
  Readable room;
  std::int64_t bytes = 0;  // of one head
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::int64_t block = paged_pool().geometry(formats[i]).head_block_bytes();
    const std::int64_t first = (bytes + block - 1) / block;
    room.runs.push_back(blocks_from(first, blocks[i]));
    bytes = (first + blocks[i]) * block;
  }
  const std::int64_t own = paged_pool().geometry().head_block_bytes();
  QUIRE_TRY(auto copy, staging((bytes + own - 1) / own, kv::kOwnFormat));
  for (std::uint8_t i = 1; i < engine_.core().num_formats(); ++i) {
    QUIRE_TRY([[maybe_unused]] const kv::FormatId added,
              copy.add_format(paged_pool().geometry(kv::FormatId{i})));
  }
  room.copy = std::make_unique<kv_store::PagedPool>(std::move(copy));
  return room;
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
  QUIRE_TRY_STATUS(read(blocks_from(0, std::ssize(to)), copy));
  return to.empty() ? Status() : writable_pool().write_blocks(to, copy.all_bytes(), format);
}

kv_store::KVFileContent TierService::content_of(const SegmentShape& segment) const {
  kv_store::KVFileContent content{.fingerprint = fingerprint(),
                                  .geometry = paged_pool().geometry(segment.format)};
  const std::int64_t rest = segment.last_format == segment.format
                                ? 0
                                : std::ssize(segment.tokens) % content.geometry.block_tokens;
  const auto full = segment.tokens.end() - rest;
  if (full != segment.tokens.begin()) {
    content.runs.push_back({.tokens = {segment.tokens.begin(), full}});
  }
  if (rest > 0) {
    content.runs.push_back(
        {.tokens = {full, segment.tokens.end()},
         .start_position = static_cast<std::int32_t>(full - segment.tokens.begin()),
         .type = kv_store::kv_type_of(paged_pool().geometry(segment.last_format))});
  }
  if (segment.num_map_blocks > 0) {
    content.runs.push_back({.tokens = std::vector<TokenId>(static_cast<std::size_t>(
                                segment.num_map_blocks * content.geometry.block_tokens)),
                            .start_position = static_cast<std::int32_t>(segment.tokens.size())});
    if (segment.format != kv::kOwnFormat) {
      content.runs.back().type = kv_store::kv_type_of(paged_pool().geometry());
    }
    content.metadata_json =
        base::write_json(base::Json::object({{kMapBlocks, segment.num_map_blocks}}));
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
  QUIRE_TRY_STATUS(for_each_layer_of(
      range, [&](int layer) { return kv_store::read_layer(file, layer, range, pool); }));
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  reload_policy_.note_read(std::ssize(range.to) * pool.geometry().block_tokens, taken.count());
  return {};
}

// Reads the parts of a segment, each of which is a run of the file.
Status TierService::read_parts(const kv_store::KVFile& file, const kv::BlockParts& parts) {
  for (std::size_t run = 0; run < parts.size(); ++run) {
    const kv::FormatId format = parts[run].format;
    const auto read = [&](std::span<const BlockId> blocks, kv_store::PagedPool& pool) {
      return read_range(
          file,
          {.run = static_cast<int>(run), .to = {blocks.begin(), blocks.end()}, .format = format},
          pool);
    };
    QUIRE_TRY_STATUS(fill(parts[run].blocks, read, format));
  }
  return {};
}

// A stranger may have written the file. The runs of a segment are what content_of() makes of it.
Result<SegmentShape> TierService::segment_in(const kv_store::KVFile& file,
                                             kv::FormatId format) const {
  QUIRE_TRY_STATUS(file.check_fits(fingerprint(), paged_pool().geometry(format)));
  SegmentShape segment{.tokens = {}, .format = format, .last_format = format};
  const kv_store::KVFileContent& content = file.content();
  segment.num_map_blocks = map_blocks_of(content);
  for (const kv_store::SavedRun& run : runs_of_tokens(content)) {
    segment.tokens.insert(segment.tokens.end(), run.tokens.begin(), run.tokens.end());
  }
  segment.last_format = ledger().config().last_format(std::ssize(segment.tokens), format);
  const kv_store::KVFileContent whole = content_of(segment);
  const auto alike = [](const kv_store::SavedRun& a, const kv_store::SavedRun& b) {
    return a.lost_blocks == b.lost_blocks && a.lost_parts == b.lost_parts && a.type == b.type &&
           a.tokens.size() == b.tokens.size();
  };
  if (segment.tokens.empty() || !std::ranges::equal(content.runs, whole.runs, alike)) {
    return {ErrorCode::kCorrupt,
            base::str_cat("the runs of the file are no segment in ",
                          base::quoted(engine_.core().kv_name(format)), ": ", content.runs.size(),
                          " runs of ", segment.tokens.size(), " tokens")};
  }
  return segment;
}

bool holds_segment(const kv_store::KVFile& file, std::span<const TokenId> tokens, bool with_maps) {
  const auto runs = runs_of_tokens(file.content());
  return (map_blocks_of(file.content()) > 0) == with_maps &&
         kv_store::holds_tokens({.runs = {runs.begin(), runs.end()}}, tokens);
}

Result<HeldRef> TierService::from_file(const kv_store::KVFile& file) {
  QUIRE_TRY(const SegmentShape segment, segment_in(file, kv::kOwnFormat));
  QUIRE_TRY(HeldRef held, reserve(segment));
  QUIRE_TRY_STATUS(read_parts(file, held->parts()));
  return held;
}

Result<kv::SegmentId> TierService::read_segment(const kv_store::KVFile& file, kv::FormatId format) {
  QUIRE_TRY(SegmentShape segment, segment_in(file, format));
  QUIRE_TRY(const kv::SegmentId id, reserve_blocks(std::move(segment), 0));
  const kv::Segment& made = *ledger().segments().find(id);
  kv::BlockParts parts = kv::parts_of(made.blocks());
  if (made.maps() != nullptr) {
    parts.push_back({.blocks = made.maps()->ids(), .format = kv::kOwnFormat});
  }
  const Status read = read_parts(file, parts);
  if (!read.ok()) {
    ledger().segments().drop(id);
    return read.error();
  }
  return id;
}

Result<kv::SegmentId> TierService::add_to(JointRead& read,
                                          const std::shared_ptr<const kv_store::KVFile>& file,
                                          kv::FormatId format) {
  QUIRE_TRY(SegmentShape segment, segment_in(*file, format));
  const std::int64_t count = std::ssize(segment.tokens);
  QUIRE_TRY(const kv::SegmentId id, reserve_blocks(std::move(segment), 0));
  const auto alias = ledger().segments().derive(id, {});
  if (!alias.ok()) {
    ledger().segments().drop(id);
    return alias.error();
  }
  read.held.push_back(keep(*alias));
  int run = 0;
  for (const kv::BlockPart& part : read.held.back()->parts()) {
    read.ranges.push_back(
        {.file = file,
         .blocks = {
             .run = run++, .to = {part.blocks.begin(), part.blocks.end()}, .format = part.format}});
  }
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
      QUIRE_TRY(const kv::SegmentId segment, add_to(read, file));
      return keep(segment);
    });
    arriving.push_back(begun.ok() ? *begun : nullptr);
  }
  [[maybe_unused]] const Status closed = engine_.thread().call([&] {
    start(std::move(read), [](BackgroundLoads::Load&) {});
    for (const HeldRef& segment : arriving) {
      if (segment != nullptr) {
        std::ranges::move(background_loads_.filling(segment->parts()), std::back_inserter(loads));
      }
    }
  });
  return arriving;
}

}  // namespace quire::tiers
