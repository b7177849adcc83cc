#include "quire/engine/step_drafts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/stopwatch.h"
#include "quire/drafts/draft_budget.h"
#include "quire/drafts/draft_length.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/running_step.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step_state.h"
#include "quire/sampling.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kProbed = 1;     // tokens of a guess that tries again whether guessing pays
constexpr std::int64_t kColdSteps = 4;  // with guesses, whose time a cold drafter makes longer

drafts::PlainStep plain_step(const Step& step) {
  drafts::PlainStep plain;
  for (const sched::PlannedRun& run : step.plan.runs) {
    plain.rows += run.count;
    plain.tokens += run.samples ? 1 : 0;
    plain.may_guess += run.samples && run.count == 1 ? 1 : 0;
  }
  plain.width = step.speculation->options().width;
  return plain;
}

// Returns how many tokens the guess of a request may have at most, one behind the other.
std::int32_t most_for(const Speculation& speculation, const ActiveRequest& active) {
  const SamplingParams& params = active.request().params;
  const std::int64_t left = params.max_tokens - static_cast<std::int64_t>(active.num_sampled()) - 1;
  const std::int32_t most = speculation.options().max_tokens;
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(left, 0, std::min(params.speculate.value_or(most), most)));
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
          .salt = active.request().salt,
          .tenant = active.request().urgency.tenant};
}

// Returns how many tokens a guess has one behind the other, each the first one there.
std::int32_t stem_of(const drafts::Guess& guess) {
  const std::vector<drafts::Branch> branches = drafts::branches_of(guess);
  return branches.empty() ? 0 : branches.front().count;
}

// Cuts a guess at what is no token of the model, and at the sizes that were asked for. A width of 1
// takes the stem alone.
void cut_guess(const drafts::DraftQuery& query, std::int32_t width, std::int32_t vocab) {
  drafts::Guess& guess = *query.draft;
  const auto bad =
      std::ranges::find_if(guess.tokens, [vocab](TokenId id) { return id < 0 || id >= vocab; });
  const std::ptrdiff_t most = guess.parents.empty() ? query.most : query.most_in_tree;
  drafts::cut(guess, static_cast<std::size_t>(std::min(bad - guess.tokens.begin(), most)));
  const std::int32_t stem = stem_of(guess);
  if (stem > query.most || width == 1) {
    drafts::cut(guess, static_cast<std::size_t>(std::min(stem, query.most)));
  }
}

// Forgets the guesses of the step before, and lists the requests that may have some.
void list_queries(Step& step) {
  Speculation& speculation = *step.speculation;
  const std::vector<sched::PlannedRun>& runs = step.plan.runs;
  // A device keeps no log of assumed rows, by which states would advance (ADR 0051).
  const bool logs = !step.core.ledger.points().exist() || !step.core.paged_pool.on_device();
  const bool quiet = logs && !step.plan.preempts() && step.plan.admit.empty();
  speculation.queries.clear();
  speculation.guesses.resize(std::max(speculation.guesses.size(), runs.size()));
  speculation.prompts.resize(std::max(speculation.prompts.size(), runs.size()));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ActiveRequest& active = step.requests.at(runs[i].request);
    active.assume({});
    drafts::clear(speculation.guesses[i]);
    const auto sequence = step.core.scheduler.sequence(runs[i].request);
    const bool guesses = quiet && runs[i].samples && runs[i].count == 1;
    const std::int32_t most = guesses ? most_for(speculation, active) : 0;
    const std::int32_t allowed =
        active.request().params.speculate.value_or(std::numeric_limits<std::int32_t>::max());
    if (most > 0 && sequence) {
      speculation.queries.push_back(
          {.request = runs[i].request,
           .history = history_of(step, active, *sequence, speculation.prompts[i]),
           .most = most,
           .most_in_tree = allowed,
           .draft = &speculation.guesses[i]});
    }
  }
}

// Whom a step asks, where that adapts to what was measured.
struct Choice {
  drafts::StepGuesses guesses;  // without trials
  std::int32_t trials = 0;
  bool begins = false;  // true: somebody's first guess takes longer
};

