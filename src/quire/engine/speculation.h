// Speculation: what the engine needs to guess tokens, and to know how many to guess.
//
// Thread rule: the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "quire/drafter.h"
#include "quire/drafts/draft_budget.h"
#include "quire/drafts/draft_length.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess.h"
#include "quire/drafts/options.h"
#include "quire/sched/types.h"
#include "quire/types.h"

namespace quire::engine {

class Speculation {
 public:
  // Makes the speculation of an engine; null for no method. `drafter` is for the method kCustom,
  // `draft` for kDraft.
  [[nodiscard]] static std::unique_ptr<Speculation> make(
      const drafts::SpeculationOptions& options, std::shared_ptr<Drafter> drafter,
      std::unique_ptr<drafts::DraftSource> draft);

  [[nodiscard]] const drafts::SpeculationOptions& options() const { return options_; }
  [[nodiscard]] drafts::DraftSource& source() { return *source_; }
  [[nodiscard]] drafts::DraftBudget& budget() { return budget_; }
  // Returns what became of the guesses of all requests.
  [[nodiscard]] drafts::Acceptance& overall() { return overall_; }

  // Arrays of a step, kept between steps.
  std::vector<drafts::Guess> guesses;                          // [runs]
  std::vector<std::vector<std::span<const TokenId>>> prompts;  // [runs] pieces of composed prompts
  std::vector<drafts::DraftQuery> queries;
  std::vector<char> trials;          // [queries] 1: tries again whether guessing pays
  double asking_seconds = 0;         // that the last answer took
  double prompt_seconds = 0;         // of these, in which a draft model has computed prompts
  std::vector<std::int32_t> wanted;  // [runs] tokens
  std::int64_t rows_left = 0;        // that the plan has for branches
  // [runs and branches]: the rows themselves, tokens of assumed ones, and rows before them.
  std::vector<sched::ScheduledRun> all_runs;
  std::vector<std::span<const TokenId>> assumed;
  std::vector<std::span<const std::int32_t>> ancestors;
  bool asked = false;        // true: somebody was to have a guess in the last plan
  bool found = false;        // true: somebody had one
  std::int32_t skipped = 0;  // steps launched ahead since then

 private:
  Speculation(const drafts::SpeculationOptions& options,
              std::unique_ptr<drafts::DraftSource> source)
      : options_(options), source_(std::move(source)) {}

  const drafts::SpeculationOptions options_;
  std::unique_ptr<drafts::DraftSource> source_;
  drafts::DraftBudget budget_;
  drafts::Acceptance overall_;
};

}  // namespace quire::engine
