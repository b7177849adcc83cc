#include "quire/kv/ledger.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/ledger_internal.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

constexpr std::int32_t kMaxBlockTokens = 256;
constexpr std::int64_t kMaxSlots = std::int64_t{1} << 30;  // so that no slot number overflows

// The last token is always computed: its logits are wanted.
std::vector<BlockRef> cached_chain(const SharedBlocks& shared, std::span<const TokenId> tokens,
                                   std::string_view salt) {
  if (!shared.config().prefix_cache || tokens.empty()) {
    return {};
  }
  return shared.index().match(tokens.first(tokens.size() - 1), salt);
}

Status check_position(std::int32_t position, std::int64_t num_tokens, std::string_view what) {
  constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();
  if (position >= 0 && position <= kMaxPosition - num_tokens) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(what, " of ", num_tokens, " tokens cannot be used at ", position,
                        "; give 0 to ", kMaxPosition - num_tokens)};
}

// The first `num_tokens` tokens of a segment, which share its blocks.
Result<std::shared_ptr<const Segment>> first_part(const LedgerConfig& config,
                                                  const std::shared_ptr<const Segment>& segment,
                                                  std::int32_t num_tokens) {
  if (num_tokens == segment->num_tokens()) {
    return segment;
  }
  if (num_tokens < 1 || num_tokens > segment->num_tokens()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot use ", num_tokens, " tokens of a segment of ",
                          segment->num_tokens(), "; give 1 to ", segment->num_tokens())};
  }
  const std::span<const TokenId> tokens = segment->tokens();
  return std::make_shared<const Segment>(
      segment->blocks().clone(blocks_for_tokens(config, num_tokens)),
      std::vector<TokenId>(tokens.begin(), tokens.begin() + num_tokens), segment->stored_from());
}

}  // namespace

Status LedgerConfig::validate() const {
  if (block_tokens < 1 || block_tokens > kMaxBlockTokens) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("block_tokens is ", block_tokens, "; give 1 to ", kMaxBlockTokens)};
  }
  if (num_blocks < 1 || std::int64_t{num_blocks} * block_tokens > kMaxSlots) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("num_blocks is ", num_blocks, "; give 1 to ", kMaxSlots / block_tokens,
                          " blocks of ", block_tokens, " tokens")};
  }
  if (window_tokens < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("window_tokens is ", window_tokens, "; give 0 (no window) or more")};
  }
  if (extent_blocks < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("extent_blocks is ", extent_blocks, "; give 1 (anywhere) or more")};
  }
  return {};
}

Sequence& Ledger::Impl::sequence(SeqId id) {
  const auto found = sequences.find(id.value);
  QUIRE_CHECK(found != sequences.end(), "no such sequence in the ledger");
  return found->second;
}

SeqId Ledger::Impl::add(Sequence sequence) {
  sequences.emplace(++last_id, std::move(sequence));
  return {last_id};
}

Ledger::Ledger(const LedgerConfig& config) {
  QUIRE_CHECK(config.validate().ok(), "the ledger's configuration was not validated");
  impl_ = std::make_unique<Impl>(config);
}

Ledger::~Ledger() = default;
Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;

const LedgerConfig& Ledger::config() const { return impl_->shared.config(); }

std::int32_t Ledger::match(std::span<const TokenId> tokens, std::string_view salt) const {
  return probe(tokens, salt).tokens;
}

PrefixMatch Ledger::probe(std::span<const TokenId> tokens, std::string_view salt) const {
  const std::vector<BlockRef> chain = cached_chain(impl_->shared, tokens, salt);
  PrefixMatch result;
  result.tokens = static_cast<std::int32_t>(chain.size()) * config().block_tokens;
  const auto behind = static_cast<std::size_t>(blocks_behind_window(config(), result.tokens));
  for (const BlockRef block : std::span(chain).subspan(behind)) {
    ++result.blocks;
    result.evictable_blocks += impl_->shared.index().is_unused(block) ? 1 : 0;
  }
  return result;
}

std::vector<std::int32_t> Ledger::match_each_salt(std::span<const TokenId> tokens) const {
  if (!config().prefix_cache || tokens.empty()) {
    return {};
  }
  std::vector<std::int32_t> lengths =
      impl_->shared.index().match_each_salt(tokens.first(tokens.size() - 1));
  for (std::int32_t& length : lengths) {
    length *= config().block_tokens;
  }
  std::ranges::sort(lengths, std::greater());
  return lengths;
}

