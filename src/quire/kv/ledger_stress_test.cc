// Random operations against a model that copies everything. It keeps, for every token with KV, a
// value that depends on the salt and all tokens before it. Its pool holds such a value in every
// byte of a slot, since blocks of several formats share the bytes. After each step every slot that
// a sequence shows must hold that sequence's value, and every invariant of the ledger must hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/test_length.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/ledger_stress_model.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using namespace stress;  // NOLINT(google-build-using-namespace): the model of this file

class LedgerStress {
 public:
  LedgerStress(const LedgerConfig& config, std::uint32_t seed)
      : config_(config),
        ledger_(config),
        paged_pool_(static_cast<std::size_t>(config.budget_bytes())),
        random_(seed) {}

  void step() {
    if (below(4) == 0) {
      hint();
    }
    const int kind = below(100);
    if (sequences_.empty() || kind < 8) {
      return open();
    }
    if (kind < 10) {
      return restore();
    }
    const SeqId id = any_sequence();
    kind < 40   ? compute(id)
    : kind < 52 ? append(id)
    : kind < 58 ? extend_several()
    : kind < 64 ? fork(id)
    : kind < 74 ? rollback(id)
    : kind < 82 ? close(id)
    : kind < 86 ? drop_kv(id)
    : kind < 90 ? reattach(id)
    : kind < 92 ? seal(id)
    : kind < 94 ? compose()
    : kind < 96 ? drop_segment()
    : kind < 99 ? drop_several()
                : clear_cache();
  }

  // Steps that change segments only.
  void segment_step() {
    const int kind = below(9);
    if (kind == 0 && !sequences_.empty()) {
      return seal(any_sequence());
    }
    if (kind == 8) {
      return compute_segment();
    }
    if (kind == 5 && below(3) == 0) {
      return slice();
    }
    kind < 5 ? reserve() : kind == 5 ? derive() : kind == 6 ? compose() : drop_segment();
  }

  void verify() {
    const Status status = ledger_.check();
    ASSERT_TRUE(status.ok()) << status.error().message;
    for (const auto& [id, model] : sequences_) {
      verify_sequence(id, model);
    }
    for (const auto& [id, values] : segments_) {
      const Segment& segment = *ledger_.segments().find(id);
      verify_run({.blocks = segment.blocks().ids(),
                  .num_tokens = segment.num_tokens(),
                  .format = segment.blocks().format(),
                  .last_format = segment.blocks().last_format()},
                 values, 0);
    }
    const LedgerCounts counts = ledger_.counts();
    ASSERT_EQ(counts.bytes_free + counts.bytes_cached + counts.bytes_in_use,
              config_.budget_bytes());
  }

  void close_all() {
    for (const auto& [id, model] : sequences_) {
      ledger_.sequences().close(id);
    }
    for (const auto& [id, model] : segments_) {
      ASSERT_TRUE(ledger_.segments().drop(id));
    }
    (void)ledger_.cache().clear();
    ASSERT_EQ(ledger_.counts().blocks_free, config_.num_blocks);
    ASSERT_EQ(ledger_.counts().bytes_in_use, 0);
    ASSERT_TRUE(ledger_.counts().bytes_lent == 0 || config_.standing_open_blocks > 0);
    ASSERT_TRUE(ledger_.check().ok());
  }

