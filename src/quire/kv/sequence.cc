#include "quire/kv/sequence.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/prefix_index.h"
#include "quire/kv/reserved_blocks.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence_use.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

std::int32_t blocks_for_tokens(const LedgerConfig& config, std::int64_t tokens) {
  return static_cast<std::int32_t>((tokens + config.block_tokens - 1) / config.block_tokens);
}

BlockRef last_cached(const SharedBlocks& shared, const Sequence& sequence) {
  if (!shared.config().prefix_cache || !sequence.is_plain()) {
    return kIndexRoot;
  }
  const BlockTable& blocks = sequence.open().blocks;
  std::int32_t block = sequence.num_computed() / shared.config().block_tokens - 1;
  for (; block >= blocks.num_given_up(); --block) {
    if (shared.index().contains(blocks.ref(block))) {
      return blocks.ref(block);
    }
  }
  return kIndexRoot;
}

bool may_owe(const LedgerConfig& config, const Sequence& sequence) {
  return config.num_states > 0 && sequence.is_plain() && sequence.use().adopts &&
         !config.open_format() && sequence.open().format == kOwnFormat;
}

std::int32_t tokens_of(std::span<const SealedRun> runs) {
  std::int32_t tokens = 0;
  for (const SealedRun& run : runs) {
    tokens += run.segment->num_tokens();
  }
  return tokens;
}

std::int32_t blocks_of(std::span<const SealedRun> runs) {
  std::int32_t blocks = 0;
  for (const SealedRun& run : runs) {
    blocks += run.segment->blocks().size();
  }
  return blocks;
}

std::int32_t stored_length(const LedgerConfig& config, const OpenRun& run, std::int32_t length) {
  const std::int32_t kept = std::min(run.num_tokens, length);
  const std::int32_t rest = kept % config.block_tokens;
  const bool opens = config.formats[run.format.value].open.has_value();
  return opens && run.open_blocks.find(kept / config.block_tokens) == nullptr ? kept - rest : kept;
}

std::int32_t usable_length(const SharedBlocks& shared, const OpenRun& run, std::int32_t length) {
  const LedgerConfig& config = shared.config();
  std::int32_t usable = length;
  const std::int32_t lacking =
      std::min(run.blocks.num_without_part(), blocks_for_tokens(config, usable));
  for (std::int32_t i = lacking - 1; i >= parts_behind_window(config, usable); --i) {
    usable = shared.parts().is_there(run.blocks.ref(i).id) ? usable : i * config.block_tokens;
  }
  return usable;
}

Sequence::Sequence(SharedBlocks& shared, std::span<const TokenId> tokens, SequenceUse use)
    : shared_(&shared),
      tokens_(tokens.begin(), tokens.end()),
      open_{.format = {}, .blocks = BlockTable(shared), .open_blocks = OpenBlocks(shared)},
      use_(std::move(use)) {}

Sequence::Sequence(SharedBlocks& shared, std::span<const TokenId> tokens,
                   std::vector<SealedRun> sealed, std::int32_t open_position, FormatId format)
    : Sequence(shared, tokens, SequenceUse()) {
  composed_ = true;
  sealed_ = std::move(sealed);
  open_.start_position = open_position;
  open_.format = format;
  if (format != kOwnFormat) {
    make_room_in(format);
  }
}

// Returns how many blocks of the run's format `tokens` tokens have: of open blocks none.
std::int32_t Sequence::run_blocks(std::int64_t tokens) const {
  return opens_blocks() ? static_cast<std::int32_t>(tokens / shared_->config().block_tokens)
                        : blocks_for_tokens(shared_->config(), tokens);
}

// Returns whether the run would end in a block that is not full, and has no open block there.
bool Sequence::lacks_open_block(std::int64_t tokens) const {
  const std::int32_t block_tokens = shared_->config().block_tokens;
  return opens_blocks() && tokens % block_tokens != 0 &&
         open_.open_blocks.find(static_cast<std::int32_t>(tokens / block_tokens)) == nullptr;
}