PrefixMiss Ledger::explain(std::span<const TokenId> tokens, std::string_view salt) const {
  if (!config().prefix_cache) {
    return {.why = PrefixMiss::Why::kCacheOff};
  }
  return impl_->shared.index().explain(tokens.first(tokens.empty() ? 0 : tokens.size() - 1), salt);
}

std::string to_text(const PrefixMiss& miss) {
  const auto ago = [&] {
    return base::str_cat(" ", static_cast<std::int64_t>(miss.seconds), " s ago");
  };
  switch (miss.why) {
    case PrefixMiss::Why::kCacheOff:
      return "the prefix cache is off";
    case PrefixMiss::Why::kNeverSeen:
      return "never seen";
    case PrefixMiss::Why::kDiffers:
      return base::str_cat("differs from what is cached at token ", miss.token);
    case PrefixMiss::Why::kEvicted:
      return base::str_cat("evicted to make room", ago());
    case PrefixMiss::Why::kClosed:
      return base::str_cat("evicted to make room", ago(), ": its session was closed");
    case PrefixMiss::Why::kExpired:
      return base::str_cat("evicted to make room", ago(), ": its session's ttl was over");
    case PrefixMiss::Why::kReturnsLater:
      return base::str_cat("evicted to make room", ago(),
                           ": its session was expected back later than others");
    case PrefixMiss::Why::kCleared:
      return base::str_cat("the cache was cleared", ago());
    case PrefixMiss::Why::kTail:
      return "less than a block is left, and the last token is always computed";
  }
  return "";
}

SeqId Ledger::open(std::span<const TokenId> tokens, bool reuse, SessionRef session,
                   std::string_view salt) {
  const SeqId id = impl_->add(Sequence(impl_->shared, tokens, reuse, session, salt));
  impl_->shared.order().begin(session);
  try {
    reattach(id);
  } catch (const std::bad_alloc&) {
    close(id);
    throw;
  }
  return id;
}

SeqId Ledger::fork(SeqId id) { return impl_->add(impl_->sequence(id).fork()); }

// The session's claim is there before its blocks may go.
void Ledger::close(SeqId id) {
  const auto found = impl_->sequences.find(id.value);
  if (found == impl_->sequences.end()) {
    return;
  }
  assign(id, {});
  impl_->sequences.erase(found);
}

void Ledger::assign(SeqId id, SessionRef session) {
  Sequence& sequence = impl_->sequence(id);
  if (sequence.session() == session) {
    return;
  }
  impl_->shared.order().end(sequence.session(), sequence.last_cached().id.value);
  impl_->shared.order().begin(session);
  sequence.assign(session);
}

bool Ledger::contains(SeqId id) const { return impl_->sequences.contains(id.value); }

std::span<const TokenId> Ledger::tokens(SeqId id) const { return impl_->sequence(id).tokens(); }

std::vector<TokenId> Ledger::joined_tokens(SeqId id) const {
  const Sequence& sequence = impl_->sequence(id);
  std::vector<TokenId> joined;
  joined.reserve(static_cast<std::size_t>(segment_tokens(id)) + sequence.tokens().size());
  for (const SealedRun& run : sequence.sealed()) {
    joined.insert(joined.end(), run.segment->tokens().begin(), run.segment->tokens().end());
  }
  joined.insert(joined.end(), sequence.tokens().begin(), sequence.tokens().end());
  return joined;
}

std::int32_t Ledger::num_computed(SeqId id) const { return impl_->sequence(id).num_computed(); }

std::int32_t Ledger::segment_tokens(SeqId id) const {
  std::int32_t tokens = 0;
  for (const SealedRun& run : impl_->sequence(id).sealed()) {
    tokens += run.segment->num_tokens();
  }
  return tokens;
}

std::vector<RunView> Ledger::runs(SeqId id) const {
  std::vector<RunView> views;
  append_runs(id, views);
  return views;
}

void Ledger::append_runs(SeqId id, std::vector<RunView>& views) const {
  const Sequence& sequence = impl_->sequence(id);
  for (const SealedRun& run : sequence.sealed()) {
    views.push_back({.blocks = run.segment->blocks().ids(),
                     .num_tokens = run.segment->num_tokens(),
                     .start_position = run.start_position,
                     .stored_from = run.segment->stored_from(),
                     .rank = run.rank});
  }
  const OpenRun& open = sequence.open();
  views.push_back({.blocks = open.blocks.ids(),
                   .num_tokens = open.num_tokens,
                   .start_position = open.start_position});
}

