// Asks a drafter of the program that embeds Quire.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "quire/drafter.h"
#include "quire/drafts/draft_source.h"

namespace quire::drafts {

class CustomSource final : public DraftSource {
 public:
  explicit CustomSource(std::shared_ptr<Drafter> drafter) : drafter_(std::move(drafter)) {}
  // Takes what the drafter throws for no guess.
  void propose(std::span<const DraftQuery> queries) override;

 private:
  std::shared_ptr<Drafter> drafter_;
};

}  // namespace quire::drafts