Sequence Sequence::fork() const {
  Sequence copy(*shared_, tokens_, use_);
  copy.assign({});
  copy.composed_ = composed_;
  copy.found_blocks_ = found_blocks_;
  copy.sealed_ = sealed_;
  copy.open_.blocks = open_.blocks.clone(std::min(run_blocks(open_.rows()), open_.blocks.size()));
  copy.open_.format = open_.format;
  copy.open_.num_tokens = open_.num_tokens;
  copy.open_.kept_tokens = open_.kept_tokens;
  copy.open_.replays_until = open_.replays_until;
  copy.open_.start_position = open_.start_position;
  copy.open_.tail_slot = open_.tail_slot;
  if (const OpenBlock* last = last_open_block()) {
    copy.open_.open_blocks.reserve_more(1);
    shared_->retain(last->block);
    copy.open_.open_blocks.push(*last);
  }
  return copy;
}

// Returns the open block of the last tokens with KV; nullptr if they fill their block.
const OpenBlock* Sequence::last_open_block() const {
  const std::int32_t block_tokens = shared_->config().block_tokens;
  return opens_blocks() && open_.num_tokens % block_tokens != 0
             ? open_.open_blocks.find(open_.num_tokens / block_tokens)
             : nullptr;
}

Result<Segment> Sequence::seal(std::shared_ptr<const BlockTable> maps, bool whole) const {
  if (open_.num_tokens == 0) {
    return {ErrorCode::kInvalidArgument, "cannot seal a segment: no token of the open run has KV"};
  }
  if (open_.tail_slot > 0) {
    return {
        ErrorCode::kInvalidArgument,
        "cannot seal a segment: the last block of its run was coalesced; make room for it first"};
  }
  if (shared_->config().num_states > 0 && maps == nullptr) {
    return {ErrorCode::kIncompatible,
            "KV of a model whose layers carry a state cannot be used apart from the state behind "
            "it"};
  }
  if (open_.blocks.num_given_up() > 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot seal a segment of ", open_.num_tokens, " tokens: the window of ",
                          shared_->config().window_tokens, " tokens has freed ",
                          open_.blocks.num_given_up(), " of its blocks")};
  }
  if (whole && open_.blocks.num_without_part() > 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot seal a segment of ", open_.num_tokens, " tokens: the window of ",
                          shared_->config().window_group.tokens,
                          " tokens of some layers has freed their KV of the first ",
                          open_.blocks.num_without_part(), " blocks")};
  }
  const std::int32_t full = run_blocks(open_.num_tokens);
  BlockTable blocks = open_.blocks.clone(full);
  if (const OpenBlock* last = last_open_block()) {
    blocks.reserve_more(1);
    shared_->retain(last->block);
    blocks.push(last->block);
  }
  return Segment(std::move(blocks), {tokens_.begin(), tokens_.begin() + open_.num_tokens}, 0,
                 std::min(found_blocks_, full), open_.format, std::move(maps));
}

// Tells whether the open block must be copied before it is written. Blocks behind it hold no token
// yet and are never shared.
bool Sequence::must_copy_open_block() const {
  const std::int32_t block_tokens = shared_->config().block_tokens;
  if (const OpenBlock* last = last_open_block()) {
    return shared_->is_shared(last->block);
  }
  const std::int32_t at = open_.rows() / block_tokens;
  return open_.rows() % block_tokens != 0 && at < open_.blocks.size() &&
         (open_.tail_slot > 0 || shared_->is_shared(open_.blocks.ref(at)));
}

// Returns the blocks that room for `count` tokens takes, in the run's format and open ones.
Sequence::Need Sequence::need_of(std::int32_t count) const {
  QUIRE_CHECK(count >= 0, "room for a negative number of tokens");
  const std::int64_t end = std::int64_t{open_.num_tokens} + count;
  const std::int64_t slots = std::max<std::int64_t>(end, open_.rows());
  const bool writes = count > open_.room && (open_.kept_tokens == 0 || end > open_.kept_tokens);
  const bool copies = (writes || open_.tail_slot > 0) && must_copy_open_block();
  if (opens_blocks()) {
    return {.stored = std::max(run_blocks(slots) - open_.blocks.size(), 0),
            .open = (copies ? 1 : 0) + (lacks_open_block(slots) ? 1 : 0)};
  }
  if (count <= open_.room && open_.tail_slot == 0) {
    return {};
  }
  return {.stored = run_blocks(slots) - open_.blocks.size() + (copies ? 1 : 0)};
}