std::int32_t Ledger::segment_blocks(SeqId id) const {
  std::int32_t blocks = 0;
  for (const SealedRun& run : impl_->sequence(id).sealed()) {
    blocks += run.segment->blocks().size();
  }
  return blocks;
}

std::int32_t Ledger::num_blocks_held(SeqId id) const {
  return impl_->sequence(id).open().blocks.num_live() + segment_blocks(id);
}

bool Ledger::is_plain(SeqId id) const { return impl_->sequence(id).is_plain(); }

const std::string& Ledger::salt(SeqId id) const { return impl_->sequence(id).salt(); }

std::int32_t Ledger::blocks_needed(SeqId id, std::int32_t count) const {
  return impl_->sequence(id).blocks_needed(count);
}

std::int32_t Ledger::blocks_available() const { return impl_->shared.num_available(); }

std::int32_t Ledger::blocks_freed_by_drop(std::span<const SeqId> ids) const {
  std::vector<BlockRef> held;
  for (const SeqId id : ids) {
    const std::span<const BlockRef> live = impl_->sequence(id).open().blocks.live();
    held.insert(held.end(), live.begin(), live.end());
  }
  std::ranges::sort(held, {}, &BlockRef::id);
  std::int32_t freed = 0;
  for (auto first = held.begin(); first != held.end();) {
    const auto next = std::find_if(first, held.end(), [&](BlockRef b) { return b != *first; });
    freed += next - first == impl_->shared.num_users(*first) ? 1 : 0;
    first = next;
  }
  return freed;
}

std::int64_t Ledger::min_blocks(std::int64_t num_tokens) const {
  const std::int64_t block_tokens = config().block_tokens;
  const std::int64_t whole = (num_tokens + block_tokens - 1) / block_tokens;
  if (config().window_tokens == 0) {
    return whole;
  }
  // Worst alignment: the oldest token that is seen is the last one of its block.
  return std::min(whole, std::int64_t{blocks_for_tokens(config(), config().window_tokens - 1)} + 1);
}

Status Ledger::extend(SeqId id, std::int32_t count) {
  Sequence& sequence = impl_->sequence(id);
  const std::int32_t needed = sequence.blocks_needed(count);
  if (needed > blocks_available()) {
    const LedgerCounts now = counts();
    return {ErrorCode::kOutOfBlocks,
            base::str_cat("cannot make room for ", count, " tokens: needs ", needed, " blocks, ",
                          now.blocks_free, " free and ", now.blocks_cached, " evictable of ",
                          now.blocks_total, "; close sequences or raise kv_budget")};
  }
  sequence.extend(count);
  return {};
}

bool Ledger::shares_open_block(SeqId id) const {
  return impl_->sequence(id).must_copy_open_block();
}

BlockRef Ledger::current(BlockId id) const { return impl_->shared.pool().current(id); }

std::vector<BlockCopy> Ledger::take_copies() { return impl_->shared.take_copies(); }

void Ledger::advance(SeqId id, std::int32_t count) { impl_->sequence(id).advance(count); }

void Ledger::advance_unpublished(SeqId id, std::int32_t count) {
  QUIRE_CHECK(config().window_tokens == 0, "a window would free blocks that are being written");
  impl_->sequence(id).advance_unpublished(count);
}

void Ledger::publish(SeqId id) { impl_->sequence(id).publish(); }

void Ledger::begin_behind_window(SeqId id, std::int32_t num_tokens) {
  impl_->sequence(id).begin_behind_window(num_tokens);
}

void Ledger::append(SeqId id, TokenId token) { impl_->sequence(id).append(token); }

void Ledger::reserve(SeqId id, std::int64_t tokens) { impl_->sequence(id).reserve(tokens); }

Status Ledger::rollback(SeqId id, std::int32_t length) {
  return impl_->sequence(id).rollback(length);
}

void Ledger::drop_kv(SeqId id) { impl_->sequence(id).drop_kv(); }

std::int32_t Ledger::reattach(SeqId id) {
  Sequence& sequence = impl_->sequence(id);
  if (!sequence.adopts() || sequence.num_computed() > 0) {
    return 0;
  }
  const std::vector<BlockRef> chain =
      cached_chain(impl_->shared, sequence.tokens(), sequence.salt());
  if (!chain.empty()) {
    sequence.attach(chain);
  }
  impl_->tokens_reused += sequence.num_computed();
  return sequence.num_computed();
}

