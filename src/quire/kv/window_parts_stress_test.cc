// Random operations on sequences that free KV behind a window of some layers, against a model that
// copies everything. Each slot of a block has a value for its full part and one for its window
// part. Lost slots get other values at once. After each step every slot that a
// sequence's next row reads must hold its value, and every invariant must hold. Blocks are written
// row by row, or whole from open blocks when they are full.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/test_length.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/ledger_stress_model.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using namespace stress;  // NOLINT(google-build-using-namespace): the model of this file

class WindowStress {
 public:
  WindowStress(const LedgerConfig& config, std::uint32_t seed)
      : config_(config),
        ledger_(config),
        full_(static_cast<std::size_t>(config.num_ids() * config.block_tokens)),
        window_(full_.size()),
        open_(2 * full_.size()),
        random_(seed) {}

  void step() {
    const int kind = below(100);
    if (sequences_.empty() || kind < 15) {
      return open();
    }
    const SeqId id = any_sequence();
    kind < 55   ? compute(id)
    : kind < 63 ? append(id)
    : kind < 69 ? fork(id)
    : kind < 79 ? rollback(id)
    : kind < 89 ? close(id)
    : kind < 93 ? drop_kv()
    : kind < 94 ? reattach(id)
    : kind < 95 ? exchange(id)
    : kind < 96 ? reserve(id)
    : kind < 97 ? swap(id)
    : kind < 98 ? seal(id)
    : kind < 99 ? change(id)
                : (void)ledger_.cache().clear();
  }

  void verify() {
    ruin_lost();
    const Status status = ledger_.check();
    ASSERT_TRUE(status.ok()) << status.error().message;
    for (const auto& [id, model] : sequences_) {
      verify_sequence(id, model);
    }
  }

  void close_all() {
    while (!sequences_.empty()) {
      close(sequences_.begin()->first);
    }
    for (const SegmentId segment : segments_) {
      ASSERT_TRUE(ledger_.segments().drop(segment));
    }
    (void)ledger_.cache().clear();
    ASSERT_EQ(ledger_.counts().bytes_free, config_.budget_bytes());
    ASSERT_TRUE(ledger_.check().ok());
  }

