// TierService: KV on its way between the pool, host memory and files.
//
// The engine thread only names, reserves and takes over blocks; bytes are copied in the caller's
// thread, while nobody else can see the target and nobody writes the source. What arrives damaged
// or short is never taken over.
//
// Thread rule: every public method may be called from any thread but the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/device/host_buffer.h"
#include "quire/engine/arrivals.h"
#include "quire/engine/block_run.h"
#include "quire/engine/reload_pace.h"
#include "quire/engine/saved_state.h"
#include "quire/engine/sequence_service.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_store.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::engine {

class Engine;

// A held segment in host memory: [layer][kv_head][block] of head blocks.
struct HostSegment {
  std::vector<TokenId> tokens;
  device::HostBuffer bytes;
};
using HostRef = std::shared_ptr<const HostSegment>;

// A path that a user gave leads nowhere: kIo, as what is not found is a chunk.
[[nodiscard]] Error missing_file(Error error);

class TierService {
 public:
  // `engine` is borrowed and owns the service.
  explicit TierService(Engine& engine);

  // Engine thread: what is read in the background.
  [[nodiscard]] Arrivals& arrivals() { return arrivals_; }

  // Whether saved KV is read or computed again.
  [[nodiscard]] ReloadPace& pace() { return pace_; }

  // What the state has of its own, the last token included: that one is computed for it.
  [[nodiscard]] Result<HeldRef> hold(const StateRef& state, const Interrupt& interrupted);
  // Copies of the KV of the state's tokens [first, last), one for each run that holds some of them.
  // Their keys stay rotated as they are. kOutOfBlocks.
  [[nodiscard]] Result<std::vector<HeldRef>> copy_out(const StateRef& state, std::int64_t first,
                                                      std::int64_t last);
  // All of it, to build on.
  [[nodiscard]] static BlockRun run_of(const HeldRef& segment);

  // kOutOfBlocks when the machine has no memory.
  [[nodiscard]] Result<HostRef> to_host(const HeldRef& segment) const;
  [[nodiscard]] Result<HeldRef> from_host(const HostSegment& segment);
  // On shelves of its own, to be written without a block of the pool. kOutOfBlocks when the machine
  // has no memory.
  struct Shelved {
    kv_store::PagedStore shelves;
    std::vector<BlockId> blocks;
  };
  [[nodiscard]] Result<Shelved> shelve(const HostSegment& segment) const;

  // Identity of everything that decides the bits of KV besides the tokens before it.
  [[nodiscard]] base::KVFingerprint fingerprint() const;
  // The same without the kernels: for what names them beside it and is graded by them.
  [[nodiscard]] base::KVFingerprint model_fingerprint() const;
  // What a file or object of these segments says; `blocks` gets theirs.
  [[nodiscard]] kv_store::KVFileContent content_of(std::span<const HeldRef> segments,
                                                   std::vector<std::vector<BlockId>>& blocks) const;
  // The whole run of an open file. kIncompatible for another model's, kCorrupt for damaged KV.
  [[nodiscard]] Result<HeldRef> from_file(const kv_store::KVFile& file, int run);
  [[nodiscard]] const kv_store::PagedStore& shelves() const;
  // The KV of runs of blocks where a writer can read it: in the pool, or in a copy on the host.
  struct Readable {
    std::vector<std::vector<BlockId>> runs;  // blocks of shelves()
    const kv_store::PagedStore* pool = nullptr;
    std::unique_ptr<kv_store::PagedStore> copy;
    [[nodiscard]] const kv_store::PagedStore& shelves() const {
      return pool != nullptr ? *pool : *copy;
    }
  };
  [[nodiscard]] Result<Readable> readable(std::span<const std::vector<BlockId>> runs) const;

  // A state as it is saved: its runs, the blocks that hold their KV, and the rest. Waits until the
  // KV is there. What the window has freed is lost: its tokens are saved without KV.
  struct Described {
    std::vector<kv_store::SavedRun> runs;
    std::vector<std::vector<BlockId>> blocks;  // [runs] but those that are lost
    SavedState rest;
  };
  [[nodiscard]] Result<Described> describe(const StateRef& state);
  // Back to a state. `open` gives what has a part of a run of it; to verify that, without what the
  // caller knows to be whole. What the prefix cache has of it is used. With options.wait all KV is
  // read and verified when it returns, that too; else what is missing is read in the background,
  // where the shelves allow it, and a block that turns out to be damaged is the error of the
  // requests that read it. kOverflow for what stands outside of the model's context, kCorrupt for
  // lost blocks that the window still sees, kOutOfBlocks.
  enum class Purpose : std::uint8_t { kRead, kVerify };
  using OpenPart = std::function<Result<std::vector<kv_store::KVFilePart>>(
      const kv_store::RunPart& part, Purpose purpose)>;
  [[nodiscard]] Result<StateRef> restore(std::span<const kv_store::SavedRun> runs, SavedState rest,
                                         const OpenPart& open, const LoadSequenceOptions& options);

