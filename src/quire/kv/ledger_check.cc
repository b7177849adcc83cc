// Verifies the numbered invariants of README.md by counting everything again from the holders.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <unordered_set>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/ledger_state.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/reserved_blocks.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/kv/window_parts.h"
#include "quire/result.h"

namespace quire::kv {
namespace {

template <class... Args>
Status broken(const char* invariant, const Args&... what) {
  return {ErrorCode::kInternal,
          base::str_cat("ledger invariant ", invariant, " is broken: ", what...)};
}

// Claims of the holders on one block.
struct BlockUse {
  std::int32_t users = 0;       // tables that hold it
  std::int32_t open_runs = 0;   // those of them that are of open runs
  std::int32_t readable = 0;    // slots from the first that some table covers
  std::int32_t writers = 0;     // sequences with room in it
  std::int32_t first_room = 0;  // the writer's first slot
  std::int32_t parts = 0;       // tables that hold its window part
  bool reserved = false;        // set aside for a sequence

  [[nodiscard]] std::int32_t holders() const { return users + (reserved ? 1 : 0); }
};

// Slots of a block that a run has and may fill.
struct Slots {
  std::int32_t filled = 0;
  bool writes = false;
  bool holds_part = true;
};

// The claims of all holders, block by block.
class BlockUses {
 public:
  explicit BlockUses(const SharedBlocks& shared) : shared_(shared) {
    for (std::uint8_t i = 0; i < shared.config().num_formats(); ++i) {
      uses_.emplace_back(static_cast<std::size_t>(shared.pool(FormatId{i}).num_blocks()));
    }
  }

  [[nodiscard]] std::span<const BlockUse> of(FormatId format) const { return uses_[format.value]; }

  // Adds the claim of a sequence that a block is set aside for.
  Status add_reserved(BlockRef block) {
    if (!shared_.pool().is_current(block)) {
      return broken("L3", "a stale handle of block ", block.id.value, " is set aside");
    }
    uses_.front()[static_cast<std::size_t>(block.id.value)].reserved = true;
    return {};
  }

  // Adds the claim of a run, open or sealed.
  Status add(BlockRef block, Slots slots, bool open) {
    if (!shared_.pool(block.format()).is_current(block)) {
      return broken("L3", "a run holds a stale handle of block ", block.id.value);
    }
    BlockUse& use = uses_[block.format().value][static_cast<std::size_t>(block.id.value)];
    ++use.users;
    use.parts += slots.holds_part ? 1 : 0;
    use.open_runs += open ? 1 : 0;
    use.readable = std::max(use.readable, slots.filled);
    if (slots.writes) {
      ++use.writers;
      use.first_room = slots.filled;
    }
    return {};
  }

  // Counts the blocks in use, of which each has one writer at most.
  [[nodiscard]] Result<BlockCounts> count() const {
    BlockCounts in_use;
    for (std::uint8_t f = 0; f < shared_.config().num_formats(); ++f) {
      for (std::size_t i = 0; i < uses_[f].size(); ++i) {
        const BlockUse& use = uses_[f][i];
        in_use.of[f] += use.users > 0 ? 1 : 0;
        if (use.writers > 1 || (use.writers == 1 && use.readable > use.first_room)) {
          return broken("L5", "block ", i, " has ", use.writers, " writers from slot ",
                        use.first_room, ", others read ", use.readable, " slots")
              .error();
        }
      }
    }
    return in_use;
  }