  [[nodiscard]] LedgerCounts counts() const { return ledger_.counts(); }
  [[nodiscard]] std::int64_t handed_over() const { return handed_over_; }
  [[nodiscard]] std::int64_t owed() const { return owed_; }
  [[nodiscard]] std::int64_t refused() const { return refused_; }
  [[nodiscard]] std::int64_t changed() const { return changed_; }
  [[nodiscard]] std::int64_t reserved() const { return reserved_; }
  [[nodiscard]] std::int64_t exchanged() const { return exchanged_; }
  [[nodiscard]] std::int64_t swapped() const { return swapped_; }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint32_t>(bound)); }

  SeqId any_sequence() {
    return std::next(sequences_.begin(), below(static_cast<int>(sequences_.size())))->first;
  }

  [[nodiscard]] std::size_t slot(std::span<const BlockId> blocks, std::size_t token) const {
    const auto size = static_cast<std::size_t>(config_.block_tokens);
    return static_cast<std::size_t>(blocks[token / size].value) * size + token % size;
  }

  Tokens random_tokens() {
    Tokens tokens;
    if (!histories_.empty() && below(4) != 0) {
      const Tokens& other = histories_[random_() % histories_.size()];
      tokens.assign(other.begin(), other.begin() + below(static_cast<int>(other.size()) + 1));
    }
    for (int more = 1 + below(8 * config_.block_tokens); more > 0; --more) {
      tokens.push_back(below(8) == 0 ? 1 : 0);
    }
    tokens.resize(std::min<std::size_t>(tokens.size(), 120));
    histories_.push_back(tokens);
    histories_.erase(histories_.begin(),
                     histories_.end() - std::min<long>(20, std::ssize(histories_)));
    return tokens;
  }

  void know(ModelSequence& model, std::int32_t count) {
    model.values.resize(std::min(model.values.size(), static_cast<std::size_t>(count)));
    for (std::size_t i = model.values.size(); i < static_cast<std::size_t>(count); ++i) {
      model.values.push_back(next_value(model.value_before(i), model.tokens[i]));
    }
  }

  void open() {
    if (sequences_.size() >= 5) {
      return;
    }
    ModelSequence model{.tokens = random_tokens(), .reuse = below(6) != 0};
    const BehindWindow past = below(5) == 0 ? BehindWindow::kKeeps : BehindWindow::kFrees;
    const PrefixMatch match = ledger_.cache().probe(model.tokens, {}, past);
    const std::int32_t available = ledger_.blocks_available();
    const SeqId id = ledger_.sequences().open(model.tokens, model.reuse, {}, {}, past);
    know(model, ledger_.sequences().num_computed(id));
    ASSERT_EQ(std::ssize(model.values), model.reuse ? match.tokens : 0);
    if (model.reuse) {
      ASSERT_GE(match.evictable_blocks, available - ledger_.blocks_available());
    }
    if (below(2) == 0) {
      ledger_.points().mark(id, {}, 1 + below(static_cast<int>(model.tokens.size())));
    }
    sequences_.emplace(id, std::move(model));
  }

  void compute(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    const auto pending = static_cast<int>(model.tokens.size() - model.values.size());
    const std::int32_t count = below(std::min(pending, 6 * config_.block_tokens) + 1);
    const std::int32_t needed = ledger_.sequences().needs(id, count).own;
    const bool fits = needed <= ledger_.blocks_available();
    const LedgerCounts before = ledger_.counts();
    const bool made = ledger_.sequences().extend(id, count).ok();
    ASSERT_TRUE(made == fits || (fits && is_coded()));  // an open block may be lacking
    if (!made) {
      ++refused_;
      ASSERT_EQ(before.bytes_free, ledger_.counts().bytes_free);
      return;
    }
    copy_blocks();
    ruin_lost();
    const RunView open = ledger_.sequences().runs(id).back();
    for (std::int32_t i = 0; i < count; ++i) {
      const std::size_t token = model.values.size();
      know(model, static_cast<std::int32_t>(token) + 1);
      if (Value* row = open_row(open, token)) {
        *row = model.values.back();
      } else if (!is_coded()) {
        full_[slot(open.blocks, token)] = window_[slot(open.blocks, token)] = model.values.back();
      }
      store_full_block(open, model);
    }
    ledger_.sequences().advance(id, count);
    copy_blocks();
  }

  [[nodiscard]] bool is_coded() const { return config_.open_format().has_value(); }

  // Returns the slot of a token in an open block; nullptr if it lies in a stored one.
  [[nodiscard]] Value* open_row(const RunView& run, std::size_t token) {
    const auto size = static_cast<std::size_t>(config_.block_tokens);
    const auto found = std::ranges::find(run.open_blocks, static_cast<std::int32_t>(token / size),
                                         &OpenBlock::index);
    return found == run.open_blocks.end()
               ? nullptr
               : &open_[static_cast<std::size_t>(found->block.id.value) * size + token % size];
  }

  // Stores the block that the last token fills, where blocks are written whole.
  void store_full_block(const RunView& run, const ModelSequence& model) {
    const auto size = static_cast<std::size_t>(config_.block_tokens);
    const std::size_t end = model.values.size();
    for (std::size_t i = end - size; is_coded() && end % size == 0 && i < end; ++i) {
      const Value* row = open_row(run, i);
      ASSERT_TRUE(row == nullptr || *row == model.values[i]) << "an open block lost its rows";
      full_[slot(run.blocks, i)] = window_[slot(run.blocks, i)] = model.values[i];
    }
  }

  void copy_blocks() {
    const auto size = static_cast<std::ptrdiff_t>(config_.block_tokens);
    for (const BlockCopy& copy : ledger_.take_copies()) {
      using Parts = BlockCopy::Parts;
      handed_over_ += copy.parts == Parts::kWindow ? 1 : 0;
      const auto move = [&](std::vector<Value>& part) {
        std::copy_n(part.begin() + copy.from.value * size, copy.tokens,
                    part.begin() + copy.to.value * size);
      };
      if (copy.format != kOwnFormat) {
        move(open_);
        continue;
      }
      copy.parts == Parts::kWindow ? void() : move(full_);
      copy.parts == Parts::kFull ? void() : move(window_);
    }
  }

  void ruin(std::vector<Value>& part, BlockId block) {
    const auto size = static_cast<std::ptrdiff_t>(config_.block_tokens);
    std::fill_n(part.begin() + block.value * size, size, Value{0});
  }

  void ruin_lost() {
    copy_blocks();
    const LostBytes::Blocks lost = ledger_.lost().take();
    for (const BlockId block : lost.windows) {
      ruin(window_, block);
    }
    for (const BlockId block : lost.all) {
      ruin(full_, block);
    }
  }

  void append(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    model.tokens.push_back(below(8) == 0 ? 1 : 0);
    ledger_.sequences().append(id, model.tokens.back());
  }

  void fork(SeqId id) {
    if (sequences_.size() < 5) {
      sequences_.emplace(ledger_.sequences().fork(id), ModelSequence(sequences_.at(id)));
    }
  }

  void rollback(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    const int length = below(static_cast<int>(model.tokens.size()) + 1);
    ASSERT_TRUE(ledger_.sequences().rollback(id, length).ok());
    model.tokens.resize(static_cast<std::size_t>(length));
    const std::size_t most = std::min(model.values.size(), model.tokens.size());
    know(model, ledger_.sequences().num_computed(id));
    ASSERT_LE(model.values.size(), most);
    owed_ += static_cast<std::int64_t>(most - model.values.size());
    ASSERT_TRUE(std::ranges::equal(ledger_.sequences().tokens(id), model.tokens));
  }

  void close(SeqId id) {
    ledger_.sequences().close(id);
    sequences_.erase(id);
  }

  void drop_kv() {
    std::vector<SeqId> ids;
    for (const auto& [id, model] : sequences_) {
      if (below(2) == 0) {
        ids.push_back(id);
      }
    }
    const std::int32_t more = ledger_.preemption().blocks_freed_by_drop(ids);
    const std::int32_t before = ledger_.blocks_available();
    for (const SeqId id : ids) {
      ledger_.preemption().drop_kv(id);
      sequences_.at(id).values.clear();
    }
    ASSERT_TRUE(ledger_.blocks_available() - before == more || is_coded());  // or slabs come back
  }

  void reattach(SeqId id) {
    ModelSequence& model = sequences_.at(id);
    if (model.values.empty()) {
      know(model, ledger_.preemption().reattach(id));
    }
  }

  // Drops the KV that a sequence holds and brings it back from a copy, as a swap does. The copy has
  // no window part that the sequence had let go.
  void swap(SeqId id) {
    const RunView held = ledger_.sequences().runs(id).back();
    const std::int32_t tokens = held.num_tokens, without_part = held.without_part;
    std::vector<Value> full, window;
    for (std::size_t i = 0; i < static_cast<std::size_t>(tokens); ++i) {
      const Value* row = open_row(held, i);
      full.push_back(row != nullptr ? *row : full_[slot(held.blocks, i)]);
      window.push_back(row != nullptr ? *row : window_[slot(held.blocks, i)]);
    }
    ledger_.preemption().drop_kv(id);
    sequences_.at(id).values.clear();
    compute(any_sequence());
    if (sequences_.at(id).values.empty()) {
      know(sequences_.at(id), ledger_.preemption().reattach(id));
    }
    const std::int32_t first = ledger_.sequences().num_computed(id);
    if (first >= tokens || first % config_.block_tokens != 0 ||
        (without_part > 0 &&
         !ledger_.restored_kv().begin_without_parts(id, tokens, without_part).ok())) {
      return;
    }
    const std::int32_t begun = ledger_.sequences().num_computed(id);
    if (!ledger_.sequences().extend(id, tokens - begun).ok()) {
      ledger_.preemption().drop_kv(id);
      sequences_.at(id).values.clear();
      return;
    }
    ASSERT_TRUE(ledger_.check().ok()) << ledger_.check().error().message;
    copy_blocks();
    ruin_lost();
    const RunView run = ledger_.sequences().runs(id).back();
    for (std::int32_t i = first; i < tokens; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (Value* row = open_row(run, at)) {
        *row = full[at];
        continue;
      }
      full_[slot(run.blocks, at)] = full[at];
      if (i >= without_part * config_.block_tokens) {
        window_[slot(run.blocks, at)] = window[at];
      }
    }
    ledger_.sequences().advance(id, tokens - begun);
    ledger_.restored_kv().publish(id);
    copy_blocks();
    know(sequences_.at(id), tokens);
    swapped_ += without_part > 0 ? 1 : 0;
  }

  void change(SeqId id) {
    const BehindWindow past = below(2) == 0 ? BehindWindow::kKeeps : BehindWindow::kFrees;
    changed_ += ledger_.sequences().set_behind_window(id, past) ? 1 : 0;
  }

  void reserve(SeqId id) {
    reserved_ += ledger_.sequences().reserve(id, 1 + below(120)).ok() ? 1 : 0;
  }

  // Gives a sequence the blocks of a fork with room, as a right branch of a guess does.
  void exchange(SeqId id) {
    const SeqId copy = ledger_.sequences().fork(id);
    const std::int32_t count = below(2 * config_.block_tokens);
    if (ledger_.sequences().extend(copy, count).ok()) {
      copy_blocks();
      ruin_lost();
      ledger_.sequences().exchange_kv(id, copy);
      ++exchanged_;
    }
    ledger_.sequences().close(copy);
  }

  void seal(SeqId id) {
    const auto segment = ledger_.segments().seal(id);
    if (segment.ok()) {
      segments_.push_back(*segment);
    }
    if (segments_.size() > 2) {
      ASSERT_TRUE(ledger_.segments().drop(segments_.front()));
      segments_.erase(segments_.begin());
    }
  }

  void verify_sequence(SeqId id, const ModelSequence& model) {
    const RunView run = ledger_.sequences().runs(id).back();
    ASSERT_EQ(run.num_tokens, std::ssize(model.values));
    const bool keeps = ledger_.sequences().use(id).past == BehindWindow::kKeeps;
    const std::int32_t first_seen = keeps ? 0 : run.num_tokens - config_.window_group.tokens + 1;
    for (std::int32_t token = 0; token < run.num_tokens; ++token) {
      const auto at = static_cast<std::size_t>(token);
      if (const Value* row = open_row(run, at)) {
        ASSERT_EQ(*row, model.values[at]) << "token " << token;
        continue;
      }
      ASSERT_EQ(full_[slot(run.blocks, at)], model.values[at]) << "token " << token;
      if (token >= first_seen) {
        ASSERT_EQ(window_[slot(run.blocks, at)], model.values[at]) << "token " << token;
      }
    }
  }

  LedgerConfig config_;
  Ledger ledger_;
  std::vector<Value> full_;    // [ids, block_tokens]
  std::vector<Value> window_;  // the same
  std::vector<Value> open_;    // of open blocks
  std::mt19937 random_;
  std::map<SeqId, ModelSequence> sequences_;
  std::vector<Tokens> histories_;
  std::vector<SegmentId> segments_;
  std::int64_t handed_over_ = 0;
  std::int64_t owed_ = 0;
  std::int64_t refused_ = 0;
  std::int64_t changed_ = 0;
  std::int64_t reserved_ = 0;
  std::int64_t exchanged_ = 0;
  std::int64_t swapped_ = 0;
};