SegmentId Ledger::Impl::name(std::shared_ptr<const Segment> segment) {
  segments.emplace(++last_id, std::move(segment));
  return {last_id};
}

Result<SegmentId> Ledger::seal(SeqId id) {
  QUIRE_TRY(Segment segment, impl_->sequence(id).seal());
  return impl_->name(std::make_shared<const Segment>(std::move(segment)));
}

Result<SegmentId> Ledger::reserve_segment(std::vector<TokenId> tokens, std::int32_t stored_from) {
  const std::int32_t needed = blocks_for_tokens(config(), std::ssize(tokens));
  if (needed == 0) {
    return {ErrorCode::kInvalidArgument, "a segment has at least one token"};
  }
  if (needed > blocks_available()) {
    return {ErrorCode::kOutOfBlocks,
            base::str_cat("a segment of ", tokens.size(), " tokens needs ", needed, " blocks, ",
                          blocks_available(), " of ", counts().blocks_total, " can be had")};
  }
  BlockTable blocks(impl_->shared);
  blocks.reserve(needed);
  for (const BlockRef block : impl_->shared.acquire(needed, BlockId{})) {
    blocks.push(block);
  }
  return impl_->name(
      std::make_shared<const Segment>(std::move(blocks), std::move(tokens), stored_from));
}

Result<std::vector<SegmentUse>> Ledger::seal_runs(SeqId id) {
  const Sequence& sequence = impl_->sequence(id);
  const auto give_up = [this, before = mark()] {
    drop_segments_since(before, [](SegmentId) { return false; });
  };
  try {
    std::vector<SegmentUse> uses;
    uses.reserve(sequence.sealed().size() + 1);
    for (const SealedRun& run : sequence.sealed()) {
      uses.push_back(
          {.segment = impl_->name(run.segment), .position = run.start_position, .rank = run.rank});
    }
    if (sequence.num_computed() > 0) {
      auto own = seal(id);
      if (!own.ok()) {
        give_up();
        return std::move(own).error();
      }
      uses.push_back({.segment = *own, .position = sequence.open().start_position});
    }
    return uses;
  } catch (const std::bad_alloc&) {
    give_up();
    throw;
  }
}

bool Ledger::drop_segment(SegmentId id) { return impl_->segments.erase(id.value) > 0; }

Ledger::Mark Ledger::mark() const { return {impl_->last_id}; }

void Ledger::close_since(Mark mark) {
  for (auto next = impl_->sequences.begin(); next != impl_->sequences.end();) {
    const SeqId id{(next++)->first};
    if (id.value > mark.last_id) {
      close(id);
    }
  }
}

void Ledger::drop_segments_since(Mark mark, const std::function<bool(SegmentId)>& keeps) {
  std::erase_if(impl_->segments, [&](const auto& segment) {
    return segment.first > mark.last_id && !keeps({segment.first});
  });
}

bool Ledger::forget_segment(SegmentId id) {
  const auto found = impl_->segments.extract(id.value);
  if (found.empty()) {
    return false;
  }
  const auto own = static_cast<std::size_t>(found.mapped()->found_blocks());
  const std::span<const BlockRef> live = found.mapped()->blocks().live();
  std::vector<BlockRef> blocks;
  try {
    blocks.assign(live.begin() + static_cast<std::ptrdiff_t>(own), live.end());
  } catch (const std::bad_alloc&) {
    return true;  // as drop_segment: what is cached goes when its turn comes
  }
  found.mapped() = nullptr;
  impl_->shared.forget(blocks);
  return true;
}

