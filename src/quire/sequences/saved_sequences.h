// SavedSequences: sequences in files and checkpoints, and back.
//
// Thread rule: every public method may be called from any thread but the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_states.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sequences/saved_state.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tensor/state_view.h"
#include "quire/tiers/held_segment.h"
#include "quire/types.h"

namespace quire::engine {
class Engine;
}  // namespace quire::engine

namespace quire::tiers {
class TierService;
}  // namespace quire::tiers

namespace quire::sequences {

class SequenceService;

class SavedSequences {
 public:
  // Borrows all three, which must outlive it.
  SavedSequences(engine::Engine& engine, tiers::TierService& tiers, SequenceService& sequences)
      : engine_(engine), tiers_(tiers), sequences_(sequences) {}

  // A state as it is saved: its runs, the blocks that hold their KV, and the rest. KV that a window
  // has freed is lost: its tokens are saved without KV.
  struct Described {
    std::vector<kv_store::SavedRun> runs;
    std::vector<std::vector<BlockId>> blocks;  // [runs] but those that are lost
    std::vector<kv::FormatId> formats;         // [runs]
    SavedState rest;
    kv_store::SavedStates states;                         // of a model whose layers carry some
    std::vector<std::span<const std::byte>> state_bytes;  // [states]
    std::vector<std::vector<std::byte>> copied_states;  // of an accelerator, which state_bytes has
    std::vector<StateRef> held;                         // until all of it is read
  };
  // Says which KV a description has in layers with a window, where others have none. It is all of
  // it, computed again where it has gone, or that which the state holds.
  enum class Windows : std::uint8_t { kWhole, kHeld };
  // Blocks until the KV of the state is there. kUnsupported for KV that a file cannot hold.
  [[nodiscard]] Result<Described> describe(const StateRef& state, Windows windows);
  // The states of a saved sequence. `read` reads state `index` into memory, where its parts lie as
  // given, and fails as KVFile::read_state().
  struct StatesToLoad {
    std::vector<kv_store::StateAt> at;
    std::function<Status(std::size_t index, std::span<const tensor::StatePart> parts,
                         std::span<std::byte> to)>
        read;
  };
  // Makes a state of saved runs. `open` returns the files that have a range of a run. To verify it,
  // `open` returns those of them that the caller does not know to be whole. Uses what the prefix
  // cache has of the runs. With options.wait all KV is read and verified when it returns. Without
  // it, missing KV is read in the background where the pool allows that. A damaged block is then
  // the error of the requests that read it. kOverflow outside of the model's context, kCorrupt for
  // lost blocks that the window still sees, kIncompatible for another KV format, kOutOfBlocks. The
  // state at the sequence's length must be there where the model has states. Other states become
  // restore points where there is room.
  enum class Purpose : std::uint8_t { kRead, kVerify };
  using OpenBlocks = std::function<Result<std::vector<kv_store::KVFileRange>>(
      const kv_store::BlockRange& range, Purpose purpose)>;
  [[nodiscard]] Result<StateRef> restore(std::span<const kv_store::SavedRun> runs, SavedState rest,
                                         const OpenBlocks& open, const StatesToLoad& states,
                                         const LoadSequenceOptions& options);

  // Returns kIncompatible that names both formats, unless the pool stores KV as the runs have it.
  [[nodiscard]] Status check_formats(std::span<const kv_store::SavedRun> runs,
                                     const SavedState& rest) const;

  // Returns kIncompatible that names the part unless the file's states are the model's. A file
  // without KV has none, nor has one whose KV is that of chunks with maps alone.
  [[nodiscard]] Status check_states(const kv_store::KVFile& file, const SavedState& rest) const;

  // Saves one file with tokens, KV, and everything that continuing needs. The file is there whole
  // or not at all.
  [[nodiscard]] Status save(const StateRef& state, const std::filesystem::path& path,
                            const kv_store::WriteOptions& options);
  // Loads a saved sequence. kIncompatible for a sequence of another model or KV format.
  [[nodiscard]] Result<StateRef> load(const std::filesystem::path& path,
                                      const LoadSequenceOptions& options);

