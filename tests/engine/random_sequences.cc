#include "random_sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "copies_oracle.h"
#include "kv_rows.h"
#include "quire/api/test_support.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sequence.h"
#include "quire/tensor/dtype.h"
#include "random_site.h"

namespace quire {
namespace {

// Returns rows as they are when their block has been opened: numbers of the compute type.
std::vector<std::uint32_t> opened(std::vector<std::uint32_t> rows, bool opens) {
  for (std::uint32_t& bits : rows) {
    bits = opens ? tensor::float_to_bf16(std::bit_cast<float>(bits)) : bits;
  }
  return rows;
}

// Compares rows, unless some had no room.
void expect_alike(const std::vector<std::uint32_t>& a, const std::vector<std::uint32_t>& b) {
  if (!a.empty() && !b.empty()) {
    EXPECT_EQ(a, b);
  }
}

}  // namespace

std::vector<Operation> RandomSequences::operations() {
  return {{"create", 6, [this] { return create(); }},
          {"fork", 8, [this] { return fork(); }},
          {"drop", 9, [this] { return drop(); }},
          {"append", 14, [this] { return append(); }},
          {"generate", 16, [this] { return generate(); }},
          {"rollback_to", 8, [this] { return roll_back_to(); }},
          {"edit", 8, [this] { return edit(); }},
          {"edit approximately", 8, [this] { return edit_approximately(); }},
          {"checkpoint", 6, [this] { return checkpoint(); }},
          {"rollback", 5, [this] { return roll_back(); }},
          {"commit", 4, [this] { return commit(); }},
          {"diff", 3, [this] { return compare(); }},
          {"save", 1, [this] { return save(); }},
          {"load", 2, [this] { return load(true); }},
          {"load at once", 1, [this] { return load(false); }},
          {"prompt", 5, [this] { return prompt(); }},
          {"infer from blocks", 5, [this] { return infer_behind(); }},
          {"clear prefixes", 1, [this] { return site_.llm.llm().clear_prefix_cache().ok(); }}};
}

void RandomSequences::check(bool with_logits) {
  for (const Live& live : live_) {
    ASSERT_EQ(live.sequence.tokens(), live.copy.ids);
    ASSERT_EQ(live.sequence.grade() == ReuseGrade::kExact, live.copy.composed == 0);
  }
  if (with_logits && !live_.empty()) {
    expect_logits(site_.any(live_));
  }
  if (reading_ && --reading_for_ < 0) {
    finish_reading();
  }
}

void RandomSequences::expect_logits(Live& live) {
  if (live.copy.ids.empty()) {
    return;
  }
  site_.in_use = static_cast<std::int64_t>(stat(site_.llm, "blocks_in_use"));
  const std::int64_t owed = live.sequence.owed_tokens();
  const auto logits = live.sequence.logits();
  if (!site_.refused(logits, need(1 + owed))) {
    ASSERT_EQ(*logits, site_.oracle.logits(live.copy)) << describe(live.copy);
  }
}

void RandomSequences::add_blocks(BlockSet& held) const {
  for (const Live& live : live_) {
    held.add(live.sequence.blocks().value().block_ids());
    for (const Saved& saved : live.marks) {
      held.add(saved.blocks);
    }
  }
  if (reading_) {
    held.add(reading_->sequence.blocks().value().block_ids());
  }
}

void RandomSequences::clear() {
  finish_reading();
  live_.clear();
}

void RandomSequences::keep(Sequence sequence, Copy copy) {
  live_.push_back({.sequence = std::move(sequence), .copy = std::move(copy), .marks = {}});
}

bool RandomSequences::create() {
  if (!has_room()) {
    return false;
  }
  Ids ids;
  for (std::int64_t pieces = site_.below(4); pieces > 0; --pieces) {
    ids = joined(std::move(ids), site_.piece());
  }
  auto sequence = site_.llm.llm().sequence(ids);
  if (!site_.refused(sequence, need(std::ssize(ids)))) {
    keep(std::move(sequence).value(),
         {.ids = ids, .sampling = static_cast<std::size_t>(site_.below(Oracle::kSamplings))});
  }
  return true;
}

bool RandomSequences::fork() {
  if (live_.empty() || !has_room()) {
    return false;
  }
  const Live& from = site_.any(live_);
  Live copy{.sequence = from.sequence.fork().value(), .copy = from.copy, .marks = from.marks};
  live_.push_back(std::move(copy));
  return true;
}

bool RandomSequences::drop() {
  if (live_.empty()) {
    return false;
  }
  live_.erase(live_.begin() + site_.below(std::ssize(live_)));
  return true;
}

bool RandomSequences::append() {
  if (live_.empty()) {
    return false;
  }
  Live& live = site_.any(live_);
  const Ids more = site_.below(10) == 0 ? Ids() : site_.piece();
  const std::int64_t length = std::ssize(live.copy.ids) + std::ssize(more);
  if (length > kMostTokens) {
    return false;
  }
  if (!site_.refused(live.sequence.append(more), need(length))) {
    live.copy.append(more);
  }
  return true;
}

bool RandomSequences::generate() {
  if (live_.empty()) {
    return false;
  }
  Live& live = site_.any(live_);
  const std::int64_t count = 1 + site_.below(8);
  const std::int64_t length = std::ssize(live.copy.ids) + count;
  if (live.copy.ids.empty() || length > kMostTokens) {
    return false;
  }
  const auto output = live.sequence.generate(Oracle::params(live.copy.sampling, count));
  if (!site_.refused(output, need(length))) {
    EXPECT_EQ(output->token_ids, site_.oracle.next(live.copy, count));
    live.copy.grow(output->token_ids);
  }
  return true;
}

bool RandomSequences::roll_back_to() {
  if (live_.empty()) {
    return false;
  }
  Live& live = site_.any(live_);
  const std::int64_t length = std::ssize(live.copy.ids);
  const std::int64_t to =
      site_.below(2) == 0 ? site_.below(length + 1) : std::max<std::int64_t>(0, length - 3);
  if (!site_.refused(live.sequence.rollback_to(to), need(length))) {
    live.copy.cut(to);
  }
  return true;
}

bool RandomSequences::edit() {
  if (live_.empty()) {
    return false;
  }
  Live& live = site_.any(live_);
  const std::int64_t length = std::ssize(live.copy.ids);
  const std::int64_t start = site_.below(length + 1);
  const std::int64_t stop = std::min(length, start + site_.below(5));
  const Ids middle = site_.below(3) == 0 ? Ids() : site_.piece();
  if (length + std::ssize(middle) > kMostTokens) {
    return false;
  }
  if (!site_.refused(live.sequence.replace(start, stop, middle),
                     need(length + std::ssize(middle)))) {
    live.copy.replace(start, stop, middle);
  }
  return true;
}

// Replaces tokens in mode "approximate". Tokens before the edit keep their KV, and so do, row by
// row, the tokens behind it. Behind chunks the token before the edit is computed again, as by any
// cut.
bool RandomSequences::edit_approximately() {
  Live* const live = live_.empty() ? nullptr : &site_.any(live_);
  if (live == nullptr || live->copy.num_edits() >= kMostEdits) {
    return false;
  }
  const std::int64_t length = std::ssize(live->copy.ids);
  const std::int64_t start = site_.below(length + 1);
  const std::int64_t stop = std::min(length, start + site_.below(5));
  const Ids middle = site_.below(3) == 0 ? Ids() : site_.piece();
  const std::int64_t shift = std::ssize(middle) - (stop - start);
  if (length + std::ssize(middle) > kMostTokens) {
    return false;
  }
  Copy edited = live->copy;
  edited.replace_only(start, stop, middle);
  const bool was_plain = live->copy.composed == 0;
  const bool keeps_kv = edited.edit != live->copy.edit;
  const Sequence before = live->sequence.fork().value();
  const Status status = live->sequence.replace(start, stop, middle, {}, EditMode::kApproximate);
  if (keeps_kv && site_.scenario.refuses_moves()) {
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIncompatible) << status.error().message;
    site_.was_refused = true;
    return true;
  }
  // Each run of its KV is copied into blocks of its own.
  if (site_.refused(status, 2 * need(length + std::ssize(middle)) + kMostRuns)) {
    return true;
  }
  live->copy = std::move(edited);
  if (keeps_kv && !on_gpu()) {
    std::int64_t head = was_plain ? start : start - 1;
    const bool by_block = site_.scenario.by_block();
    if (by_block) {  // a block that was cut is computed again, and is open now
      head = was_plain ? start / site_.scenario.block_tokens * site_.scenario.block_tokens : 0;
    }
    expect_alike(kv_rows(live->sequence, 0, head), kv_rows(before, 0, head));
    // Chunks of a mixed pool may be stored block by block, too.
    const bool opens = by_block || site_.scenario.mixed;
    expect_alike(opened(kv_rows(live->sequence, stop + shift, length + shift - 1), opens),
                 opened(kv_rows(before, stop, length - 1), opens));
  }
  return true;
}