BlockNeeds Sequence::needs(std::int32_t count) const {
  const Need need = need_of(count);
  return opens_as() == kOwnFormat ? BlockNeeds{.own = need.stored + need.open}
                                  : BlockNeeds{.own = need.stored, .open = need.open};
}

// Makes room where rows lie in open blocks. A block that the new room begins and fills needs none.
void Sequence::extend_by_block(std::int32_t count, std::span<const BlockRef>& open) {
  const std::int32_t block_tokens = shared_->config().block_tokens;
  const Need need = need_of(count);
  const bool copy = count > open_.room && must_copy_open_block();
  open_.blocks.reserve_more(need.stored);
  open_.open_blocks.reserve_more(1);
  shared_->copies().reserve_more(1);
  if (open_.format == kOwnFormat) {
    const BlockId last = open_.blocks.size() == 0 ? BlockId{} : open_.blocks.ids().back();
    for (const BlockRef block : shared_->acquire(need.stored, last, open_.holder)) {
      open_.blocks.push(block);
    }
  }
  const auto take = [&] {
    if (opens_as() == kOwnFormat) {
      return shared_->acquire(1, BlockId{}).front();
    }
    const BlockRef block = open.front();
    open = open.subspan(1);
    return block;
  };
  if (copy) {
    const OpenBlock last = *last_open_block();
    const OpenBlock own = {.index = last.index, .block = take()};
    shared_->copies().add({.from = last.block.id,
                           .to = own.block.id,
                           .tokens = open_.num_tokens % block_tokens,
                           .format = own.block.format()});
    open_.open_blocks.replace(own);
  }
  if (const std::int32_t end = open_.num_tokens + count; lacks_open_block(end)) {
    open_.open_blocks.push({.index = end / block_tokens, .block = take()});
  }
  open_.room = std::max(open_.room, count);
}

void Sequence::extend(std::int32_t count, std::span<const BlockRef>& open) {
  if (opens_blocks()) {
    return extend_by_block(count, open);
  }
  if (count <= open_.room && open_.tail_slot == 0) {
    return;
  }
  QUIRE_CHECK(open_.format == kOwnFormat, "a run in another format does not grow");
  // Asked before acquire: an eviction may end the sharing, but the block for the copy is counted.
  const bool writes = open_.num_tokens + count > open_.rows() || open_.kept_tokens == 0;
  const bool copy = (writes || open_.tail_slot > 0) && must_copy_open_block();
  const BlockId last = open_.blocks.size() == 0 ? BlockId{} : open_.blocks.ids().back();
  const std::int32_t needed = need_of(count).stored;
  open_.blocks.reserve_more(needed);
  if (copy) {
    shared_->copies().reserve_more(1);
  }
  const std::span<const BlockRef> fresh = shared_->acquire(needed, last, open_.holder);
  auto next = fresh.begin();
  if (copy) {
    const std::int32_t at = open_.rows() / shared_->config().block_tokens;
    shared_->copies().add({.from = open_.blocks.ref(at).id,
                           .to = next->id,
                           .tokens = open_.rows() % shared_->config().block_tokens,
                           .from_slot = open_.tail_slot});
    open_.blocks.replace(at, *next);
    open_.tail_slot = 0;
    ++next;
  }
  for (; next != fresh.end(); ++next) {
    open_.blocks.push(*next);
  }
  open_.room = count;
}

void Sequence::make_room_in(FormatId format) {
  BlockCounts needed;
  needed[format] = run_blocks(std::ssize(tokens_));
  open_.blocks.reserve(needed[format]);
  shared_->lend_for(needed);
  for (const BlockRef block : shared_->acquire(format, needed[format])) {
    open_.blocks.push(block);
  }
  open_.room = opens_blocks() ? 0 : static_cast<std::int32_t>(tokens_.size());
}