  // One file with tokens, KV, and what continuing needs. The file is there whole or not at all.
  [[nodiscard]] Status save(const StateRef& state, const std::filesystem::path& path,
                            const kv_store::WriteOptions& options);
  // kIncompatible for a sequence of another model or KV format.
  [[nodiscard]] Result<StateRef> load(const std::filesystem::path& path,
                                      const LoadSequenceOptions& options);

  // Engine thread: a segment becomes the caller's; the whole run of a file becomes a segment.
  [[nodiscard]] HeldRef keep(kv::SegmentId id);
  [[nodiscard]] Result<kv::SegmentId> read_segment(const kv_store::KVFile& file, int run);

  // The first runs of files, read together in the background; null where there was no room. Their
  // KV can be used at once by requests, and by all others when the loads have ended.
  using Loads = std::vector<Arrivals::LoadRef>;
  [[nodiscard]] std::vector<HeldRef> from_files(
      std::span<const std::shared_ptr<const kv_store::KVFile>> files, Loads& loads);

  // What is read together in the background (Arrivals), into segments that can be used at once.
  struct JointRead {
    std::vector<kv_store::KVFilePart> parts;
    std::vector<HeldRef> held;  // until all is read, whoever drops the segments
    std::int64_t tokens = 0;
  };
  // Engine thread. As read_segment, with nothing read yet. What was added must be started.
  [[nodiscard]] Result<kv::SegmentId> add_to(JointRead& read,
                                             std::shared_ptr<const kv_store::KVFile> file, int run);
  // Engine thread, and so is `done`.
  void start(JointRead read, std::function<void(Arrivals::Load&)> done);

 private:
  // A sequence that is being restored, with room for its KV, and what is to be read for it.
  struct Restored {
    std::vector<HeldRef> before;  // the segments that it was composed of
    std::vector<kv::SegmentUse> uses;
    std::vector<TokenId> own;
    std::int32_t position = 0;  // of the first of them
    std::int32_t num_kv = 0;    // how many of them have KV
    std::int32_t sampled = 0;
    ReuseGrade grade = ReuseGrade::kExact;
    std::string salt;
    SeqId sequence;
    std::int32_t lost_blocks = 0;  // of the own run, without KV
    std::int32_t missing = 0;      // own tokens whose KV is read
    std::vector<kv_store::RunPart> parts;
    kv_store::RunPart there;  // of the own run: `to` has that KV already
    bool loading = false;     // in the background, which closes the sequence when it ends
  };
  [[nodiscard]] Result<Restored> prepare(std::span<const kv_store::SavedRun> runs, SavedState rest,
                                         const std::string& salt);
  [[nodiscard]] Status reserve_before(std::span<const kv_store::SavedRun> runs,
                                      const SavedState& rest, Restored& restored);
  [[nodiscard]] Status make_room(Restored& restored);
  void plan_reads(Restored& restored, std::int32_t there) const;
  [[nodiscard]] Result<StateRef> restore_now(const Restored& restored, const OpenPart& open);
  [[nodiscard]] Status read_now(const kv_store::RunPart& part, const OpenPart& open,
                                kv_store::PagedStore& shelves);
  [[nodiscard]] Status verify_what_was_there(const Restored& restored, const OpenPart& open) const;
  [[nodiscard]] Result<StateRef> restore_in_background(Restored& restored, const OpenPart& open);
  // Waits until what is in the blocks may be read.
  [[nodiscard]] Status await_arrival(std::span<const BlockId> blocks);
  [[nodiscard]] Result<kv::SegmentId> reserve_blocks(std::vector<TokenId> tokens,
                                                     std::int32_t stored_from);
  [[nodiscard]] Result<HeldRef> reserve(const std::vector<TokenId>& tokens,
                                        std::int32_t stored_from = 0);
  // kIncompatible for another model's file.
  [[nodiscard]] Result<std::vector<TokenId>> tokens_of_run(const kv_store::KVFile& file,
                                                           int run) const;
  using FillBlocks =
      std::function<Status(std::span<const BlockId> blocks, kv_store::PagedStore& shelves)>;
  [[nodiscard]] Status fill(std::span<const BlockId> to, const FillBlocks& read) const;
  [[nodiscard]] Result<kv_store::PagedStore> staging(std::int64_t blocks) const;
  using PerLayer = std::function<Status(int layer)>;
  [[nodiscard]] Status for_each_layer_of(const kv_store::RunPart& part, const PerLayer& read) const;
  [[nodiscard]] Status read_part(const kv_store::KVFile& file, const kv_store::RunPart& part,
                                 kv_store::PagedStore& shelves);
  [[nodiscard]] Status read_run(const kv_store::KVFile& file, int run, std::span<const BlockId> to);
  [[nodiscard]] std::string kernels() const;  // what names them in the identity of KV
  [[nodiscard]] Status check_run(std::span<const TokenId> tokens, std::int32_t position) const;
  [[nodiscard]] kv::Ledger& ledger() const;
  [[nodiscard]] kv_store::PagedStore& pool() const;

  Engine& engine_;
  Arrivals arrivals_;
  ReloadPace pace_;
};

}  // namespace quire::engine
