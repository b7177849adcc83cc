// A model without tensors for scheduler tests. The KV of a token is a number that depends on the
// token and on every KV slot that it sees. The next token is a function of the last KV. So one
// wrong, missing or foreign slot changes all outputs from there on.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/sched/scheduler.h"
#include "quire/types.h"

namespace quire::sched {

using Tokens = std::vector<TokenId>;
using KV = std::uint64_t;

inline KV fold(KV sum, KV seen) { return (sum ^ seen) * 0x9e3779b97f4a7c15 + 1; }
inline TokenId sample(KV last) { return static_cast<TokenId>(last >> 61); }

// Returns the model's tokens when it runs alone and keeps everything: the oracle of every output.
inline Tokens run_alone(Tokens tokens, std::int32_t max_new_tokens, std::int32_t window) {
  std::vector<KV> kv;
  const std::size_t prompt = tokens.size();
  while (true) {
    while (kv.size() < tokens.size()) {
      const std::size_t seen =
          window == 0 ? kv.size() : std::min(kv.size(), std::size_t(window - 1));
      KV value = static_cast<std::uint32_t>(tokens[kv.size()]);
      for (std::size_t i = kv.size() - seen; i < kv.size(); ++i) {
        value = fold(value, kv[i]);
      }
      kv.push_back(fold(value, 7));
    }
    if (tokens.size() == prompt + static_cast<std::size_t>(max_new_tokens)) {
      return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end()};
    }
    tokens.push_back(sample(kv.back()));
  }
}

// Whose a request is.
struct Whose {
  std::int32_t priority = 0;
  std::string tenant = {};
};

// Makes room for KV that comes back, of which the first blocks have no window part.
[[nodiscard]] inline bool make_room(kv::Ledger& ledger, SeqId sequence, std::int32_t tokens,
                                    std::int32_t without_part) {
  if (without_part > 0 &&
      !ledger.restored_kv().begin_without_parts(sequence, tokens, without_part).ok()) {
    return false;
  }
  const std::int32_t begun = ledger.sequences().num_computed(sequence);
  const bool made = ledger.sequences().extend(sequence, tokens - begun).ok();
  if (!made && without_part > 0) {
    ledger.preemption().drop_kv(sequence);
  }
  return made;
}

// Carries out what a scheduler commits, in a paged pool of its own, and ends requests that are
// done.
class FakeEngine {
 public:
  FakeEngine(const kv::LedgerConfig& blocks, const SchedulerConfig& config)
      : ledger(blocks),
        scheduler(config, ledger),
        // A format has as many blocks as its bytes are.
        paged_pool_(static_cast<std::size_t>(blocks.num_formats()) * slots_of_a_format()) {}

  [[nodiscard]] Status submit(std::uint64_t id, Tokens prompt, std::int32_t max_new_tokens,
                              bool reuse = true, const Whose& whose = {}) {
    QUIRE_TRY_STATUS(scheduler.submit({.id = {id},
                                       .prompt = prompt,
                                       .max_new_tokens = max_new_tokens,
                                       .reuse = reuse,
                                       .priority = whose.priority,
                                       .tenant = whose.tenant}));
    running[id] = {.max_new_tokens = max_new_tokens, .prompt = std::move(prompt)};
    return {};
  }

  // Submits a request with a sequence of its own, which brings along at most `kept` cached tokens
  // of the prompt. It may begin in the middle of a block that others hold, as a fork may.
  [[nodiscard]] Status submit_fork(std::uint64_t id, Tokens prompt, std::int32_t max_new_tokens,
                                   std::int32_t kept) {
    const SeqId sequence = ledger.sequences().open(prompt, true);
    kept = std::min(kept, ledger.sequences().num_computed(sequence));
    // Else the window has freed what it needs.
    if (ledger.sequences().rollback(sequence, kept).ok()) {
      for (const TokenId token : std::span(prompt).subspan(static_cast<std::size_t>(kept))) {
        ledger.sequences().append(sequence, token);
      }
    }
    const Status status =
        scheduler.submit({.id = {id}, .sequence = sequence, .max_new_tokens = max_new_tokens});
    if (status.ok()) {
      running[id] = {.max_new_tokens = max_new_tokens, .prompt = std::move(prompt)};
    } else {
      ledger.sequences().close(sequence);
    }
    return status;
  }