// The window, and whether blocks are written whole.
class WindowPartsStress : public testing::TestWithParam<std::tuple<std::int32_t, bool>> {};

TEST_P(WindowPartsStress, KeepsWhatEachNextRowReads) {
  const auto [window, is_coded] = GetParam();
  std::vector<BlockFormat> formats = {{.block_bytes = 100}};
  if (is_coded) {
    formats = {{.block_bytes = 100, .open = FormatId{1}}, {.block_bytes = 130}};
  }
  LedgerCounts counts;
  std::int64_t handed_over = 0, owed = 0, refused = 0, changed = 0;
  std::int64_t reserved = 0, exchanged = 0, swapped = 0;
  for (std::uint32_t seed = 0; seed < base::test_length(40U, 8U); ++seed) {
    WindowStress stress({.num_blocks = is_coded ? 22 : 18,
                         .block_tokens = 4,
                         .window_group = {.tokens = window, .block_bytes = 70},
                         .extent_blocks = seed % 2 == 0 ? 1 : 3,
                         .formats = formats,
                         .slab_blocks = 3,
                         .standing_open_blocks = is_coded && seed % 4 < 2 ? 3 : 0},
                        seed);
    for (int i = 0; i < 500 && !testing::Test::HasFailure(); ++i) {
      stress.step();
      stress.verify();
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
    counts.tokens_reused += stress.counts().tokens_reused;
    counts.tokens_replayed += stress.counts().tokens_replayed;
    counts.evictions += stress.counts().evictions;
    handed_over += stress.handed_over();
    owed += stress.owed();
    refused += stress.refused();
    changed += stress.changed();
    reserved += stress.reserved();
    exchanged += stress.exchanged();
    swapped += stress.swapped();
    stress.close_all();
  }
  EXPECT_GT(counts.tokens_reused, 0);
  EXPECT_GT(counts.tokens_replayed, 0);
  EXPECT_GT(counts.evictions, 0);
  EXPECT_GT(handed_over, 0);
  EXPECT_GT(owed, 0);
  EXPECT_GT(refused, 0);
  EXPECT_GT(changed, 0);
  EXPECT_GT(reserved, 0);
  EXPECT_GT(exchanged, 0);
  EXPECT_GT(swapped, 0);
}

INSTANTIATE_TEST_SUITE_P(Windows, WindowPartsStress,
                         testing::Combine(testing::Values(1, 3, 8, 13), testing::Bool()),
                         [](const auto& info) {
                           return std::to_string(std::get<0>(info.param)) +
                                  (std::get<1>(info.param) ? "_written_whole" : "");
                         });

}  // namespace
}  // namespace quire::kv
