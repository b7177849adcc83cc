#include "quire/engine/step_drafts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/drafts/draft_length.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step_state.h"
#include "quire/sampling.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kProbed = 1;  // tokens of a guess that tries again whether guessing pays

// The work of a plan without guesses.
struct PlannedWork {
  std::int64_t rows = 0;
  double tokens = 0;
};

PlannedWork work_of(const sched::StepPlan& plan) {
  PlannedWork work;
  for (const sched::PlannedRun& run : plan.runs) {
    work.rows += run.count;
    work.tokens += run.samples ? 1 : 0;
  }
  return work;
}

// Returns how many tokens to guess for a request, one behind the other, if `width` stand side by
// side.
std::int32_t length_for(Speculation& speculation, ActiveRequest& active, const PlannedWork& work,
                        std::int32_t width) {
  const SamplingParams& params = active.request().params;
  const std::int64_t left = params.max_tokens - static_cast<std::int64_t>(active.num_sampled()) - 1;
  const auto most = static_cast<std::int32_t>(
      std::min<std::int64_t>(std::min(params.speculate.value_or(speculation.options().max_tokens),
                                      speculation.options().max_tokens),
                             left));
  if (most <= 0 || !speculation.options().adapt) {
    return std::max(most, 0);
  }
  drafts::Acceptance& acceptance = active.acceptance();
  acceptance.begin(speculation.overall());
  const std::int32_t length = drafts::draft_length(
      acceptance.rate(), speculation.costs(),
      {.rows = work.rows, .tokens = work.tokens, .most = most, .width = width});
  if (length > 0) {
    return length;
  }
  acceptance.note_silence();
  return acceptance.may_probe() ? std::min(kProbed, most) : 0;
}

drafts::DraftHistory history_of(Step& step, const ActiveRequest& active, SeqId sequence,
                                std::vector<std::span<const TokenId>>& pieces) {
  pieces.clear();
  if (active.request().composed) {
    for (const auto& piece : active.request().composed->pieces) {
      pieces.emplace_back(*piece);
    }
  }
  return {.prompt = pieces,
          .own = step.core.ledger.sequences().tokens(sequence),
          .output = active.sampled_ids(),
          .tenant = active.request().salt};
}

// Returns how many tokens a guess has one behind the other, each the first one there.
std::int32_t stem_of(const drafts::Guess& guess) {
  const std::vector<drafts::Branch> branches = drafts::branches_of(guess);
  return branches.empty() ? 0 : branches.front().count;
}

// Cuts a guess at what is no token of the model, and at the sizes that were asked for.
void cut_guess(const drafts::DraftQuery& query, std::int32_t vocab) {
  drafts::Guess& guess = *query.draft;
  const auto bad =
      std::ranges::find_if(guess.tokens, [vocab](TokenId id) { return id < 0 || id >= vocab; });
  const std::ptrdiff_t most = guess.parents.empty() ? query.most : query.most_in_tree;
  drafts::cut(guess, static_cast<std::size_t>(std::min(bad - guess.tokens.begin(), most)));
  if (stem_of(guess) > query.most) {
    drafts::cut(guess, static_cast<std::size_t>(query.most));
  }
}

}  // namespace

void draft_tokens(Step& step) {
  if (step.speculation == nullptr) {
    return;
  }
  Speculation& speculation = *step.speculation;
  const std::vector<sched::PlannedRun>& runs = step.plan.runs;
  // A device keeps no log of assumed rows, by which states would advance (ADR 0051).
  const bool logs = !step.core.ledger.points().exist() || !step.core.paged_pool.on_device();
  const bool quiet = logs && !step.plan.preempts() && step.plan.admit.empty();
  const PlannedWork work = work_of(step.plan);
  // Models with states have no branches (step_branches.cc).
  const std::int32_t width = step.core.ledger.points().exist() ? 1 : speculation.options().width;
  speculation.asked = false;
  speculation.rows_left = 0;
  speculation.queries.clear();
  speculation.wanted.assign(runs.size(), 0);
  speculation.guesses.resize(std::max(speculation.guesses.size(), runs.size()));
  speculation.prompts.resize(std::max(speculation.prompts.size(), runs.size()));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ActiveRequest& active = step.requests.at(runs[i].request);
    active.assume({});
    drafts::clear(speculation.guesses[i]);
    const auto sequence = step.core.scheduler.sequence(runs[i].request);
    const bool guesses = quiet && runs[i].samples && runs[i].count == 1;
    const std::int32_t most =
        guesses && sequence ? length_for(speculation, active, work, width) : 0;
    if (most > 0 && sequence) {
      speculation.queries.push_back(
          {.request = runs[i].request,
           .history = history_of(step, active, *sequence, speculation.prompts[i]),
           .most = most,
           .most_in_tree = most * width,
           .draft = &speculation.guesses[i]});
    }
  }
  if (speculation.queries.empty()) {
    return;
  }
  speculation.asked = true;
  speculation.found = false;
  speculation.skipped = 0;
  speculation.source().propose(speculation.queries);
  for (const drafts::DraftQuery& query : speculation.queries) {
    cut_guess(query, step.core.decoder().config().vocab_size);
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    speculation.wanted[i] = stem_of(speculation.guesses[i]);
    speculation.found = speculation.found || speculation.wanted[i] > 0;
  }
  speculation.rows_left = step.core.scheduler.assume(step.plan, speculation.wanted);
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ActiveRequest& active = step.requests.at(runs[i].request);
    active.assume(
        std::span(speculation.guesses[i].tokens).first(static_cast<std::size_t>(runs[i].assumed)));
    if (runs[i].assumed > 0 && speculation.options().threshold) {
      active.note_lossy();
    }
  }
}

bool wants_drafts(Step& step) {
  constexpr std::int32_t kSkipped = 4;  // steps that are not asked about where nothing was found
  if (step.speculation == nullptr) {
    return false;
  }
  if (step.speculation->asked) {
    return step.speculation->found || ++step.speculation->skipped >= kSkipped;
  }
  bool wants = false;
  for (ActiveRequest* active : step.now.requests) {
    if (active != nullptr && active->request().params.speculate != 0) {
      active->acceptance().note_silence();
      wants = wants || active->acceptance().may_probe();
    }
  }
  return wants;
}

void note_cost(Step& step, double seconds) {
  const auto generates = [](const sched::ScheduledRun& run) {
    return run.samples && run.count - run.assumed == 1;
  };
  if (step.speculation == nullptr) {
    return;
  }
  const RunningStep& now = step.now;
  step.core.counters.speculative_steps +=
      std::ranges::any_of(now.runs, [](const auto& run) { return run.assumed > 0; }) ? 1 : 0;
  if (!now.ahead && !now.reads_files && std::ranges::all_of(now.runs, generates)) {
    step.speculation->costs().add(rows_of(now), seconds);
  }
}

void learn_output(Step& step, const ActiveRequest& active, SeqId sequence) {
  if (step.speculation != nullptr && active.kind() == RequestKind::kGenerate) {
    std::vector<std::span<const TokenId>> pieces;
    step.speculation->source().learn(history_of(step, active, sequence, pieces));
  }
}

}  // namespace quire::engine