Result<SegmentId> Ledger::derive(SegmentId id, std::span<const std::int32_t> tokens) {
  const auto found = impl_->segments.find(id.value);
  if (found == impl_->segments.end()) {
    return {ErrorCode::kNotFound, base::str_cat("no segment ", id.value)};
  }
  const Segment& base = *found->second;
  const std::int32_t block_tokens = config().block_tokens;
  std::vector<std::int32_t> touched;  // blocks
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= base.num_tokens()) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("no token ", token, " in a segment of ", base.num_tokens())};
    }
    if (touched.empty() || touched.back() != token / block_tokens) {
      touched.push_back(token / block_tokens);
    }
  }
  const auto needed = static_cast<std::int32_t>(touched.size());
  if (needed > blocks_available()) {
    return {ErrorCode::kOutOfBlocks,
            base::str_cat("recomputing tokens of a segment needs ", needed, " blocks, ",
                          blocks_available(), " of ", counts().blocks_total, " can be had")};
  }
  // Copies are ordered last: what is refused memory before has ordered none.
  impl_->shared.reserve_copies(needed);
  BlockTable blocks = base.blocks().clone(base.blocks().size());
  std::vector<BlockRef> fresh;
  fresh.reserve(static_cast<std::size_t>(needed));
  for (const BlockRef block : impl_->shared.acquire(needed, BlockId{})) {
    blocks.replace(touched[fresh.size()], block);
    fresh.push_back(block);
  }
  const SegmentId derived = impl_->name(std::make_shared<const Segment>(
      std::move(blocks), std::vector<TokenId>(base.tokens().begin(), base.tokens().end()),
      base.stored_from()));
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const std::int32_t first = touched[i] * block_tokens;
    impl_->shared.order_copy({.from = base.blocks().ref(touched[i]).id,
                              .to = fresh[i].id,
                              .tokens = std::min(block_tokens, base.num_tokens() - first)});
  }
  return derived;
}

std::int32_t Ledger::num_blocks(SegmentId id) const {
  const auto found = impl_->segments.find(id.value);
  return found == impl_->segments.end() ? 0 : found->second->blocks().size();
}

const Segment* Ledger::segment(SegmentId id) const {
  const auto found = impl_->segments.find(id.value);
  return found == impl_->segments.end() ? nullptr : found->second.get();
}

Result<SeqId> Ledger::compose(std::span<const SegmentUse> uses, ComposeTail tail) {
  std::vector<SealedRun> sealed;
  sealed.reserve(uses.size());
  std::int32_t end = 0;
  for (const SegmentUse use : uses) {
    const auto found = impl_->segments.find(use.segment.value);
    if (found == impl_->segments.end()) {
      return {ErrorCode::kNotFound, base::str_cat("no segment ", use.segment.value)};
    }
    const std::int32_t num_tokens = use.tokens.value_or(found->second->num_tokens());
    QUIRE_TRY_STATUS(check_position(use.position, num_tokens, "a segment"));
    QUIRE_TRY(auto segment, first_part(config(), found->second, num_tokens));
    sealed.push_back(
        {.segment = std::move(segment), .start_position = use.position, .rank = use.rank});
    end = std::max(end, use.position + num_tokens);
  }
  const std::int32_t position = tail.position.value_or(end);
  QUIRE_TRY_STATUS(check_position(position, std::ssize(tail.tokens), "an open run"));
  return impl_->add(Sequence(impl_->shared, tail.tokens, std::move(sealed), position));
}

void Ledger::set_time(TimePoint now) { impl_->shared.order().set_time(now); }

TimePoint Ledger::now() const { return impl_->shared.order().now(); }

SessionRef Ledger::open_session() { return impl_->shared.order().open_session(); }

Retention Ledger::retention(SessionRef session) const {
  return impl_->shared.order().retention(session);
}

void Ledger::set_retention(SessionRef session, const Retention& retention) {
  impl_->shared.order().set_retention(session, retention);
}

void Ledger::close_session(SessionRef session) { impl_->shared.order().close_session(session); }

void Ledger::forget_session(SessionRef session) { impl_->shared.order().forget_session(session); }

Standing Ledger::standing(std::span<const SessionRef> users, bool others,
                          TimePoint last_use) const {
  return impl_->shared.order().standing(users, others, last_use);
}

std::int32_t Ledger::clear_cache() { return impl_->shared.clear_cache(); }

LedgerCounts Ledger::counts() const {
  const BlockPool& pool = impl_->shared.pool();
  LedgerCounts counts;
  counts.blocks_total = pool.num_blocks();
  counts.blocks_free = pool.num_free();
  counts.blocks_cached = impl_->shared.index().num_unused();
  counts.blocks_in_use = counts.blocks_total - counts.blocks_free - counts.blocks_cached;
  counts.evictions = impl_->shared.num_evictions();
  counts.evictions_closed = impl_->shared.num_evictions(PrefixMiss::Why::kClosed);
  counts.evictions_expired = impl_->shared.num_evictions(PrefixMiss::Why::kExpired);
  counts.evictions_later = impl_->shared.num_evictions(PrefixMiss::Why::kReturnsLater);
  counts.blocks_moved = impl_->shared.num_moved();
  counts.sessions = impl_->shared.order().num_sessions();
  counts.tokens_reused = impl_->tokens_reused;
  return counts;
}

}  // namespace quire::kv
