#include "quire/engine/step_choices.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/drafts/guess.h"
#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/running_step.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step_branches.h"
#include "quire/engine/step_state.h"
#include "quire/engine/stored_rows.h"
#include "quire/kernels/choice.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/sampling/acceptance.h"
#include "quire/sampling/sampler.h"
#include "quire/sampling/weights.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

std::size_t vocab_of(Step& step) {
  return static_cast<std::size_t>(step.core.decoder().config().vocab_size);
}

// Returns the probability from which on a wrong guess of the run is taken, if there is one.
std::optional<double> threshold_of(const Step& step, const sched::ScheduledRun& run) {
  return run.assumed == 0 || step.speculation == nullptr ? std::nullopt
                                                         : step.speculation->options().threshold;
}

// Offers the choice of the token behind `assumed` assumed ones.
void offer_choice(Step& step, const ActiveRequest& active, std::int32_t row, std::int32_t assumed) {
  const sampling::SampleContext context = active.sample_context(assumed);
  const auto changes = step.samplers.front().changes(context, vocab_of(step));
  if (!changes.ok()) {  // Sampler::sample says what is wrong
    return;
  }
  step.choices[static_cast<std::size_t>(row)] = sampling::choice_of(context);
  for (kernels::LogitChange change : *changes) {
    change.row = row;
    step.changes.push_back(change);
  }
}

// Makes the tokens up to the end of a branch those that its request assumes, so that penalties see
// them and no others.
void assume_path(Step& step, const StepBranch& branch) {
  const drafts::Guess& guess = step.speculation->guesses[branch.run];
  std::vector<TokenId> path;
  for (const std::int32_t token :
       drafts::path_to(guess, branch.tokens.first + branch.tokens.count - 1)) {
    path.push_back(guess.tokens[static_cast<std::size_t>(token)]);
  }
  step.now.requests[branch.run]->assume(path);
}

// Returns the token that the device has chosen for a row.
sampling::SampledToken chosen_token(Step& step, std::size_t row,
                                    std::optional<std::int32_t> logprobs) {
  sampling::SampledToken token{.id = step.core.decoder().last_chosen()[row], .logprobs = {}};
  if (logprobs) {
    const auto told = step.core.decoder().last_logprobs(row);
    const auto most_likely =
        static_cast<std::size_t>(std::min(*logprobs, step.core.decoder().config().vocab_size));
    token.logprobs.reserve(most_likely + 1);
    for (const auto& [id, logprob] : told.subspan(1, most_likely)) {
      token.logprobs.emplace_back(id, logprob);
    }
    token.add_chosen(told.front().logprob);
  }
  return token;
}

// Takes `id`, which has the probability `share`, for the token that was chosen.
void take_instead(sampling::SampledToken& token, TokenId id, double share,
                  std::optional<std::int32_t> logprobs) {
  token.id = id;
  if (logprobs) {
    token.logprobs.resize(std::min(token.logprobs.size(), static_cast<std::size_t>(*logprobs)));
    token.add_chosen(static_cast<float>(std::log(share)));
  }
}

// Assumed rows that stand one behind the other, without those that their format cannot hold.
struct Stretch {
  std::span<const TokenId> tokens;
  std::int32_t first_token = 0;  // of them in the guess
  std::int32_t first_logit =
      0;  // row of the logits behind the token before them, if that is theirs
};

// The rows of one run whose tokens are chosen.
struct RunRows {
  Step& step;
  std::size_t index;                // of the run
  std::span<const TokenId> chosen;  // [logit rows] by the device, -1: not; empty: it chooses none
  std::span<float> logits;          // [logit rows][vocabulary]

  [[nodiscard]] bool all_chosen() const;
  // Fills the run's place of Step::sampled.
  void sample(sampling::Sampler& sampler) const;

 private:
  [[nodiscard]] ActiveRequest& active() const { return *step.now.requests[index]; }
  [[nodiscard]] std::span<float> logits_of(std::int32_t row) const {
    const std::size_t vocab = vocab_of(step);
    return logits.subspan(static_cast<std::size_t>(row) * vocab, vocab);
  }
  [[nodiscard]] Stretch own_stretch() const;
  [[nodiscard]] Stretch stretch_of(std::size_t branch) const;
  [[nodiscard]] std::optional<std::size_t> branch_behind(std::int32_t token, TokenId id) const;
  [[nodiscard]] Result<sampling::SampledToken> choose(std::int32_t row, std::int32_t assumed,
                                                      sampling::Sampler& sampler) const;
};