 private:
  // A sequence that is being restored, with room for its KV, and what is to be read for it.
  struct Restored {
    std::vector<tiers::HeldRef> before;  // the segments that it was composed of
    std::vector<kv::SegmentUse> uses;
    std::vector<TokenId> own;
    std::int32_t position = 0;  // position of the first token
    std::int32_t num_kv = 0;    // tokens that have KV
    std::int32_t sampled = 0;
    ReuseGrade grade = ReuseGrade::kExact;
    std::string salt;
    bool other_form = false;  // true: other arithmetic has computed its state
    SeqId sequence;
    std::int32_t lost_blocks = 0;  // leading blocks of the own run without KV
    std::int32_t lost_parts = 0;   // leading blocks of it without window parts
    std::int32_t missing = 0;      // own tokens whose KV is read
    std::vector<kv_store::BlockRange> ranges;
    // Blocks of the own run that are verified and not read: `to` has that KV already, or none will.
    kv_store::BlockRange there;
    std::vector<std::byte> last_state;  // state behind all KV, of a model that has some
    bool computes = false;  // true: the own run is computed again, and read for its checksums alone
    bool loading = false;   // true: read in the background, which closes the sequence when it ends
  };
  [[nodiscard]] Result<Restored> prepare(std::span<const kv_store::SavedRun> runs, SavedState rest,
                                         const std::string& salt);
  [[nodiscard]] Status reserve_before(std::span<const kv_store::SavedRun> runs,
                                      const SavedState& rest, Restored& restored);
  [[nodiscard]] Status make_room(Restored& restored);
  [[nodiscard]] Status try_room(Restored& restored);
  // Checks the lost window parts of the own run. Leaves it to be computed again where it cannot
  // lack them.
  [[nodiscard]] Status check_parts(Restored& restored, const SavedState& rest) const;
  void plan_reads(Restored& restored, std::int32_t there) const;
  // Returns a sequence whose last block is there, also where its KV lies beside a state.
  [[nodiscard]] Result<StateRef> with_tail(const StateRef& state);
  // Adds the state at the sequence's length, and restore points of its history.
  [[nodiscard]] Status describe_states(const StateRef& state, Described& described);
  // Returns the state behind the KV of the own run; empty where there is none. The maps of the runs
  // before it make the state behind those.
  [[nodiscard]] Result<std::vector<std::byte>> read_last_state(
      std::span<const kv_store::SavedRun> runs, const SavedState& rest,
      const StatesToLoad& states) const;
  // Makes the other states restore points of the sequence.
  [[nodiscard]] Status restore_points(const StateRef& state, const StatesToLoad& states);
  [[nodiscard]] Result<StateRef> restore_now(const Restored& restored, const OpenBlocks& open);
  void free_behind_window(SeqId id);
  [[nodiscard]] Status read_now(const kv_store::BlockRange& range, const OpenBlocks& open,
                                kv_store::PagedPool& pool);
  [[nodiscard]] Status verify_what_was_there(const Restored& restored,
                                             const OpenBlocks& open) const;
  [[nodiscard]] Result<StateRef> restore_in_background(Restored& restored, const OpenBlocks& open);
  // Returns the pool's format for a saved run. kIncompatible names both formats.
  [[nodiscard]] Result<kv::FormatId> format_of(const kv_store::SavedRun& run,
                                               const SavedState& rest) const;
  // Returns the segment that the saved runs of one run are. kCorrupt where they do not go together.
  [[nodiscard]] Result<tiers::SegmentShape> segment_of(std::span<const kv_store::SavedRun> parts,
                                                       const SavedState& rest) const;
  [[nodiscard]] Status check_own(std::span<const kv_store::SavedRun> parts,
                                 const SavedState& rest) const;
  void describe(const kv::RunView& run, std::span<const TokenId> tokens,
                Described& described) const;
  void describe_maps(std::span<const BlockId> maps, const kv::RunView& run,
                     Described& described) const;
  [[nodiscard]] Status check_maps(const kv_store::SavedRun& maps, std::int32_t blocks) const;
  [[nodiscard]] Status check_run(std::span<const TokenId> tokens, std::int32_t position) const;
  [[nodiscard]] kv::Ledger& ledger() const;
  [[nodiscard]] const kv_store::PagedPool& pool() const;

  engine::Engine& engine_;
  tiers::TierService& tiers_;
  SequenceService& sequences_;
};

}  // namespace quire::sequences