  // Lets time pass.
  void wait(double seconds) {
    ledger.cache().set_time(ledger.cache().now() + std::chrono::duration_cast<kv::Clock::duration>(
                                                       std::chrono::duration<double>(seconds)));
  }

  void abort(std::uint64_t id) {
    scheduler.finish({id});
    running.erase(id);
  }

  // Runs one whole step: the one that was launched before, if there is one. With `ahead` it
  // launches the next one before this one ends, if the scheduler repeats it. Returns the plan that
  // was carried out.
  [[nodiscard]] Result<StepPlan> step(bool ahead = false) {
    StepPlan plan;
    if (!launched()) {
      plan = scheduler.plan();
      swap_out(plan);
      auto runs = scheduler.commit(plan);
      // Which slabs are free for open blocks may be known afterwards only.
      while (!runs.ok() && (plan.preempts() || !plan.admit.empty())) {
        ++plans_again;
        swap_in(plan);
        plan = scheduler.plan();
        swap_out(plan);
        runs = scheduler.commit(plan);
      }
      if (!runs.ok()) {
        return runs.error();
      }
      const std::vector<ScheduledRun> committed(runs->begin(), runs->end());
      copy_blocks();
      swap_in(plan);
      launch(committed);
    }
    const std::vector<ScheduledRun> runs = std::exchange(launched_, {});
    const std::vector<std::ptrdiff_t> slots = std::exchange(slots_, {});
    std::vector<ScheduledRun> next;
    if (ahead && scheduler.repeat(runs, next)) {
      launch(next);
      ++steps_ahead;
    }
    for (const std::ptrdiff_t slot : slots) {  // also of who has ended meanwhile
      paged_pool_[static_cast<std::size_t>(slot)] = ~KV{0};
    }
    for (const ScheduledRun& run : runs) {
      if (running.contains(run.request.value)) {
        compute(run);
      }
    }
    return plan;
  }
  [[nodiscard]] bool launched() const { return !launched_.empty(); }
  [[nodiscard]] const std::vector<ScheduledRun>& launched_runs() const { return launched_; }

  struct Active {
    std::int32_t max_new_tokens = 0;
    Tokens prompt;
    Tokens output;
  };

  kv::Ledger ledger;
  Scheduler scheduler;
  std::map<std::uint64_t, Active> running;   // submitted and not done
  std::map<std::uint64_t, Tokens> finished;  // outputs
  std::int64_t steps_ahead = 0;
  std::int64_t plans_again = 0;
  bool swaps = false;  // true: the KV of preempted requests is kept and comes back
  std::int64_t swapped_tokens = 0;

 private:
  [[nodiscard]] std::size_t slots_of_a_format() const {
    const kv::LedgerConfig& config = ledger.config();
    return static_cast<std::size_t>(config.budget_bytes()) *
           static_cast<std::size_t>(config.block_tokens);
  }

  [[nodiscard]] std::ptrdiff_t slot(BlockId block, std::int32_t index,
                                    kv::FormatId format = {}) const {
    return std::ptrdiff_t{block.value} * ledger.config().block_tokens + index +
           std::ptrdiff_t{format.value} * static_cast<std::ptrdiff_t>(slots_of_a_format());
  }

  // Returns the open block of these rows; nullptr if they lie in stored ones.
  static const kv::OpenBlock* open_block(const kv::RunView& run, std::int32_t block) {
    const auto found = std::ranges::find(run.open_blocks, block, &kv::OpenBlock::index);
    return found == run.open_blocks.end() ? nullptr : &*found;
  }

  [[nodiscard]] KV& value_at(const kv::RunView& run, std::int32_t index) {
    const std::int32_t block_tokens = ledger.config().block_tokens;
    if (const kv::OpenBlock* open = open_block(run, index / block_tokens)) {
      return paged_pool_[static_cast<std::size_t>(
          slot(open->block.id, index % block_tokens, open->block.format()))];
    }
    const BlockId block = run.blocks[static_cast<std::size_t>(index / block_tokens)];
    return paged_pool_[static_cast<std::size_t>(slot(block, index % block_tokens))];
  }