 private:
  const SharedBlocks& shared_;
  std::vector<std::vector<BlockUse>> uses_;  // [formats][blocks]
};

// Counts the blocks that are set aside, all for open sequences.
Status add_reserved(const LedgerState& state, BlockUses& uses) {
  Status status;
  state.shared.reserved().visit([&](ReservedBlocks::Holder holder, BlockRef block) {
    const auto found = state.sequences.find(holder);
    if (found == state.sequences.end() || found->second.open().holder != holder) {
      status = broken("L14", "block ", block.id.value, " is set aside for no sequence");
    } else if (status.ok()) {
      status = uses.add_reserved(block);
    }
  });
  return status;
}

// Checks that a tail in the middle of a block ends in it, and that nobody writes behind it.
Status check_tail(const OpenRun& run, std::int32_t block_tokens) {
  const std::int32_t tokens = run.rows() % block_tokens;
  const bool within = tokens > 0 && run.tail_slot + tokens <= block_tokens && run.room == 0;
  return run.tail_slot == 0 || within
             ? Status()
             : broken("L15", "a tail of ", tokens, " tokens is in slot ", run.tail_slot,
                      " of a block of ", block_tokens, ", with room for ", run.room);
}

// Counts the references of blocks in other formats. Compares the bytes of all used blocks, since
// no two blocks may have one in common.
Status check_slabs(const SharedBlocks& shared, const BlockUses& uses) {
  const Status slabs = shared.lent().check(shared.pool());
  if (!slabs.ok()) {
    return broken("L10", slabs.error().message);
  }
  if (shared.config().formats.size() == 1) {
    return {};
  }
  std::map<std::int64_t, std::int64_t> ends;  // of the bytes of blocks with a reference, by begin
  for (std::uint8_t f = 0; f < shared.config().num_formats(); ++f) {
    const BlockPool& pool = shared.pool(FormatId{f});
    const std::int64_t bytes = shared.config().block_bytes(FormatId{f});
    for (std::int32_t i = 0; i < pool.num_blocks(); ++i) {
      const std::int32_t references = pool.references(BlockId{i});
      if (f > 0 && references != uses.of(FormatId{f})[static_cast<std::size_t>(i)].users) {
        return broken("L2", "block ", i, " of format ", +f, " has ", references, " references and ",
                      uses.of(FormatId{f})[static_cast<std::size_t>(i)].users, " holders");
      }
      if (references > 0 && !ends.emplace(i * bytes, (i + 1) * bytes).second) {
        return broken("L10", "two blocks begin at byte ", i * bytes);
      }
    }
  }
  std::int64_t last = 0;
  for (const auto& [begin, end] : ends) {
    if (begin < last) {
      return broken("L10", "byte ", begin, " is in two blocks");
    }
    last = end;
  }
  return {};
}

Status check_parts_of(const Sequence& sequence, const LedgerConfig& config) {
  const OpenRun& open = sequence.open();
  const bool frees = sequence.use().past == BehindWindow::kFrees;
  // Their KV is being stored, and the next row is behind it (RestoredKV::begin_without_parts).
  const bool begins = open.num_tokens == open.blocks.num_without_part() * config.block_tokens;
  const std::int32_t stored = open.num_tokens + (begins ? open.room : 0);
  if (open.blocks.num_without_part() <= (frees ? parts_behind_window(config, stored) : 0)) {
    return {};
  }
  return broken("L16", open.blocks.num_without_part(), " window parts of a run of ",
                open.num_tokens, " tokens were let go, the window still sees some of them");
}

// Returns how many window parts are held, counted by the tables that hold them.
Result<std::int32_t> count_parts(const SharedBlocks& shared, std::span<const BlockUse> uses) {
  const WindowParts& parts = shared.parts();
  std::vector<std::int32_t> holders(uses.size());
  std::ranges::transform(uses, holders.begin(), &BlockUse::parts);
  if (const Status counted = parts.check(holders); !counted.ok()) {
    return broken("L16", counted.error().message).error();
  }
  for (std::int32_t i = 0; i < shared.pool().num_blocks(); ++i) {
    const bool free =
        shared.pool().references(BlockId{i}) == 0 || uses[static_cast<std::size_t>(i)].reserved;
    if (parts.is_there(BlockId{i}) && free) {
      return broken("L16", "free block ", i, " has a window part").error();
    }
  }
  if (bytes_free(shared) < 0) {
    return broken("L16", -bytes_free(shared), " bytes more than the budget of ",
                  shared.config().budget_bytes(), " are used")
        .error();
  }
  return parts.num_there() - parts.num_idle();
}

// Returns whether block `i` of an open run is indexed behind the one before it.
bool stands_behind(const PrefixIndex& index, const Sequence& sequence, std::int32_t i) {
  const BlockTable& blocks = sequence.open().blocks;
  const BlockRef parent = index.parent_of(blocks.ref(i));
  if (i == 0) {
    return index.find_root(sequence.use().salt) == parent;
  }
  return i == blocks.num_given_up() || blocks.ref(i - 1) == parent;
}

class Checker {
 public:
  Checker(const SharedBlocks& shared, BlockUses& uses) : shared_(shared), uses_(uses) {}

