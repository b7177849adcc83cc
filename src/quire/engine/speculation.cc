#include "quire/engine/speculation.h"

#include <memory>
#include <utility>

#include "quire/drafter.h"
#include "quire/drafts/custom.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/ngram.h"
#include "quire/drafts/options.h"
#include "quire/drafts/suffix.h"

namespace quire::engine {
namespace {

std::unique_ptr<drafts::DraftSource> source_of(const drafts::SpeculationOptions& options,
                                               std::shared_ptr<Drafter> drafter,
                                               std::unique_ptr<drafts::DraftSource> draft) {
  switch (options.method) {
    case drafts::Method::kNgram:
      return std::make_unique<drafts::NgramSource>(options.min_match);
    case drafts::Method::kSuffix:
      return std::make_unique<drafts::SuffixSource>();
    case drafts::Method::kCustom:
      return std::make_unique<drafts::CustomSource>(std::move(drafter));
    case drafts::Method::kDraft:
      return draft;
    case drafts::Method::kNone:
      break;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<Speculation> Speculation::make(const drafts::SpeculationOptions& options,
                                               std::shared_ptr<Drafter> drafter,
                                               std::unique_ptr<drafts::DraftSource> draft) {
  auto source = source_of(options, std::move(drafter), std::move(draft));
  return source == nullptr
             ? nullptr
             : std::unique_ptr<Speculation>(new Speculation(options, std::move(source)));
}

}  // namespace quire::engine