bool Sequence::reserve(std::int64_t tokens, ReservedBlocks::Holder holder) {
  if (holder == ReservedBlocks::kNobody) {
    tokens_.reserve(static_cast<std::size_t>(tokens));
    open_.blocks.reserve(blocks_for_tokens(shared_->config(), tokens));
    return true;
  }
  const std::int32_t all = run_blocks(tokens);
  const std::int32_t more = open_.format == kOwnFormat ? std::max(all - open_.blocks.size(), 0) : 0;
  const std::int32_t copies = more > 0 && !opens_blocks() && must_copy_open_block() ? 1 : 0;
  const BlockId last = open_.blocks.size() == 0 ? BlockId{} : open_.blocks.ids().back();
  if (!shared_->reserved().set_aside(holder, more + copies, all + 1, last)) {
    return false;
  }
  open_.holder = holder;
  open_.reserved_tokens = tokens;
  return true;
}

void Sequence::move_tail(BlockRef to, std::int32_t slot) {
  open_.blocks.replace(open_.blocks.size() - 1, to);
  open_.tail_slot = slot;
}

// Gives back the blocks behind the first `count`. Those that nobody else holds are set aside again,
// as far as tokens are reserved.
void Sequence::give_up_behind(std::int32_t count) {
  ReservedBlocks& reserved = shared_->reserved();
  const std::int32_t wanted =
      open_.holder == ReservedBlocks::kNobody ? 0 : run_blocks(open_.reserved_tokens);
  while (open_.blocks.size() > count) {
    const std::int32_t last = open_.blocks.size() - 1;
    const BlockRef block = open_.blocks.ref(last);
    const bool again = last + reserved.size(open_.holder) < wanted &&
                       last >= open_.blocks.num_given_up() && !shared_->is_shared(block);
    if (again) {
      reserved.set_aside_again(open_.holder, block);
    }
    open_.blocks.truncate(last);
    if (again) {
      shared_->parts().free(block.id);
    }
  }
}

void Sequence::advance_unpublished(std::int32_t count) {
  QUIRE_CHECK(count >= 0 && count <= open_.room, "KV was written into room that nobody made");
  QUIRE_CHECK(count <= static_cast<std::int32_t>(tokens_.size()) - num_computed(),
              "KV was written for tokens that are not there");
  open_.num_tokens += count;
  open_.kept_tokens = open_.kept_tokens > open_.num_tokens ? open_.kept_tokens : 0;
  open_.room -= count;
  open_.open_blocks.release_before(open_.num_tokens / shared_->config().block_tokens);
}

void Sequence::advance(std::int32_t count) {
  const std::int32_t open_block = open_.num_tokens / shared_->config().block_tokens;
  advance_unpublished(count);
  let_parts_go();
  publish_from(open_block);
  give_up_blocks();
}

void Sequence::give_up_blocks() {
  if (use_.past == BehindWindow::kFrees) {
    open_.blocks.give_up_front(blocks_to_give_up(shared_->config(), open_.num_tokens));
  }
}

void Sequence::let_parts_go() {
  if (use_.past == BehindWindow::kFrees) {
    open_.blocks.let_parts_go(parts_to_let_go(shared_->config(), open_.num_tokens),
                              [this](std::int32_t block) { return is_at_point(block); });
  }
}

// Returns whether a later request may go on where it sees the window part of this block. Requests
// go on at ends of blocks.
bool Sequence::is_at_point(std::int32_t block) const {
  const LedgerConfig& config = shared_->config();
  return std::ranges::any_of(use_.points, [&](std::int32_t length) {
    const std::int32_t blocks = length / config.block_tokens;
    return block < blocks && block >= parts_behind_window(config, blocks * config.block_tokens);
  });
}

void Sequence::add_point(std::int32_t length) {
  const bool frees = use_.past == BehindWindow::kFrees && shared_->parts().exist();
  if (frees && length > 0 && std::ranges::find(use_.points, length) == use_.points.end()) {
    use_.points.push_back(length);
  }
}

bool Sequence::set_behind_window(BehindWindow past) {
  const std::int32_t lacking = open_.blocks.num_without_part();
  if (past == BehindWindow::kKeeps) {
    if (open_.blocks.num_given_up() > 0) {
      return false;
    }
    for (std::int32_t i = 0; i < lacking; ++i) {
      if (!shared_->parts().is_there(open_.blocks.ref(i).id)) {
        return false;
      }
    }
    open_.blocks.take_parts_up(0);
  }
  use_.past = past;
  let_parts_go();
  give_up_blocks();
  return true;
}