  // Counts a segment once, by whichever name or sequence it is met.
  Status add_segment(const Segment& segment) {
    if (!segments_.insert(&segment).second) {
      return {};
    }
    const BlockTable& blocks = segment.blocks();
    const bool one = std::ranges::all_of(blocks.live().first(blocks.live().size() - 1),
                                         [&](BlockRef b) { return b.format() == blocks.format(); });
    if (!one) {
      return broken("L11", "a segment of ", blocks.size(), " blocks has several formats");
    }
    QUIRE_TRY_STATUS(add_maps(segment.maps().get()));
    const std::int32_t tail = segment.num_tokens() % shared_.config().block_tokens;
    if (segment.tail_slot() > 0 &&
        (tail == 0 || segment.tail_slot() + tail > shared_.config().block_tokens)) {
      return broken("L15", "a tail of ", tail, " tokens is in slot ", segment.tail_slot());
    }
    return add_table(blocks, segment.num_tokens(), 0, false, false, segment.tail_slot());
  }

  // `lacks_tail`: the KV of the last tokens lies elsewhere, and their block comes with room.
  Status add_sequence(const Sequence& sequence, bool lacks_tail) {
    for (const SealedRun& run : sequence.sealed()) {
      QUIRE_TRY_STATUS(add_segment(*run.segment));
    }
    const OpenRun& open = sequence.open();
    const FormatId format = open.format;
    if ((sequence.is_plain() && format != kOwnFormat) ||
        std::ranges::any_of(open.blocks.live(),
                            [&](BlockRef block) { return block.format() != format; })) {
      return broken("L11", "an open run has another format than its sequence may have");
    }
    if (shared_.config().formats[format.value].open) {
      QUIRE_TRY_STATUS(add_opening_run(sequence));
    } else {
      const std::int32_t room = std::max(open.num_tokens + open.room - open.rows(), 0);
      QUIRE_TRY_STATUS(add_table(open.blocks, open.rows(), room, true, lacks_tail && open.room == 0,
                                 open.tail_slot));
    }
    QUIRE_TRY_STATUS(check_tail(open, shared_.config().block_tokens));
    if (open.rows() > static_cast<std::int32_t>(sequence.tokens().size())) {
      return broken("L4", open.rows(), " tokens of ", sequence.tokens().size(), " have KV");
    }
    if (open.rows() > open.num_tokens && !may_owe(shared_.config(), sequence)) {
      return broken("L4", "a run of ", open.num_tokens, " tokens owes some up to ", open.rows(),
                    ", which its sequence may not");
    }
    const std::int32_t given_up = open.blocks.num_given_up();
    const bool begins = open.num_tokens == given_up * shared_.config().block_tokens;
    const std::int32_t stored = open.num_tokens + (begins ? sequence.open().room : 0);
    const bool frees = sequence.use().past == BehindWindow::kFrees;
    if (given_up > (frees ? blocks_behind_window(shared_.config(), stored) : 0)) {
      return broken("L7", given_up, " blocks of a run of ", stored,
                    " tokens were given up, the window still sees some of them");
    }
    QUIRE_TRY_STATUS(check_parts_of(sequence, shared_.config()));
    return sequence.is_plain() ? check_indexed_tokens(sequence) : Status();
  }

  [[nodiscard]] Status check_blocks() {
    QUIRE_TRY_STATUS(shared_.pool().check());
    QUIRE_TRY(const BlockCounts in_use, uses_.count());
    QUIRE_TRY_STATUS(check_index());
    const BlockPool& own = shared_.pool();
    const std::int32_t cached = shared_.index().num_unused();
    const std::int32_t free = own.num_free() + shared_.reserved().size();
    if (free + own.num_withheld() + cached + in_use[kOwnFormat] != own.num_blocks()) {
      return broken("L1", free, " free, ", own.num_withheld(), " lent, ", cached, " cached and ",
                    in_use[kOwnFormat], " in use of ", own.num_blocks(), " blocks");
    }
    QUIRE_TRY_STATUS(check_slabs(shared_, uses_));
    bytes_in_use_ = shared_.config().bytes_of(in_use);
    if (shared_.parts().exist()) {
      QUIRE_TRY(const std::int32_t parts, count_parts(shared_, uses_.of(kOwnFormat)));
      bytes_in_use_ -= (in_use[kOwnFormat] - parts) * shared_.config().window_group.block_bytes;
    }
    return {};
  }

  // Returns the bytes that the holders make. Precondition: check_blocks() was called.
  [[nodiscard]] std::int64_t bytes_in_use() const { return bytes_in_use_; }