// Sets the length of a request's guess, 0 for none. Returns whether it is a trial.
bool choose_length(Speculation& speculation, const drafts::PlainStep& plain, ActiveRequest& active,
                   drafts::DraftQuery& query, Choice& choice) {
  drafts::Acceptance& acceptance = active.acceptance();
  acceptance.begin(speculation.overall());
  const drafts::DraftBudget& budget = speculation.budget();
  const std::int64_t left =
      active.request().params.max_tokens - static_cast<std::int64_t>(active.num_sampled());
  const double begin = speculation.source().seconds_to_begin(query);
  const drafts::DraftLength length = budget.length(acceptance.rate(), plain, query.most);
  if (length.tokens > 0 &&
      (begin == 0 || budget.is_worth(length, plain, static_cast<double>(left), begin))) {
    query.most = length.tokens;
    choice.guesses.requests += 1;
    choice.guesses.rows += std::int64_t{length.tokens} * plain.width;
    choice.guesses.levels = std::max(choice.guesses.levels, length.tokens);
    choice.guesses.expected += length.expected - 1;
    choice.begins = choice.begins || begin > 0;
    return false;
  }
  acceptance.note_silence();
  speculation.overall().note_silence();  // requests may be too short to try by themselves
  const bool may_try = acceptance.may_probe() || speculation.overall().may_probe();
  if (!may_try || !budget.may_spend(begin)) {
    query.most = 0;
    return false;
  }
  query.most = std::min(kProbed, query.most);
  choice.trials += 1;
  choice.begins = choice.begins || begin > 0;
  return true;
}

// Leaves queries out that do not pay.
Choice choose_queries(Step& step, const drafts::PlainStep& plain) {
  Speculation& speculation = *step.speculation;
  std::vector<drafts::DraftQuery>& queries = speculation.queries;
  Choice choice;
  speculation.trials.clear();
  for (drafts::DraftQuery& query : queries) {
    speculation.trials.push_back(
        choose_length(speculation, plain, step.requests.at(query.request), query, choice) ? 1 : 0);
  }
  const bool pay = speculation.budget().pays(choice.guesses, plain);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < queries.size(); ++i) {
    if (queries[i].most > 0 && (pay || speculation.trials[i] != 0)) {
      queries[kept++] = queries[i];
    }
  }
  queries.resize(kept);
  return choice;
}

// Has the queries answered.
void ask(Step& step, const drafts::PlainStep& plain, const Choice& choice) {
  Speculation& speculation = *step.speculation;
  std::int32_t levels = 1;
  for (drafts::DraftQuery& query : speculation.queries) {
    query.most_in_tree = std::min(query.most_in_tree, query.most * plain.width);
    levels = std::max(levels, query.most);
  }
  speculation.asked = true;
  speculation.found = false;
  speculation.skipped = 0;
  base::Stopwatch watch;
  speculation.source().set_prompt_seconds(step.core.scheduler.seconds_left(step.plan));
  speculation.source().propose(speculation.queries);
  watch.lap(speculation.asking_seconds);
  speculation.prompt_seconds = speculation.source().prompt_seconds();
  const std::int64_t asked = std::ssize(speculation.queries);
  drafts::DraftBudget& budget = speculation.budget();
  const bool warm = step.core.counters.speculative_steps >= kColdSteps;
  if (warm && !choice.begins) {
    budget.note_answer(asked, levels, speculation.asking_seconds);
  }
  if (choice.trials > 0) {
    budget.spend(speculation.asking_seconds * choice.trials / static_cast<double>(asked) +
                 budget.seconds_of(plain, std::int64_t{choice.trials} * plain.width));
  }
  for (const drafts::DraftQuery& query : speculation.queries) {
    cut_guess(query, plain.width, step.core.decoder().config().vocab_size);
  }
}

// Adds assumed rows for the guesses to the plan.
void assume_guesses(Step& step) {
  Speculation& speculation = *step.speculation;
  const std::vector<sched::PlannedRun>& runs = step.plan.runs;
  speculation.wanted.assign(runs.size(), 0);
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

}  // namespace

void draft_tokens(Step& step) {
  if (step.speculation == nullptr) {
    return;
  }
  Speculation& speculation = *step.speculation;
  speculation.asked = false;
  speculation.rows_left = 0;
  speculation.asking_seconds = 0;
  speculation.prompt_seconds = 0;
  list_queries(step);
  const drafts::PlainStep plain = plain_step(step);
  Choice choice;
  if (speculation.options().adapt) {
    choice = choose_queries(step, plain);
  }
  if (!speculation.queries.empty()) {
    ask(step, plain, choice);
    assume_guesses(step);
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
      wants =
          wants || (active->acceptance().may_probe() && step.speculation->budget().may_spend(0));
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
  step.speculation->budget().earn(seconds);
  if (!now.ahead && !now.reads_files && std::ranges::all_of(now.runs, generates)) {
    step.speculation->budget().note_step(rows_of(now), seconds - step.speculation->asking_seconds);
  }
}

void learn_output(Step& step, const ActiveRequest& active, SeqId sequence) {
  if (step.speculation != nullptr && active.kind() == RequestKind::kGenerate) {
    std::vector<std::span<const TokenId>> pieces;
    step.speculation->source().learn(history_of(step, active, sequence, pieces));
  }
}

}  // namespace quire::engine