  // Stores the block that the row at `index` fills, where its rows lie in an open one.
  void store_full_block(const kv::RunView& run, std::int32_t index) {
    const std::int32_t block_tokens = ledger.config().block_tokens;
    const kv::OpenBlock* open = open_block(run, index / block_tokens);
    if (open == nullptr || (index + 1) % block_tokens != 0) {
      return;
    }
    const BlockId stored = run.blocks[static_cast<std::size_t>(open->index)];
    std::copy_n(paged_pool_.begin() + slot(open->block.id, 0, open->block.format()), block_tokens,
                paged_pool_.begin() + slot(stored, 0));
  }

  void copy_blocks() {
    for (const kv::BlockCopy copy : ledger.take_copies()) {
      std::copy_n(paged_pool_.begin() + slot(copy.from, 0, copy.format), copy.tokens,
                  paged_pool_.begin() + slot(copy.to, 0, copy.format));
    }
  }

  void swap_out(const StepPlan& plan) {
    for (const auto* preempted : {&plan.preempt, &plan.make_way}) {
      for (const RequestId id : *preempted) {
        if (!swaps) {
          continue;
        }
        const kv::RunView view = ledger.sequences().runs(*scheduler.sequence(id)).back();
        Kept& kept = kept_[id.value];
        kept = {.without_part = view.without_part};
        for (std::int32_t i = 0; i < view.num_tokens; ++i) {
          kept.values.push_back(value_at(view, i));
        }
        scheduler.note_kept(id, view.num_tokens);
      }
    }
  }

  void swap_in(const StepPlan& plan) {
    for (const RequestId id : plan.admit) {
      const Kept kept = std::exchange(kept_[id.value], {});
      const SeqId sequence = *scheduler.sequence(id);
      const std::int32_t first = ledger.sequences().num_computed(sequence);
      const auto tokens = static_cast<std::int32_t>(kept.values.size());
      scheduler.note_kept(id, 0);
      if (first >= tokens || !make_room(ledger, sequence, tokens, kept.without_part)) {
        continue;
      }
      copy_blocks();
      const kv::RunView view = ledger.sequences().runs(sequence).back();
      for (std::int32_t i = first; i < tokens; ++i) {
        value_at(view, i) = kept.values[static_cast<std::size_t>(i)];
      }
      const std::int32_t begun = ledger.sequences().num_computed(sequence);
      scheduler.complete(
          {.request = id, .sequence = sequence, .first = begun, .count = tokens - begun},
          std::nullopt);
      swapped_tokens += tokens - first;
    }
  }

  // Decides where KV will be written.
  void launch(std::span<const ScheduledRun> runs) {
    launched_.assign(runs.begin(), runs.end());
    for (const ScheduledRun& run : runs) {
      const kv::RunView view = ledger.sequences().runs(run.sequence).back();
      for (std::int32_t i = run.first; i < run.first + run.count; ++i) {
        slots_.push_back(&value_at(view, i) - paged_pool_.data());
      }
    }
  }

  void compute(const ScheduledRun& run) {
    const kv::RunView view = ledger.sequences().runs(run.sequence).back();
    const std::span<const TokenId> tokens = ledger.sequences().tokens(run.sequence);
    const std::int32_t window = ledger.config().window_tokens;
    KV last = 0;
    for (std::int32_t i = run.first; i < run.first + run.count; ++i) {
      last = static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(i)]);
      for (std::int32_t seen = window == 0 ? 0 : std::max(0, i - window + 1); seen < i; ++seen) {
        last = fold(last, value_at(view, seen));
      }
      last = fold(last, 7);
      value_at(view, i) = last;
      store_full_block(view, i);
    }
    Active& active = running.at(run.request.value);
    if (run.samples) {
      active.output.push_back(sample(last));
    }
    scheduler.complete(run, run.samples ? std::optional(sample(last)) : std::nullopt);
    const bool prompt_done =
        run.first + run.count >= static_cast<std::int32_t>(active.prompt.size());
    if (prompt_done && static_cast<std::int32_t>(active.output.size()) == active.max_new_tokens) {
      finished[run.request.value] = active.output;
      running.erase(run.request.value);
      scheduler.finish(run.request);
    }
  }

  struct Kept {
    std::vector<KV> values;
    std::int32_t without_part = 0;
  };
  std::map<std::uint64_t, Kept> kept_;  // KV of preempted requests
  std::vector<KV> paged_pool_;          // [formats][blocks * block_tokens]
  std::vector<ScheduledRun> launched_;
  std::vector<std::ptrdiff_t> slots_;  // slots that launched_ writes
};

}  // namespace quire::sched