  // Counts blocks with maps once, by whichever segment or sequence they are met.
  Status add_maps(const BlockTable* maps) {
    if (maps == nullptr || !maps_.insert(maps).second) {
      return {};
    }
    return add_table(*maps, maps->size() * shared_.config().block_tokens, 0);
  }

 private:
  Status add_table(const BlockTable& table, std::int32_t num_tokens, std::int32_t room,
                   bool open = false, bool lacks_block = false, std::int32_t tail_slot = 0) {
    const std::int32_t block_tokens = shared_.config().block_tokens;
    const std::int32_t wanted =
        blocks_for_tokens(shared_.config(), std::int64_t{num_tokens} + room);
    if (table.size() != wanted - (lacks_block ? 1 : 0)) {
      return broken("L4", "a run of ", num_tokens, " tokens with room for ", room, " has ",
                    table.size(), " blocks");
    }
    for (std::int32_t i = 0; i < table.size(); ++i) {
      const BlockRef block = table.ref(i);
      if (i < table.num_given_up()) {
        if (table.ids()[static_cast<std::size_t>(i)].value != -1) {
          return broken("L3", "a block that was given up is still shown");
        }
        continue;
      }
      if (table.ids()[static_cast<std::size_t>(i)] != block.id) {
        return broken("L3", "a run shows another block than it holds");
      }
      const std::int32_t filled = std::clamp(num_tokens - i * block_tokens, 0, block_tokens) +
                                  (i + 1 == table.size() ? tail_slot : 0);
      QUIRE_TRY_STATUS(uses_.add(block,
                                 {.filled = filled,
                                  .writes = filled < block_tokens && room > 0,
                                  .holds_part = i >= table.num_without_part()},
                                 open));
    }
    return {};
  }

  // Counts a run whose blocks are written when they are full. Rows of others lie in open blocks.
  Status add_opening_run(const Sequence& sequence) {
    const OpenRun& run = sequence.open();
    const std::int32_t room = sequence.open().room;
    const std::int32_t block_tokens = shared_.config().block_tokens;
    const std::int32_t full = run.num_tokens / block_tokens;
    const std::int32_t end = (run.num_tokens + room) / block_tokens;
    const BlockTable& blocks = run.blocks;
    const bool own = run.format == kOwnFormat;
    if (blocks.size() !=
        (own ? end : static_cast<std::int32_t>(sequence.tokens().size()) / block_tokens)) {
      return broken("L4", "a run of ", run.num_tokens, " tokens with room for ", room, " has ",
                    blocks.size(), " stored blocks");
    }
    for (std::int32_t i = blocks.num_given_up(); i < blocks.size(); ++i) {
      QUIRE_TRY_STATUS(uses_.add(blocks.ref(i),
                                 {.filled = i < full ? block_tokens : 0,
                                  .writes = i >= full,
                                  .holds_part = i >= blocks.num_without_part()},
                                 true));
    }
    const auto lacks = [&](std::int32_t tokens) {
      return tokens % block_tokens != 0 && run.open_blocks.find(tokens / block_tokens) == nullptr;
    };
    if (lacks(run.num_tokens) || lacks(run.num_tokens + room)) {
      return broken("L12", "a run of ", run.num_tokens, " tokens with room for ", room,
                    " has no open block where it ends");
    }
    for (const OpenBlock& open : run.open_blocks.all()) {
      if (open.index < full || open.index > end ||
          open.block.format() != shared_.config().formats[run.format.value].open) {
        return broken("L12", "open block ", open.index, " is in a run of ", full, " to ", end,
                      " full blocks");
      }
      const std::int32_t filled =
          std::clamp(run.num_tokens - open.index * block_tokens, 0, block_tokens);
      QUIRE_TRY_STATUS(uses_.add(open.block, {.filled = filled, .writes = room > 0}, true));
    }
    return {};
  }