bool RandomSequences::checkpoint() {
  if (live_.empty()) {
    return false;
  }
  Live& live = site_.any(live_);
  if (live.marks.size() >= kMostMarks) {
    return false;
  }
  live.marks.push_back({.mark = live.sequence.checkpoint().value(),
                        .copy = live.copy,
                        .blocks = live.sequence.blocks().value().block_ids()});
  return true;
}

bool RandomSequences::roll_back() {
  Live* const live = live_.empty() ? nullptr : &site_.any(live_);
  if (live == nullptr || live->marks.empty()) {
    return false;
  }
  const std::int64_t chosen = site_.below(std::ssize(live->marks));
  const Saved saved = live->marks[static_cast<std::size_t>(chosen)];
  const std::vector<Saved> later(live->marks.begin() + chosen + 1, live->marks.end());
  EXPECT_TRUE(live->sequence.rollback(saved.mark).ok());
  live->copy = saved.copy;
  live->marks.resize(static_cast<std::size_t>(chosen) + 1);
  for (const Saved& forgotten : later) {
    const Status refused = live->sequence.rollback(forgotten.mark);
    EXPECT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  return true;
}

bool RandomSequences::commit() {
  Live* const live = live_.empty() ? nullptr : &site_.any(live_);
  if (live == nullptr || live->marks.empty()) {
    return false;
  }
  const std::int64_t chosen = site_.below(std::ssize(live->marks));
  const Status committed =
      chosen == 0 ? live->sequence.commit()
                  : live->sequence.commit(live->marks[static_cast<std::size_t>(chosen)].mark);
  EXPECT_TRUE(committed.ok());
  live->marks.resize(static_cast<std::size_t>(chosen));
  return true;
}

bool RandomSequences::compare() {
  if (live_.empty()) {
    return false;
  }
  const Live& left = site_.any(live_);
  const Live& right = site_.any(live_);
  const SequenceDiff diff = left.sequence.diff(right.sequence).value();
  const auto differ = std::ranges::mismatch(left.copy.ids, right.copy.ids);
  EXPECT_EQ(diff.common_tokens, differ.in1 - left.copy.ids.begin());
  EXPECT_EQ(diff.left, Ids(differ.in1, left.copy.ids.end()));
  EXPECT_EQ(diff.right, Ids(differ.in2, right.copy.ids.end()));
  return true;
}

bool RandomSequences::save() {
  if (live_.empty()) {
    return false;
  }
  const Live& live = site_.any(live_);
  const std::string path =
      site_.disk.folder / ("sequence" + std::to_string(site_.below(kMostFiles)));
  const bool owes = live.sequence.owed_tokens() > 0;
  const Status saved = live.sequence.save(path);
  if ((site_.scenario.carries || owes) && site_.refused(saved, site_.num_blocks)) {
    return true;  // all states are held, or what is owed has no room
  }
  EXPECT_TRUE(saved.ok()) << saved.error().message;
  site_.disk.files[path] = live.copy;
  return true;
}

bool RandomSequences::load(bool wait) {
  if (site_.disk.files.empty() || !has_room()) {
    return false;
  }
  const auto& [path, copy] = site_.any(site_.disk.files);
  auto sequence = site_.llm.llm().load_sequence(path, {.wait = wait});
  // Each of the segments that it was composed of may end with a part of a block.
  if (site_.refused(sequence, need(std::ssize(copy.ids)) + 4)) {
    return true;
  }
  keep(std::move(sequence).value(), copy);
  if (wait) {
    expect_logits(live_.back());
    return true;
  }
  finish_reading();
  reading_ = {.sequence = live_.back().sequence.fork().value(), .copy = copy, .marks = {}};
  reading_for_ = static_cast<int>(site_.below(6));
  return true;
}

// Saving waits for all of it; nothing but its owners holds its blocks then.
void RandomSequences::finish_reading() {
  if (!reading_) {
    return;
  }
  const Status read = reading_->sequence.save(site_.disk.folder / "read");
  if (!site_.scenario.carries || !site_.refused(read, site_.num_blocks)) {
    EXPECT_TRUE(read.ok()) << read.error().message;
  }
  expect_logits(*reading_);
  reading_.reset();
}

bool RandomSequences::prompt() {
  Copy copy{.ids = joined(site_.piece(), site_.piece()),
            .sampling = static_cast<std::size_t>(site_.below(Oracle::kSamplings))};
  const std::int64_t count = 1 + site_.below(8);
  const std::int64_t length = std::ssize(copy.ids) + count;
  const auto output = site_.llm.llm().generate(copy.ids, Oracle::params(copy.sampling, count));
  if (!site_.refused(output, need(length))) {
    EXPECT_EQ(output->token_ids, site_.oracle.next(copy, count));
    EXPECT_EQ(output->prompt_token_ids, copy.ids);
  }
  return true;
}

// Behind a part of a sequence, which stays as it is.
bool RandomSequences::infer_behind() {
  Live* const live = live_.empty() ? nullptr : &site_.any(live_);
  if (live == nullptr || live->copy.ids.empty()) {
    return false;
  }
  Copy copy = live->copy;
  copy.cut(1 + site_.below(std::ssize(copy.ids)));
  const Ids more = site_.below(2) == 0 ? Ids() : site_.piece();
  const BlockList blocks = live->sequence.blocks().value().first(std::ssize(copy.ids)).value();
  copy.append(more);
  const std::int64_t count = 1 + site_.below(4);
  const auto output =
      site_.llm.llm().infer_from_blocks(blocks, more, Oracle::params(copy.sampling, count));
  if (!site_.refused(output, need(std::ssize(copy.ids) + count))) {
    EXPECT_EQ(output->token_ids, site_.oracle.next(copy, count));
    EXPECT_EQ(output->prompt_token_ids, copy.ids);
  }
  return true;
}

}  // namespace quire