bool RunRows::all_chosen() const {
  const auto holds = [&](const LogitRange& range) {
    const auto rows = chosen.subspan(static_cast<std::size_t>(range.first),
                                     static_cast<std::size_t>(range.count));
    return std::ranges::find(rows, -1) == rows.end();
  };
  const RunningStep& now = step.now;
  bool all = !chosen.empty() && holds(now.logits[index]);
  for (std::size_t i = 0; i < now.branches.size() && all; ++i) {
    all = now.branches[i].run != index || holds(now.logits[now.runs.size() + i]);
  }
  return all;
}

Stretch RunRows::own_stretch() const {
  const std::int32_t usable = usable_assumed_rows(step, step.now.runs[index], index);
  return {.tokens = active().assumed().first(static_cast<std::size_t>(usable)),
          .first_token = 0,
          .first_logit = step.now.logits[index].first};
}

Stretch RunRows::stretch_of(std::size_t branch) const {
  const StepBranch& of = step.now.branches[branch];
  const std::int32_t usable = usable_rows(step, of.first_row, of.rows.count);
  return {
      .tokens =
          of.tokens_of(step.speculation->guesses[index]).first(static_cast<std::size_t>(usable)),
      .first_token = of.tokens.first,
      .first_logit = step.now.logits[step.now.runs.size() + branch].first - 1};
}

// Returns the branch that goes on with `id` behind a token of the guess.
std::optional<std::size_t> RunRows::branch_behind(std::int32_t token, TokenId id) const {
  for (std::size_t i = 0; i < step.now.branches.size(); ++i) {
    const StepBranch& branch = step.now.branches[i];
    if (branch.run == index && branch.tokens.parent == token) {
      const Stretch stretch = stretch_of(i);
      if (!stretch.tokens.empty() && stretch.tokens.front() == id) {
        return i;
      }
    }
  }
  return std::nullopt;
}

// Chooses the token of a row of logits, which is behind so many assumed tokens.
Result<sampling::SampledToken> RunRows::choose(std::int32_t row, std::int32_t assumed,
                                               sampling::Sampler& sampler) const {
  const auto at = static_cast<std::size_t>(row);
  if (!chosen.empty() && chosen[at] >= 0) {
    return chosen_token(step, at, active().request().params.logprobs);
  }
  return sampler.sample(logits_of(row), active().sample_context(assumed));
}

void RunRows::sample(sampling::Sampler& sampler) const {
  SampledRun& sampled = step.sampled[index];
  const std::optional<double> threshold = threshold_of(step, step.now.runs[index]);
  Stretch on = own_stretch();
  const auto choose_at = [&](std::size_t taken) -> Result<sampling::SampledToken> {
    const std::int32_t row = on.first_logit + static_cast<std::int32_t>(taken);
    const bool may_take = threshold && taken < on.tokens.size();
    const double share = may_take ? sampling::probability_of(logits_of(row), on.tokens[taken]) : 0;
    sampled.right = static_cast<std::int32_t>(sampled.tokens.size());
    QUIRE_TRY(sampling::SampledToken token, choose(row, sampled.right, sampler));
    if (may_take && share >= *threshold) {
      take_instead(token, on.tokens[taken], share, active().request().params.logprobs);
    }
    return token;
  };
  for (std::size_t first = 0;; first = 1) {
    Result<std::size_t> right =
        sampling::accept_guessed(on.tokens, first, choose_at, sampled.tokens);
    if (!right.ok()) {
      sampled.status = std::move(right).error();
      return;
    }
    const auto last = on.first_token + static_cast<std::int32_t>(*right) - 1;
    const std::optional<std::size_t> branch = branch_behind(last, sampled.tokens.back().id);
    if (!branch) {
      return;
    }
    assume_path(step, step.now.branches[*branch]);
    sampled.branch = branch;
    on = stretch_of(*branch);
  }
}

// Offers the choices of the tokens on branches.
void offer_branches(Step& step, const RunningStep& running) {
  for (std::size_t i = 0; i < running.branches.size(); ++i) {
    const StepBranch& branch = running.branches[i];
    const sched::ScheduledRun& run = running.runs[branch.run];
    if (threshold_of(step, run)) {
      continue;
    }
    ActiveRequest& active = *running.requests[branch.run];
    const std::vector<TokenId> own(active.assumed().begin(), active.assumed().end());
    assume_path(step, branch);
    for (std::int32_t row = 0; row < branch.rows.count; ++row) {
      offer_choice(step, active, running.logits[running.runs.size() + i].first + row,
                   branch.tokens.depth + 1 + row);
    }
    active.assume(own);
  }
}

}  // namespace