  std::int64_t reused() const { return ledger_.counts().tokens_reused; }
  LedgerCounts counts() const { return ledger_.counts(); }
  std::int64_t copies() const { return num_copies_; }
  std::int64_t refusals() const { return num_refusals_; }
  std::int64_t reserved() const { return num_reserved_; }
  std::int64_t reserve_refusals() const { return num_reserve_refusals_; }
  std::int64_t most_lent() const { return most_lent_; }
  std::int64_t computed_in() const { return num_computed_in_; }
  std::int64_t cut() const { return num_cut_; }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint32_t>(bound)); }

  SeqId any_sequence() {
    return std::next(sequences_.begin(), below(static_cast<int>(sequences_.size())))->first;
  }

  Tokens random_tokens() {
    Tokens tokens;
    if (!sequences_.empty() && below(3) != 0) {
      const Tokens& other = sequences_.at(any_sequence()).tokens;
      tokens.assign(other.begin(), other.begin() + below(static_cast<int>(other.size()) + 1));
    }
    const int more = below(4 * config_.block_tokens + 2);
    for (int i = 0; i < more && tokens.size() < max_tokens(); ++i) {
      tokens.push_back(below(6) == 0 ? 1 : 0);
    }
    return tokens;
  }

  [[nodiscard]] std::size_t max_tokens() const {
    return 6 * static_cast<std::size_t>(config_.block_tokens) + 6;
  }

  void set_cached_values(ModelSequence& model, std::int32_t count) {
    model.values.clear();
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      model.values.push_back(next_value(model.value_before(i), model.tokens[i]));
    }
  }

  void open() {
    if (sequences_.size() >= 6) {
      return;
    }
    constexpr std::array<const char*, 4> kSalts = {"", "", "a", "bb"};
    ModelSequence model{
        .tokens = random_tokens(), .reuse = below(5) != 0, .salt = kSalts[random_() % 4]};
    const BehindWindow past = any_past();
    const PrefixMatch match = ledger_.cache().probe(model.tokens, model.salt, past);
    const std::int32_t available = ledger_.blocks_available();
    const SessionRef session = below(2) == 0 ? SessionRef() : any_session();
    const SeqId id = ledger_.sequences().open(model.tokens, model.reuse, session, model.salt, past);
    const std::int32_t expected = model.reuse ? match.tokens : 0;
    ASSERT_EQ(ledger_.sequences().num_computed(id), expected);
    ASSERT_EQ(expected % config_.block_tokens, 0);
    ASSERT_TRUE(expected == 0 || expected < static_cast<std::int32_t>(model.tokens.size()));
    if (model.reuse) {
      ASSERT_EQ(ledger_.sequences().num_blocks_held(id), match.blocks);
      ASSERT_EQ(available - ledger_.blocks_available(), match.evictable_blocks);
    }
    set_cached_values(model, expected);
    sequences_.emplace(id, std::move(model));
  }

  // KV of all tokens but the last comes from elsewhere, where the window has freed its beginning.
  void restore() {
    if (sequences_.size() >= 6) {
      return;
    }
    ModelSequence model{.tokens = random_tokens(), .salt = below(2) == 0 ? "" : "a"};
    const auto saved = std::max(0, static_cast<std::int32_t>(model.tokens.size()) - 1);
    const SeqId id = ledger_.sequences().open(model.tokens, true, {}, model.salt, any_past());
    ledger_.restored_kv().begin_behind_window(id, saved);
    const std::int32_t there = ledger_.sequences().num_computed(id);
    ASSERT_LE(there, saved);
    set_cached_values(model, there);
    sequences_.emplace(id, std::move(model));
    if (!make_room(id, saved - there)) {
      return close(id);
    }
    copy_blocks();
    fill_room(id, saved - there);
  }

  BehindWindow any_past() { return below(4) == 0 ? BehindWindow::kKeeps : BehindWindow::kFrees; }

  // Hints of sessions never change what a sequence shows. Some handles are stale.
  SessionRef& any_session() {
    SessionRef& session = sessions_said_[static_cast<std::size_t>(below(4))];
    if (session == SessionRef()) {
      session = ledger_.cache().open_session();
    }
    return session;
  }

  void hint() {
    now_ += std::chrono::seconds(below(10));
    ledger_.cache().set_time(now_);
    SessionRef& session = any_session();
    const int kind = below(20);
    if (kind >= 2) {
      Retention said{.priority = below(3) - 1};
      if (below(2) == 0) {
        said.expected_return = now_ + std::chrono::seconds(below(400) - 50);
      }
      if (below(2) == 0) {
        said.ttl = std::chrono::seconds(below(60));
      }
      return ledger_.cache().set_retention(session, said);
    }
    kind == 0 ? ledger_.cache().close_session(session) : ledger_.cache().forget_session(session);
    session = below(4) == 0 ? session : SessionRef();
  }

  // False when the ledger refused, which must change nothing.
  bool make_room(SeqId id, std::int32_t count) {
    const LedgerCounts before = ledger_.counts();
    BlockCounts needed;
    needed[kOwnFormat] = ledger_.sequences().needs(id, count).own;
    if (const auto open = config_.lent_open_format()) {
      needed[*open] = ledger_.sequences().needs(id, count).open;
    }
    const std::int64_t lacking = ledger_.bytes_lacking(needed);
    const std::int32_t held = ledger_.sequences().num_blocks_held(id);
    const Status status = ledger_.sequences().extend(id, count);
    if (!status.ok()) {
      ++num_refusals_;
      EXPECT_EQ(status.error().code, ErrorCode::kOutOfBlocks);
      EXPECT_GT(lacking, 0);
      EXPECT_EQ(before.blocks_free, ledger_.counts().blocks_free);
      EXPECT_EQ(before.blocks_cached, ledger_.counts().blocks_cached);
      EXPECT_EQ(before.evictions, ledger_.counts().evictions);
      EXPECT_EQ(held, ledger_.sequences().num_blocks_held(id));
      return false;
    }
    EXPECT_EQ(lacking, 0);
    EXPECT_EQ(ledger_.sequences().needs(id, count).own, 0);
    EXPECT_EQ(ledger_.sequences().needs(id, count).open, 0);
    sequences_.at(id).room = std::max(sequences_.at(id).room, count);
    return true;
  }

  // Orders several copies before any is done, while blocks of the earlier ones change hands.
  void extend_several() {
    for (int i = below(3); i >= 0 && !sequences_.empty(); --i) {
      (void)make_room(any_sequence(), below(config_.block_tokens + 2));
      const int then = below(4);
      then == 0 ? fork(any_sequence()) : then == 1 ? close(any_sequence()) : void();
    }
    copy_blocks();
  }

  void compute(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    const auto pending = static_cast<int>(model.tokens.size() - model.values.size());
    const std::int32_t count = below(std::min(pending, 4 * config_.block_tokens) + 1);
    if (make_room(id, count)) {
      copy_blocks();
      fill_room(id, count);
    }
  }

  void fill_room(SeqId id, std::int32_t count) {
    ModelSequence& model = sequences_.at(id);
    const RunView open = ledger_.sequences().runs(id).back();
    for (std::int32_t i = 0; i < count; ++i) {
      const std::size_t index = model.values.size();
      model.values.push_back(next_value(model.value_before(index), model.tokens[index]));
      if (!opens_as(open.format)) {
        std::ranges::fill(slot(open, open.num_tokens + i), model.values.back());
      }
    }
    if (opens_as(open.format)) {
      store_open(open, model.values, count);
    }
    ledger_.sequences().advance(id, count);
    model.room -= count;
  }

  // Writes rows into open blocks, and blocks that are full then from there into their stored form.
  // A block that is begun and filled at once has no open block.
  void store_open(const RunView& run, const std::vector<Value>& values, std::int32_t count) {
    const std::int32_t end = run.num_tokens + count;
    for (std::int32_t i = run.num_tokens; i < end; ++i) {
      const std::int32_t block = i / config_.block_tokens;
      if (const OpenBlock* open = open_block(run, block)) {
        std::ranges::fill(slot(*opens_as(run.format), open->block.id, i % config_.block_tokens),
                          values[static_cast<std::size_t>(i)]);
      } else {
        ASSERT_LE(run.num_tokens, block * config_.block_tokens) << "rows of it lie nowhere";
        ASSERT_LE((block + 1) * config_.block_tokens, end);
      }
    }
    for (std::int32_t block = run.num_tokens / config_.block_tokens;
         (block + 1) * config_.block_tokens <= end; ++block) {
      seal_block(run, block, values);
    }
  }

  void seal_block(const RunView& run, std::int32_t block, const std::vector<Value>& values) {
    const OpenBlock* open = open_block(run, block);
    for (std::int32_t i = 0; i < config_.block_tokens; ++i) {
      const auto token = static_cast<std::size_t>(block * config_.block_tokens + i);
      const Value value =
          open == nullptr ? values[token] : slot(*opens_as(run.format), open->block.id, i).front();
      ASSERT_EQ(value, values[token]) << "an open block does not hold its rows";
      std::ranges::fill(slot(run.format, run.blocks[static_cast<std::size_t>(block)], i), value);
    }
  }

  [[nodiscard]] std::optional<FormatId> opens_as(FormatId format) const {
    return config_.formats[format.value].open;
  }

  static const OpenBlock* open_block(const RunView& run, std::int32_t index) {
    const auto found = std::ranges::find(run.open_blocks, index, &OpenBlock::index);
    return found == run.open_blocks.end() ? nullptr : &*found;
  }

  void copy_blocks() {
    for (const BlockCopy& copy : ledger_.take_copies()) {
      ++num_copies_;
      for (std::int32_t i = 0; i < copy.tokens; ++i) {
        std::ranges::copy(slot(copy.format, copy.from, i), slot(copy.format, copy.to, i).begin());
      }
    }
  }

  void append(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    for (int i = below(4); i > 0 && model.tokens.size() < max_tokens(); --i) {
      model.tokens.push_back(below(6) == 0 ? 1 : 0);
      ledger_.sequences().append(id, model.tokens.back());
    }
  }

  void fork(SeqId id) {
    if (sequences_.size() >= 6) {
      return;
    }
    ModelSequence copy = sequences_.at(id);
    copy.room = 0;
    sequences_.emplace(ledger_.sequences().fork(id), std::move(copy));
  }

  void rollback(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    const auto size = static_cast<int>(model.tokens.size());
    const int length = below(4) == 0 ? below(size + 3) - 1 : size - below(std::min(size, 4) + 1);
    const Status status = ledger_.sequences().rollback(id, length);
    if (status.ok()) {
      model.tokens.resize(static_cast<std::size_t>(length));
      const auto kept = static_cast<std::size_t>(ledger_.sequences().num_computed(id));
      const std::size_t most = std::min(model.values.size(), model.tokens.size());
      num_cut_ += kept < most ? 1 : 0;
      ASSERT_EQ(kept, kept < most ? most / block_size() * block_size() : most);
      model.values.resize(kept);
      model.room = 0;
      return;
    }
    ASSERT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(length < 0 || length > size || config_.window_tokens > 0);
  }

  void close(SeqId id) {
    ledger_.sequences().close(id);
    ledger_.sequences().close(id);
    ASSERT_FALSE(ledger_.sequences().contains(id));
    sequences_.erase(id);
  }

  void drop_kv(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    ledger_.preemption().drop_kv(id);
    model.values.clear();
    model.room = 0;
  }

  void reattach(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    const bool can = model.values.empty() && model.reuse && model.plain();
    const std::int32_t expected = can ? ledger_.cache().match(model.tokens, model.salt) : 0;
    ASSERT_EQ(ledger_.preemption().reattach(id), expected);
    if (can) {
      set_cached_values(model, expected);
      model.room = expected > 0 ? 0 : model.room;
    }
  }

  void seal(SeqId id) {
    const ModelSequence& model = sequences_.at(id);
    const Result<SegmentId> segment = ledger_.segments().seal(id);
    if (!segment.ok()) {
      ASSERT_TRUE(model.values.empty() || config_.window_tokens > 0);
      return;
    }
    segments_[*segment] = model.values;
  }

  [[nodiscard]] std::size_t block_size() const {
    return static_cast<std::size_t>(config_.block_tokens);
  }

  FormatId any_format() {
    return {static_cast<std::uint8_t>(below(static_cast<int>(config_.formats.size())))};
  }

  // KV of a run of its own, in any format.
  void reserve() {
    if (segments_.size() >= 8) {
      return drop_segment();
    }
    const FormatId format = any_format();
    const Tokens tokens(static_cast<std::size_t>(1 + below(4 * config_.block_tokens)), 1);
    const BlockCounts needed = config_.blocks_for(std::ssize(tokens), format);
    const LedgerCounts before = ledger_.counts();
    const std::int64_t lacking = ledger_.bytes_lacking(needed);
    const bool alone = needed[format] * config_.block_bytes(format) == config_.bytes_of(needed);
    ASSERT_TRUE(!alone || (lacking > 0) == (needed[format] > ledger_.blocks_available(format)));
    const Result<SegmentId> segment = ledger_.segments().reserve(tokens, 0, format);
    ASSERT_EQ(segment.ok(), lacking == 0);
    if (!segment.ok()) {
      ++num_reserve_refusals_;
      ASSERT_EQ(segment.error().code, ErrorCode::kOutOfBlocks);
      ASSERT_EQ(segment.error().needed_bytes - segment.error().free_bytes, lacking);
      ASSERT_EQ(ledger_.counts().bytes_free, before.bytes_free);
      ASSERT_EQ(ledger_.counts().evictions, before.evictions);
      return;
    }
    num_reserved_ += format == kOwnFormat ? 0 : 1;
    ASSERT_EQ(ledger_.counts().bytes_in_use - before.bytes_in_use, config_.bytes_of(needed));
    most_lent_ = std::max(most_lent_, ledger_.counts().bytes_lent);
    copy_blocks();
    std::vector<Value>& values = segments_[*segment];
    Value value = random_();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      values.push_back(value = next_value(value, tokens[i]));
      write(*ledger_.segments().find(*segment), static_cast<std::int32_t>(i), value);
    }
  }

  // KV of a run of its own that is computed in any format, piece by piece.
  void compute_segment() {
    if (segments_.size() >= 8 || sequences_.size() >= 6) {
      return drop_segment();
    }
    const FormatId format = any_format();
    ModelSequence model{.reuse = false, .start = random_() | 2};
    model.tokens.assign(static_cast<std::size_t>(1 + below(4 * config_.block_tokens)), 1);
    const auto opened = ledger_.segments().compose_in(format, {}, {.tokens = model.tokens});
    if (!opened.ok()) {
      ASSERT_EQ(opened.error().code, ErrorCode::kOutOfBlocks);
      return;
    }
    const SeqId id = *opened;
    sequences_.emplace(id, std::move(model));
    copy_blocks();
    const ModelSequence& now = sequences_.at(id);
    for (int turn = 0; turn < 20 && now.values.size() < now.tokens.size(); ++turn) {
      if (below(8) == 0) {
        drop_kv(id);
      }
      const auto pending = static_cast<int>(now.tokens.size() - now.values.size());
      const std::int32_t count = 1 + below(pending);
      if (make_room(id, count)) {
        copy_blocks();
        fill_room(id, count);
        num_computed_in_ += format == kOwnFormat ? 0 : 1;
      }
    }
    if (!now.values.empty()) {
      seal(id);
    }
    close(id);
  }

  // Some blocks of a segment become a segment.
  void slice() {
    if (segments_.empty() || segments_.size() >= 8) {
      return;
    }
    const auto base = std::next(segments_.begin(), below(static_cast<int>(segments_.size())));
    const auto tokens = static_cast<std::int32_t>(base->second.size());
    const std::int32_t first =
        below((tokens + config_.block_tokens - 1) / config_.block_tokens) * config_.block_tokens;
    const std::int32_t blocks = 1 + below((tokens - first) / config_.block_tokens + 1);
    const std::int32_t count = std::min(blocks * config_.block_tokens, tokens - first);
    const Result<SegmentId> part = ledger_.segments().slice(base->first, first, count);
    ASSERT_TRUE(part.ok()) << part.error().message;
    segments_[*part] = {base->second.begin() + first, base->second.begin() + first + count};
  }

  // Some tokens of a segment are computed once more.
  void derive() {
    if (segments_.empty() || segments_.size() >= 8) {
      return;
    }
    const auto base = std::next(segments_.begin(), below(static_cast<int>(segments_.size())));
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < std::ssize(base->second); ++i) {
      if (below(8) == 0) {
        tokens.push_back(i);
      }
    }
    const Result<SegmentId> derived = ledger_.segments().derive(base->first, tokens);
    if (!derived.ok()) {
      ASSERT_EQ(derived.error().code, ErrorCode::kOutOfBlocks);
      return;
    }
    copy_blocks();
    std::vector<Value> values = base->second;
    for (const std::int32_t token : tokens) {
      values[static_cast<std::size_t>(token)] = random_();
      write(*ledger_.segments().find(*derived), token, values[static_cast<std::size_t>(token)]);
    }
    segments_[*derived] = std::move(values);
  }

  void write(const Segment& segment, std::int32_t token, Value value) {
    const BlockRef block = segment.blocks().ref(token / config_.block_tokens);
    std::ranges::fill(slot(block.format(), block.id, token % config_.block_tokens), value);
  }

  void compose() {
    if (segments_.empty() || sequences_.size() >= 6) {
      return;
    }
    ModelSequence model{.reuse = false, .start = random_() | 2};
    std::vector<SegmentUse> uses;
    for (int i = 1 + below(2); i > 0; --i) {
      const auto segment = std::next(segments_.begin(), below(static_cast<int>(segments_.size())));
      uses.push_back({.segment = segment->first, .position = below(50)});
      model.sealed.push_back(segment->second);
    }
    model.tokens.assign(static_cast<std::size_t>(below(4)), 1);
    const Result<SeqId> id = ledger_.segments().compose(uses, {.tokens = model.tokens});
    ASSERT_TRUE(id.ok());
    sequences_.emplace(*id, std::move(model));
  }

  void drop_segment() {
    if (!segments_.empty()) {
      const auto dropped = std::next(segments_.begin(), below(static_cast<int>(segments_.size())));
      ASSERT_TRUE(below(2) == 0 ? ledger_.segments().drop(dropped->first)
                                : ledger_.segments().forget(dropped->first));
      segments_.erase(dropped);
    }
  }

  // The scheduler relies on this when it preempts.
  void drop_several() {
    std::vector<SeqId> ids;
    for (const auto& [id, model] : sequences_) {
      if (below(2) == 0) {
        ids.push_back(id);
      }
    }
    const std::int32_t expected =
        ledger_.blocks_available() + ledger_.preemption().blocks_freed_by_drop(ids);
    for (const SeqId id : ids) {
      drop_kv(id);
    }
    // Slabs of open blocks may come back besides.
    ASSERT_GE(ledger_.blocks_available(), expected);
    ASSERT_TRUE(ledger_.blocks_available() == expected || config_.open_format());
  }

  void clear_cache() {
    const LedgerCounts before = ledger_.counts();
    ASSERT_EQ(ledger_.cache().clear(), before.blocks_cached);
    ASSERT_EQ(ledger_.counts().bytes_in_use, before.bytes_in_use);
  }

  // The bytes of one slot of a block. Any slot of any block has some.
  [[nodiscard]] std::span<Value> slot(FormatId format, BlockId block, std::int32_t index) {
    const std::int64_t bytes = config_.block_bytes(format);
    const std::int64_t first = bytes * index / config_.block_tokens;
    const std::int64_t end = bytes * (index + 1) / config_.block_tokens;
    return std::span(paged_pool_)
        .subspan(static_cast<std::size_t>(block.value * bytes + first),
                 static_cast<std::size_t>(end - first));
  }

  [[nodiscard]] std::span<Value> slot(const RunView& run, std::int32_t index) {
    const auto block = static_cast<std::size_t>(index / config_.block_tokens);
    if (const OpenBlock* open = open_block(run, static_cast<std::int32_t>(block))) {
      return slot(open->block.format(), open->block.id, index % config_.block_tokens);
    }
    return slot(block + 1 == run.blocks.size() ? run.last_format : run.format, run.blocks[block],
                index % config_.block_tokens);
  }

  void verify_sequence(SeqId id, const ModelSequence& model) {
    ASSERT_TRUE(std::ranges::equal(ledger_.sequences().tokens(id), model.tokens));
    ASSERT_EQ(static_cast<std::size_t>(ledger_.sequences().num_computed(id)), model.values.size());
    const std::vector<RunView> runs = ledger_.sequences().runs(id);
    ASSERT_EQ(runs.size(), model.sealed.size() + 1);
    for (std::size_t i = 0; i < model.sealed.size(); ++i) {
      verify_run(runs[i], model.sealed[i], 0);
    }
    const bool frees = ledger_.sequences().use(id).past == BehindWindow::kFrees;
    const std::int32_t window = frees ? config_.window_tokens : 0;
    verify_run(runs.back(), model.values, window > 0 ? runs.back().num_tokens - window + 1 : 0);
  }

  // Blocks before token `first_seen` may be gone.
  void verify_run(const RunView& run, const std::vector<Value>& values, std::int32_t first_seen) {
    ASSERT_EQ(static_cast<std::size_t>(run.num_tokens), values.size());
    for (std::int32_t i = 0; i < run.num_tokens; ++i) {
      if (open_block(run, i / config_.block_tokens) == nullptr &&
          run.blocks[static_cast<std::size_t>(i / config_.block_tokens)].value < 0) {
        ASSERT_LT(i, first_seen);
        ASSERT_LE((i / config_.block_tokens + 1) * config_.block_tokens, first_seen);
        continue;
      }
      for (const Value value : slot(run, i)) {
        ASSERT_EQ(value, values[static_cast<std::size_t>(i)]) << "token " << i;
      }
    }
  }

  LedgerConfig config_;
  Ledger ledger_;
  std::vector<Value> paged_pool_;  // [bytes]
  std::map<SeqId, ModelSequence> sequences_;
  std::map<SegmentId, std::vector<Value>> segments_;  // KV
  std::array<SessionRef, 4> sessions_said_;
  TimePoint now_;
  std::mt19937 random_;
  std::int64_t num_copies_ = 0;
  std::int64_t num_refusals_ = 0;
  std::int64_t num_reserved_ = 0;  // segments in other formats than the pool's own
  std::int64_t num_reserve_refusals_ = 0;
  std::int64_t num_computed_in_ = 0;  // pieces of runs in other formats
  std::int64_t num_cut_ = 0;          // rollbacks into a block that is stored
  std::int64_t most_lent_ = 0;        // bytes
};