// Publishes the full blocks from `block` on. Two sequences may compute the same block at the same
// time. The second then takes the first one's block and frees its own. Both hold the KV of the same
// tokens after the same tokens. That KV is equal to the bit, because every row of a forward pass is
// computed alike whatever the batch (attention/run.h). A sequence that was opened without reuse
// keeps its own block. Then later blocks are not published, as their parent is not known. Neither
// is a block that a fork has behind the one that is freed here: a block stands behind one parent.
void Sequence::publish_from(std::int32_t block) {
  if (!shared_->config().prefix_cache || !is_plain()) {
    return;
  }
  const auto block_tokens = static_cast<std::size_t>(shared_->config().block_tokens);
  bool has_adopted = false;
  for (; (block + 1) * shared_->config().block_tokens <= open_.num_tokens; ++block) {
    const BlockRef parent = block == 0 ? shared_->root(use_.salt) : open_.blocks.ref(block - 1);
    if (!shared_->index().contains(parent)) {
      return;
    }
    const BlockRef own = open_.blocks.ref(block);
    const auto stored =
        tokens().subspan(static_cast<std::size_t>(block) * block_tokens, block_tokens);
    const bool has_forks = shared_->pool().references(own.id) > 1;
    if (has_adopted && has_forks && !shared_->index().find(parent, stored)) {
      return;
    }
    const BlockRef known = shared_->publish(parent, own, stored, use_.session);
    has_adopted = known != own && use_.adopts;
    if (has_adopted && !adopt_known(block, known)) {
      return;
    }
  }
}

// Takes the block that the index knows instead of the sequence's own one. A window part that it has
// lost and that somebody needs comes from there. False where the budget has no bytes for that.
bool Sequence::adopt_known(std::int32_t block, BlockRef known) {
  using Holds = SharedBlocks::Holds;
  const BlockRef own = open_.blocks.ref(block);
  const bool passed = block < open_.blocks.num_without_part();
  const bool lacks = !shared_->parts().is_there(known.id);
  const bool wants = !passed || (is_at_point(block) && shared_->parts().is_there(own.id));
  if (lacks && wants && !hand_over_part(*shared_, own, known)) {
    return false;
  }
  shared_->adopt(known, use_.session, passed || lacks ? Holds::kFullPart : Holds::kWhole);
  if (passed && lacks && wants) {
    shared_->parts().let_go(known.id, true);
  }
  open_.blocks.replace(block, known);
  found_blocks_ += block == found_blocks_ ? 1 : 0;
  return true;
}

void Sequence::begin_behind(std::int32_t blocks) {
  const std::int32_t tokens = blocks * shared_->config().block_tokens;
  if (open_.num_tokens >= tokens) {
    return;
  }
  if (shared_->config().window_tokens > 0) {
    drop_kv();
    open_.blocks.begin_behind(blocks);
    open_.num_tokens = tokens;
    return;
  }
  const std::int32_t there = open_.blocks.size();
  QUIRE_CHECK(is_plain() && use_.past == BehindWindow::kFrees && open_.room == 0 &&
                  there * shared_->config().block_tokens == open_.num_tokens,
              "window parts are left out behind a block that is not full");
  open_.blocks.reserve_more(blocks - there);
  const BlockId last = there == 0 ? BlockId{} : open_.blocks.ids().back();
  const std::span<const BlockRef> fresh = shared_->acquire(
      blocks - there, last, ReservedBlocks::kNobody, SharedBlocks::Holds::kFullPart);
  open_.blocks.let_parts_go(there, [this](std::int32_t block) { return is_at_point(block); });
  for (const BlockRef block : fresh) {
    open_.blocks.push_without_part(block);
  }
  open_.num_tokens = tokens;
}