void offer_choices(Step& step, RunningStep& running, model::ForwardBatch& batch) {
  step.choices.assign(batch.logit_rows.size(), {});
  step.changes.clear();
  std::size_t apart = 0;
  for (std::size_t i = 0; i < running.runs.size(); ++i) {
    const sched::ScheduledRun& run = running.runs[i];
    if (!run.samples || threshold_of(step, run)) {
      continue;
    }
    const ActiveRequest& active = *running.requests[i];
    const std::int32_t ahead = running.ahead ? 1 : 0;  // the token before is not booked yet
    for (std::int32_t row = 0; row <= run.assumed; ++row) {
      offer_choice(step, active, running.logits[i].first + row, ahead + row);
    }
    apart += sampling::penalises(active.request().params) ? 0 : 1;
  }
  offer_branches(step, running);
  running.chosen_apart = apart == running.runs.size();
  batch.choices = step.choices;
  batch.changes = step.changes;
}

void take_tokens_from_device(Step& step, model::ForwardBatch& batch) {
  step.ids_from.clear();
  for (const LogitRange& logits : step.now.logits) {
    step.ids_from.push_back(logits.first);
  }
  batch.ids_from = step.ids_from;
}

void sample_step(Step& step, std::span<float> logits) {
  const std::span<const sched::ScheduledRun> runs = step.now.runs;
  const std::span<const TokenId> chosen = step.core.decoder().last_chosen();
  const std::size_t vocab = vocab_of(step);
  step.sampled.resize(std::max(step.sampled.size(), runs.size()));
  const auto rows_of = [&](std::size_t i) {
    return RunRows{.step = step, .index = i, .chosen = chosen, .logits = logits};
  };
  const auto samples = [&](std::size_t i) {
    return runs[i].samples && step.now.requests[i] != nullptr && step.sampled[i].empty();
  };
  std::size_t left = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    step.sampled[i].clear();
    ActiveRequest* active = step.now.requests[i];
    const RunRows rows = rows_of(i);
    const LogitRange& own = step.now.logits[i];
    if (active != nullptr && active->kind() != RequestKind::kGenerate && own.count > 0) {
      const auto begin = static_cast<std::size_t>(own.first) * vocab;
      active->add_logits(runs[i].first + runs[i].count - own.count,
                         logits.subspan(begin, static_cast<std::size_t>(own.count) * vocab),
                         static_cast<std::int64_t>(vocab));
    }
    if (samples(i) && rows.all_chosen()) {
      rows.sample(step.samplers.front());
    } else {
      left += samples(i) ? 1 : 0;
    }
  }
  if (left == 0) {
    return;
  }
  step.pool.run(static_cast<int>(runs.size()), [&](int item, int thread) {
    const auto i = static_cast<std::size_t>(item);
    if (samples(i)) {
      rows_of(i).sample(step.samplers[static_cast<std::size_t>(thread)]);
    }
  });
}

bool accept_sampled(Step& step, const sched::ScheduledRun& run, std::size_t index) {
  ActiveRequest& active = *step.now.requests[index];
  SampledRun& sampled = step.sampled[index];
  bool ends = false;
  step.accepted.clear();
  for (sampling::SampledToken& token : sampled.tokens) {
    step.accepted.push_back(token.id);
    ends = active.accept(std::move(token));
    if (ends || !active.text_status().ok()) {
      break;
    }
  }
  const auto right = static_cast<std::int32_t>(
      std::min(static_cast<std::size_t>(sampled.right), step.accepted.size()));
  if (sampled.branch) {  // its fork has the KV of all tokens on the way, wherever the output ends
    take_branch(step, run, step.now.branches[*sampled.branch]);
  }
  step.core.scheduler.complete(run, std::span<const TokenId>(step.accepted));
  if (run.assumed > 0) {
    std::int32_t drafted = run.assumed;
    for (const StepBranch& branch : step.now.branches) {
      drafted += branch.run == index ? branch.rows.count : 0;
    }
    active.note_drafts({.tokens = drafted, .longest = run.assumed, .accepted = right});
    step.speculation->overall().note(run.assumed, right);
    step.core.counters.tokens_drafted += drafted;
    step.core.counters.tokens_accepted += right;
  }
  return ends;
}

}  // namespace quire::engine