  [[nodiscard]] Status check_indexed_tokens(const Sequence& sequence) const {
    const OpenRun& open = sequence.open();
    const auto step = static_cast<std::size_t>(shared_.config().block_tokens);
    if (!shared_.config().prefix_cache) {
      return {};
    }
    for (std::int32_t i = open.blocks.num_given_up();
         (i + 1) * shared_.config().block_tokens <= open.rows(); ++i) {
      const BlockRef block = open.blocks.ref(i);
      const auto own = sequence.tokens().subspan(static_cast<std::size_t>(i) * step, step);
      if (!shared_.index().contains(block)) {
        continue;
      }
      if (!std::ranges::equal(own, shared_.index().tokens_of(block))) {
        return broken("L6", "block ", block.id.value, " is indexed under other tokens");
      }
      if (!stands_behind(shared_.index(), sequence, i)) {
        return broken("L6", "block ", block.id.value, " is indexed behind another block or salt");
      }
    }
    return {};
  }

  [[nodiscard]] Status check_index() const {
    const PrefixIndex& index = shared_.index();
    QUIRE_TRY_STATUS(index.check());
    const std::span<const BlockUse> uses = uses_.of(kOwnFormat);
    std::vector<std::int32_t> holders(uses.size());
    std::ranges::transform(uses, holders.begin(), &BlockUse::holders);
    for (const BlockRef block : index.blocks()) {
      const BlockUse& use = uses[static_cast<std::size_t>(block.id.value)];
      ++holders[static_cast<std::size_t>(block.id.value)];
      if (!shared_.pool().is_current(block)) {
        return broken("L3", "the index holds a stale handle of block ", block.id.value);
      }
      if (use.writers > 0 || index.is_unused(block) != (use.users == 0)) {
        return broken("L6", "indexed block ", block.id.value, " has ", use.users, " users and ",
                      use.writers, " writers");
      }
      const BlockRef parent = index.parent_of(block);
      if (shared_.config().window_tokens == 0 && use.open_runs > 0 && parent.id.value >= 0 &&
          uses[static_cast<std::size_t>(parent.id.value)].users == 0) {
        return broken("L8", "block ", block.id.value,
                      " is in an open run, its parent is not in use");
      }
    }
    for (std::int32_t i = 0; i < shared_.pool().num_blocks(); ++i) {
      if (shared_.pool().references(BlockId{i}) != holders[static_cast<std::size_t>(i)]) {
        return broken("L2", "block ", i, " has ", shared_.pool().references(BlockId{i}),
                      " references and ", holders[static_cast<std::size_t>(i)], " holders");
      }
    }
    return {};
  }

  const SharedBlocks& shared_;
  BlockUses& uses_;
  std::int64_t bytes_in_use_ = 0;
  std::unordered_set<const Segment*> segments_;
  std::unordered_set<const BlockTable*> maps_;
};

}  // namespace

Status Ledger::check() const {
  BlockUses uses(state_->shared);
  QUIRE_TRY_STATUS(add_reserved(*state_, uses));
  Checker checker(state_->shared, uses);
  for (const auto& [id, segment] : state_->segments) {
    QUIRE_TRY_STATUS(checker.add_segment(*segment));
  }
  std::vector<std::int32_t> state_users(static_cast<std::size_t>(config().num_states));
  for (const auto& [id, maps] : state_->sequence_maps) {
    QUIRE_TRY_STATUS(checker.add_maps(maps.get()));
  }
  for (const auto& [id, sequence] : state_->sequences) {
    const SequenceStates* states = state_->states_of({id});
    QUIRE_TRY_STATUS(checker.add_sequence(sequence, states != nullptr && states->lacks_tail()));
    if (states == nullptr) {
      continue;
    }
    states->visit([&](StateRef state) { ++state_users[static_cast<std::size_t>(state.index)]; });
    const bool has_state = states->now().index >= 0;
    if (has_state != (sequence.num_computed() > 0)) {
      return broken("L13", "a sequence of ", sequence.num_computed(), " tokens with KV has ",
                    has_state ? "a" : "no", " state");
    }
  }
  if (const Status states = state_->states.check(state_users); !states.ok()) {
    return broken("L13", states.error().message);
  }
  QUIRE_TRY_STATUS(checker.check_blocks());
  const LedgerCounts counts = this->counts();
  if (counts.bytes_in_use != checker.bytes_in_use() ||
      counts.bytes_free + counts.bytes_cached + counts.bytes_in_use != config().budget_bytes() ||
      counts.bytes_free < 0 || counts.blocks_free < 0) {
    return broken("L1", checker.bytes_in_use(), " bytes are in use, counted are ",
                  counts.bytes_in_use, " with ", counts.bytes_free, " free and ",
                  counts.bytes_cached, " cached of ", config().budget_bytes());
  }
  return {};
}

}  // namespace quire::kv