Status Sequence::rollback(std::int32_t length, std::optional<std::int32_t> from) {
  const LedgerConfig& config = shared_->config();
  const auto total = static_cast<std::int32_t>(tokens_.size());
  if (length < 0 || length > total) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot roll back to ", length, " tokens: the sequence has ", total)};
  }
  const std::int32_t kept = stored_length(config, open_, from.value_or(length));
  const std::int32_t gone = std::min(open_.blocks.num_given_up(), blocks_for_tokens(config, kept));
  if (gone > blocks_behind_window(config, kept)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot roll back to ", length, " tokens: the window of ",
                          config.window_tokens, " tokens has freed tokens up to ",
                          open_.blocks.num_given_up() * config.block_tokens, " of ", num_computed(),
                          "; drop the KV and compute it again")};
  }
  QUIRE_CHECK(usable_length(*shared_, open_, kept) == kept,
              "a window part that the next row sees has gone");
  // The block of a point that was just taken up is not there.
  const std::int32_t there = std::min(open_.rows(), open_.blocks.size() * config.block_tokens);
  const std::int32_t rows = may_owe(config, *this) ? std::max(kept, std::min(there, length)) : kept;
  tokens_.resize(static_cast<std::size_t>(length));
  open_.replays_until = from ? length : std::min(open_.replays_until, length);
  open_.num_tokens = kept;
  open_.kept_tokens = rows > kept ? rows : 0;
  if (open_.blocks.size() > blocks_for_tokens(config, rows) || rows % config.block_tokens == 0) {
    open_.tail_slot = 0;  // the block that it is in goes
  }
  give_up_behind(std::min(run_blocks(rows), open_.blocks.size()));
  open_.blocks.take_parts_up(
      std::min(parts_behind_window(config, kept), open_.blocks.num_without_part()));
  open_.open_blocks.release_from(run_blocks(kept) + (last_open_block() == nullptr ? 0 : 1));
  found_blocks_ = std::min(found_blocks_, run_blocks(rows));
  open_.room = 0;
  return {};
}

void Sequence::exchange_kv(Sequence& other) {
  std::swap(open_.blocks, other.open_.blocks);
  std::swap(open_.open_blocks, other.open_.open_blocks);
  std::swap(open_.room, other.open_.room);
  std::swap(open_.kept_tokens, other.open_.kept_tokens);
  std::swap(open_.tail_slot, other.open_.tail_slot);
  std::swap(found_blocks_, other.found_blocks_);
}

void Sequence::drop_kv(Dropped what) {
  if (what == Dropped::kOwed) {
    open_.kept_tokens = 0;
    open_.tail_slot = 0;
    open_.room = 0;
    give_up_behind(open_.num_tokens / shared_->config().block_tokens);
    found_blocks_ = std::min(found_blocks_, open_.blocks.size());
    return;
  }
  const bool keeps_blocks = open_.format != kOwnFormat;
  if (!keeps_blocks) {
    open_.blocks.truncate(0);
  }
  open_.open_blocks.release_from(0);
  shared_->reserved().give_back(std::exchange(open_.holder, ReservedBlocks::kNobody));
  open_.num_tokens = 0;
  open_.kept_tokens = 0;
  open_.tail_slot = 0;
  open_.replays_until = 0;
  found_blocks_ = 0;
  open_.room = keeps_blocks && !opens_blocks() ? static_cast<std::int32_t>(tokens_.size()) : 0;
}

void Sequence::attach(std::span<const BlockRef> path, std::int32_t tokens, std::int32_t known) {
  QUIRE_CHECK(is_plain() && open_.num_tokens == 0, "a prefix was attached behind other KV");
  const std::int32_t until = std::max(known, open_.replays_until);
  drop_kv();
  open_.replays_until = until;
  open_.blocks.reserve_more(static_cast<std::int32_t>(path.size()));
  found_blocks_ = static_cast<std::int32_t>(path.size());
  const std::int32_t stored = found_blocks_ * shared_->config().block_tokens;
  open_.num_tokens = tokens;
  open_.kept_tokens = stored > tokens ? stored : 0;
  const std::int32_t passed = use_.past == BehindWindow::kFrees
                                  ? parts_behind_window(shared_->config(), open_.num_tokens)
                                  : 0;
  for (const BlockRef block : path) {
    if (open_.blocks.size() < passed) {
      shared_->adopt(block, use_.session, SharedBlocks::Holds::kFullPart);
      open_.blocks.push_without_part(block);
    } else {
      shared_->adopt(block, use_.session);
      open_.blocks.push(block);
    }
  }
  give_up_blocks();
}

}  // namespace quire::kv
