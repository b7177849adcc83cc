// TierService: KV on its way between the pool, host memory and files.
//
// The engine thread only names, reserves and takes over blocks. Bytes are copied in the caller's
// thread, while nobody else can see the target and nobody writes the source. KV that arrives
// damaged or short is never taken over.
//
// Thread rule: every public method may be called from any thread but the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/reload_policy.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {

// Makes an error of a path of a user that leads nowhere kIo, since kNotFound stands for chunks.
[[nodiscard]] Error missing_file(Error error);

// Returns whether a file is of a segment of these tokens, with maps on states or without.
[[nodiscard]] bool holds_segment(const kv_store::KVFile& file, std::span<const TokenId> tokens,
                                 bool with_maps);

class TierService {
 public:
  // Borrows `engine`, which must outlive the service.
  explicit TierService(engine::Engine& engine);
  // Ends all reading in the background. After the engine's thread has ended.
  void stop() { background_loads_.stop(); }

  // Returns the loads in the background. Engine thread.
  [[nodiscard]] BackgroundLoads& background_loads() { return background_loads_; }

  // Decides whether saved KV is read or computed again.
  [[nodiscard]] ReloadPolicy& reload_policy() { return reload_policy_; }

  // Copies a segment to host memory, in its formats. kOutOfBlocks when the machine has no memory.
  [[nodiscard]] Result<HostRef> to_host(const HeldRef& segment) const;
  [[nodiscard]] Result<HeldRef> from_host(const HostSegment& segment);
  // Returns the bytes of a segment's blocks.
  [[nodiscard]] std::int64_t bytes_of(const HeldSegment& segment) const;

  // Returns the identity of everything that decides the bits of KV besides the tokens before it.
  [[nodiscard]] base::KVFingerprint fingerprint() const;
  // Returns the identity without the kernels, for data that names them and is graded by them.
  [[nodiscard]] base::KVFingerprint model_fingerprint() const;
  // Returns the header of a file or object of a segment. A last block of another format is a run of
  // its own. So are the blocks with its maps, which metadata count and whose tokens are zeros.
  [[nodiscard]] kv_store::KVFileContent content_of(const SegmentShape& segment) const;
  // Reads the segment of an open file. kIncompatible for another model's, kCorrupt for damaged KV.
  [[nodiscard]] Result<HeldRef> from_file(const kv_store::KVFile& file);
  [[nodiscard]] const kv_store::PagedPool& paged_pool() const;
  // The KV of runs of blocks where a writer can read it: in the pool, or in a copy on the host.
  struct Readable {
    std::vector<std::vector<BlockId>> runs;  // blocks of pool(), whose formats are the pool's
    const kv_store::PagedPool* whole = nullptr;
    std::unique_ptr<kv_store::PagedPool> copy;
    [[nodiscard]] const kv_store::PagedPool& pool() const {
      return whole != nullptr ? *whole : *copy;
    }
  };
  // Returns the KV of runs, each of which has one of `formats`.
  [[nodiscard]] Result<Readable> readable(std::span<const std::vector<BlockId>> runs,
                                          std::span<const kv::FormatId> formats) const;
  // Returns the KV of a segment, in the runs of content_of().
  [[nodiscard]] Result<Readable> readable(const HeldSegment& segment) const;
  [[nodiscard]] Result<Readable> readable(const HostSegment& segment) const;

  // Gives a segment to the caller. Engine thread, as for the next functions.
  [[nodiscard]] HeldRef keep(kv::SegmentId id);
  // Reads the segment of a file, which has this format.
  [[nodiscard]] Result<kv::SegmentId> read_segment(const kv_store::KVFile& file,
                                                   kv::FormatId format);

  // The segments of files, read together in the background; null where there was no room. Their
  // KV can be used at once by requests, and by all others when the loads have ended.
  using Loads = std::vector<BackgroundLoads::LoadRef>;
  [[nodiscard]] std::vector<HeldRef> from_files(
      std::span<const std::shared_ptr<const kv_store::KVFile>> files, Loads& loads);

  // Ranges that are read together in the background, into segments that can be used at once.
  struct JointRead {
    std::vector<kv_store::KVFileRange> ranges;
    std::vector<HeldRef> held;  // until all is read, whoever drops the segments
    std::int64_t tokens = 0;
  };
  // Adds the segment of a file to the read and returns it, with nothing read yet. The read must be
  // started. Engine thread.
  [[nodiscard]] Result<kv::SegmentId> add_to(JointRead& read,
                                             const std::shared_ptr<const kv_store::KVFile>& file,
                                             kv::FormatId format = {});
  // Starts a read. Runs on the engine thread, and so does `done`.
  void start(JointRead read, std::function<void(BackgroundLoads::Load&)> done);

  // Blocks until KV that is read into the blocks is there. Returns the error that spoilt it.
  [[nodiscard]] Status await_arrival(std::span<const BlockId> blocks, kv::FormatId format = {});
  // Returns a segment with room for the KV of its tokens, and none of it yet. kOutOfBlocks.
  [[nodiscard]] Result<HeldRef> reserve(const SegmentShape& segment, std::int32_t stored_from = 0);
  // Calls `read` with blocks to fill, in the pool or beside it; what it fills ends in `to`.
  using FillBlocks =
      std::function<Status(std::span<const BlockId> blocks, kv_store::PagedPool& pool)>;
  [[nodiscard]] Status fill(std::span<const BlockId> to, const FillBlocks& read,
                            kv::FormatId format = {}) const;
  // Calls `read` for each layer, from several threads where the range is large.
  using PerLayer = std::function<Status(int layer)>;
  [[nodiscard]] Status for_each_layer_of(const kv_store::BlockRange& range,
                                         const PerLayer& read) const;
  // Reads a range into the pool, and notes how long that took.
  [[nodiscard]] Status read_range(const kv_store::KVFile& file, const kv_store::BlockRange& range,
                                  kv_store::PagedPool& pool);
  // Returns what names the kernels in the identity of KV.
  [[nodiscard]] std::string kernels() const;

 private:
  [[nodiscard]] Result<kv::SegmentId> reserve_blocks(SegmentShape segment,
                                                     std::int32_t stored_from);
  // Returns the segment that a file of one holds. kIncompatible for another model's file.
  [[nodiscard]] Result<SegmentShape> segment_in(const kv_store::KVFile& file,
                                                kv::FormatId format) const;
  [[nodiscard]] Result<kv_store::PagedPool> staging(std::int64_t blocks, kv::FormatId format) const;
  // Makes room in host memory for runs of so many blocks. Their places are those of the pool's
  // formats there.
  [[nodiscard]] Result<Readable> room_beside(std::span<const std::int64_t> blocks,
                                             std::span<const kv::FormatId> formats) const;
  [[nodiscard]] Status read_parts(const kv_store::KVFile& file, const kv::BlockParts& parts);
  [[nodiscard]] std::size_t bytes_of(const kv::BlockPart& part) const;
  [[nodiscard]] kv::Ledger& ledger() const;
  [[nodiscard]] kv_store::PagedPool& writable_pool() const;

  engine::Engine& engine_;
  BackgroundLoads background_loads_;
  ReloadPolicy reload_policy_;
};

}  // namespace quire::tiers