TEST(LedgerStress, RandomOperationsEqualACopyEverythingModel) {
  constexpr int kConfigs = 33 * 3;
  const int steps = base::test_length(1'000'000, 100'000);
  std::int64_t reused = 0;
  std::int64_t evictions = 0;
  std::int64_t evictions_said = 0;
  std::int64_t copies = 0;
  std::int64_t moved = 0;
  std::int64_t refusals = 0;
  for (std::int32_t block_tokens = 1; block_tokens <= 33; ++block_tokens) {
    for (const int variant : {0, 1, 2}) {
      const LedgerConfig config = {.num_blocks = 6 + block_tokens % 13,
                                   .block_tokens = block_tokens,
                                   .window_tokens = variant == 1 ? 1 + 2 * block_tokens % 40 : 0,
                                   .extent_blocks = 1 + block_tokens % 5,
                                   .prefix_cache = variant != 2,
                                   .formats = {{.block_bytes = block_tokens}}};
      LedgerStress stress(config, static_cast<std::uint32_t>(block_tokens * 10 + variant));
      for (int i = 0; i < steps / kConfigs + 1; ++i) {
        stress.step();
        ASSERT_FALSE(testing::Test::HasFailure())
            << "block_tokens " << block_tokens << " variant " << variant << " step " << i;
        stress.verify();
        ASSERT_FALSE(testing::Test::HasFailure())
            << "block_tokens " << block_tokens << " variant " << variant << " step " << i;
      }
      reused += stress.reused();
      evictions += stress.counts().evictions;
      evictions_said += stress.counts().evictions_closed + stress.counts().evictions_expired +
                        stress.counts().evictions_later;
      copies += stress.copies();
      moved += stress.counts().blocks_moved;
      refusals += stress.refusals();
      stress.close_all();
    }
  }
  // The walk reached what it is for.
  EXPECT_GT(reused, steps / 10);
  EXPECT_GT(evictions, steps / 100);
  EXPECT_GT(evictions_said, steps / 2000);
  EXPECT_GT(copies, steps / 100);
  EXPECT_GT(moved, steps / 1000);
  EXPECT_GT(refusals, steps / 100);
}

// Sizes that divide and sizes that do not. Some formats have another one for a last block that is
// not full: the pool's own, or a third.
std::vector<BlockFormat> formats_of(int variant) {
  constexpr FormatId kSecond{1};
  switch (variant % 4) {
    case 0:
      return {{.block_bytes = 256}, {.block_bytes = 130}, {.block_bytes = 80}};
    case 1:
      return {{.block_bytes = 256}, {.block_bytes = 128}, {.block_bytes = 64, .open = kOwnFormat}};
    case 2:
      return {{.block_bytes = 130}, {.block_bytes = 256}, {.block_bytes = 80, .open = kSecond}};
    default:
      return {{.block_bytes = 80}, {.block_bytes = 130}, {.block_bytes = 256}};
  }
}

TEST(LedgerStress, MixesOfFormatsEqualACopyEverythingModel) {
  constexpr int kConfigs = 48;
  const int steps = base::test_length(1'000'000, 60'000);
  std::int64_t reserved = 0;
  std::int64_t computed = 0;
  std::int64_t refusals = 0;
  std::int64_t moved = 0;
  std::int64_t lent_all = 0;
  for (int variant = 0; variant < kConfigs; ++variant) {
    const std::int32_t block_tokens = 1 + variant * 7 % 33;
    const LedgerConfig config = {.num_blocks = 20 + variant % 13,
                                 .block_tokens = block_tokens,
                                 .window_tokens = variant % 5 == 4 ? 1 + 2 * block_tokens % 40 : 0,
                                 .extent_blocks = 1 + variant % 3,
                                 .prefix_cache = variant % 7 != 6,
                                 .formats = formats_of(variant),
                                 .slab_blocks = 7 + variant / 4 % 3};
    ASSERT_TRUE(config.validate().ok()) << config.validate().error().message;
    LedgerStress stress(config, static_cast<std::uint32_t>(variant));
    for (int i = 0; i < steps / kConfigs + 1; ++i) {
      i % 8 < 5 ? stress.step() : stress.segment_step();
      ASSERT_FALSE(testing::Test::HasFailure()) << "variant " << variant << " step " << i;
      stress.verify();
      ASSERT_FALSE(testing::Test::HasFailure()) << "variant " << variant << " step " << i;
    }
    reserved += stress.reserved();
    computed += stress.computed_in();
    refusals += stress.reserve_refusals();
    moved += stress.counts().blocks_moved;
    lent_all += stress.most_lent() == config.budget_bytes() ? 1 : 0;
    stress.close_all();
  }
  EXPECT_GT(reserved, steps / 80);
  EXPECT_GT(computed, steps / 200);
  EXPECT_GT(refusals, steps / 100);
  EXPECT_GT(moved, steps / 300);
  EXPECT_GT(lent_all, 1) << "walks in which no block of the pool's own format was left";
}

TEST(LedgerStress, PoolsThatAreWrittenBlockByBlockEqualACopyEverythingModel) {
  constexpr int kConfigs = 36;
  const int steps = base::test_length(1'000'000, 60'000);
  std::int64_t cut = 0;
  std::int64_t reused = 0;
  for (int variant = 0; variant < kConfigs; ++variant) {
    const std::int32_t block_tokens = 1 + variant * 7 % 33;
    LedgerConfig config = {
        .num_blocks = 24 + variant % 13,
        .block_tokens = block_tokens,
        .window_tokens = variant % 5 == 4 ? 1 + 2 * block_tokens % 40 : 0,
        .extent_blocks = 1 + variant % 3,
        .prefix_cache = variant % 7 != 6,
        .formats = {{.block_bytes = block_tokens + variant % 4, .open = FormatId{1}},
                    {.block_bytes = (2 + variant % 3) * block_tokens + variant % 5}},
        .slab_blocks = 8 + variant / 4 % 3,
        .standing_open_blocks = variant % 2 == 0 ? 2 : 0};
    if (variant % 3 ==
        2) {  // chunks of a wider format, and of one that opens as the pool's own does
      config.formats.push_back({.block_bytes = 2 * block_tokens + 3});
      config.formats.push_back({.block_bytes = block_tokens + 1, .open = FormatId{1}});
    }
    ASSERT_TRUE(config.validate().ok()) << config.validate().error().message;
    LedgerStress stress(config, static_cast<std::uint32_t>(variant));
    for (int i = 0; i < steps / kConfigs + 1; ++i) {
      i % 8 < 7 ? stress.step() : stress.segment_step();
      ASSERT_FALSE(testing::Test::HasFailure()) << "variant " << variant << " step " << i;
      stress.verify();
      ASSERT_FALSE(testing::Test::HasFailure()) << "variant " << variant << " step " << i;
    }
    cut += stress.cut();
    reused += stress.reused();
    stress.close_all();
  }
  EXPECT_GT(cut, steps / 1000);
  EXPECT_GT(reused, steps / 20);
}

}  // namespace
}  // namespace quire::kv
