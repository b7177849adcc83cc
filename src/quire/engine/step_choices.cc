#include "quire/engine/step_choices.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step_state.h"
#include "quire/engine/stored_rows.h"
#include "quire/kernels/choice.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
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

// The rows of one run whose tokens are chosen.
struct RunRows {
  Step& step;
  std::size_t index;                // of the run
  std::span<const TokenId> chosen;  // [rows] by the device, -1: not; empty: it chooses none
  std::span<float> logits;          // [rows][vocabulary]

  [[nodiscard]] bool all_chosen() const {
    return !chosen.empty() && std::ranges::find(chosen, -1) == chosen.end();
  }
  // Fills the run's place of Step::sampled.
  void sample(sampling::Sampler& sampler) const;

 private:
  [[nodiscard]] Result<sampling::SampledToken> choose(std::int32_t row,
                                                      sampling::Sampler& sampler) const;
};

Result<sampling::SampledToken> RunRows::choose(std::int32_t row, sampling::Sampler& sampler) const {
  const ActiveRequest& active = *step.now.requests[index];
  const auto at = static_cast<std::size_t>(row);
  if (!chosen.empty() && chosen[at] >= 0) {
    return chosen_token(step, static_cast<std::size_t>(step.now.logits[index].first) + at,
                        active.request().params.logprobs);
  }
  return sampler.sample(logits.subspan(at * vocab_of(step), vocab_of(step)),
                        active.sample_context(row));
}

void RunRows::sample(sampling::Sampler& sampler) const {
  const sched::ScheduledRun& run = step.now.runs[index];
  SampledRun& sampled = step.sampled[index];
  const std::span<const TokenId> assumed = step.now.requests[index]->assumed();
  const std::optional<double> threshold = threshold_of(step, run);
  const std::int32_t usable = usable_assumed_rows(step, run, index);
  for (std::int32_t row = 0; row <= usable; ++row) {
    const auto at = static_cast<std::size_t>(row);
    const double share = threshold && row < usable
                             ? sampling::probability_of(
                                   logits.subspan(at * vocab_of(step), vocab_of(step)), assumed[at])
                             : 0;
    Result<sampling::SampledToken> token = choose(row, sampler);
    if (!token.ok()) {
      sampled.status = std::move(token).error();
      return;
    }
    if (threshold && row < usable && share >= *threshold) {
      take_instead(*token, assumed[at], share, step.now.requests[index]->request().params.logprobs);
    }
    const bool right = row < usable && token->id == assumed[at];
    sampled.tokens.push_back(std::move(token).value());
    if (!right) {
      return;
    }
    ++sampled.right;
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
    const auto first = static_cast<std::size_t>(step.now.logits[i].first);
    const auto count = static_cast<std::size_t>(step.now.logits[i].count);
    return RunRows{.step = step,
                   .index = i,
                   .chosen = chosen.empty() ? chosen : chosen.subspan(first, count),
                   .logits = logits.subspan(first * vocab, count * vocab)};
  };
  const auto samples = [&](std::size_t i) {
    return runs[i].samples && step.now.requests[i] != nullptr && step.sampled[i].empty();
  };
  std::size_t left = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    step.sampled[i].clear();
    ActiveRequest* active = step.now.requests[i];
    const RunRows rows = rows_of(i);
    if (active != nullptr && active->kind() != RequestKind::kGenerate && !rows.logits.empty()) {
      const std::int32_t first = runs[i].first + runs[i].count - step.now.logits[i].count;
      active->add_logits(first, rows.logits, static_cast<std::int64_t>(vocab));
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
  step.core.scheduler.complete(run, std::span<const TokenId>(step.accepted));
  if (run.assumed > 0) {
    const auto right = static_cast<std::int32_t>(
        std::min(static_cast<std::size_t>(sampled.right), step.accepted.size()));
    active.note_drafts(run.assumed, right);
    step.speculation->overall().note(run.assumed, right);
    step.core.counters.tokens_drafted += run.assumed;
    step.core.counters.tokens_accepted += right;
  }
  return ends;
}

}  // namespace quire::engine
