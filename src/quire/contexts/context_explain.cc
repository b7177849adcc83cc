// Tells what asking a context now would find of its active items. Items otherwise: context.cc.
#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/chunks/chunk_service.h"
#include "quire/chunks/composition_preview.h"
#include "quire/context_types.h"
#include "quire/contexts/context.h"
#include "quire/contexts/item_list.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/tiers/reload_policy.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::contexts {

// Decides as ensure() does, in the same order, but moves and computes nothing. KV that turns out to
// be damaged is computed by whoever asks.
class Context::Foresight {
 public:
  Foresight(const Context& context, runtime::Runtime& runtime)
      : context_(context), pace_(runtime.tiers().reload_policy()), forecast_(pace_.forecast()) {}

  // Returns whether the item's KV is used as it is, and why (not).
  std::pair<bool, std::string> find(const Item& item) {
    if (item.device != nullptr) {
      return {true, kHit};
    }
    if (!context_.options_.fetch && (item.host != nullptr || item.info.saved)) {
      return {false, "unloaded; restore it"};
    }
    if (item.host != nullptr) {
      return {true, "hit, in host memory"};
    }
    if (!seen_.insert(&item).second) {
      return {true, kHit};  // brought back or computed for an item before it
    }
    const bool there = item.info.saved && context_.store_->objects().is_there(item.info.id);
    const bool reads = item.info.saved && (!context_.computable(item) || forecast_.reads_next());
    if (reads && there) {
      return {true, "hit, on disk"};
    }
    for (const std::string& parent : item.info.parents) {
      if (const Item* const known = context_.items_.find_id(parent)) {
        static_cast<void>(find(*known));
      }
    }
    return {false, there ? pace_.why_not_read() : chunks::kNotComputedYet};
  }

 private:
  static constexpr const char* kHit = "hit";

  const Context& context_;
  const tiers::ReloadPolicy& pace_;
  tiers::ReloadPolicy::Forecast forecast_;
  std::set<const Item*> seen_;
};

Result<std::vector<ReusePart>> Context::explain() const {
  QUIRE_TRY(const auto runtime, this->runtime());
  const std::vector<Item*> active = active_items(false);
  const bool exact = options_.mode == ReuseMode::kExact;
  std::int64_t known = 0;  // tokens, in mode kExact
  std::string miss;
  if (exact) {
    const std::vector<TokenId> tokens = tokens_of(active);
    QUIRE_TRY(const engine::Engine::Cached cached,
              runtime->engine().cached_prefix(tokens, options_.salt));
    known = cached.tokens;
    miss = cached.miss;
    if (tip_ != nullptr) {
      known = std::max<std::int64_t>(
          known, std::ranges::mismatch(tip_->tokens, tokens).in1 - tip_->tokens.begin());
    }
  }
  Foresight foresight(*this, *runtime);
  std::vector<ReusePart> parts;
  std::int64_t end = 0;
  for (const Item* const item : active) {
    const std::int64_t tokens = std::ssize(item->info.token_ids);
    const bool shares =
        item->borrows && !parts.empty() && item->info.parents.back() == parts.back().chunk_id;
    ReusePart part{.chunk_type = item_kind_name(item->info.kind),
                   .chunk_id = item->info.id,
                   .position = end - (shares ? 1 : 0),
                   .tokens = tokens};
    end = part.position + tokens;
    if (exact) {
      part.hit = end <= known;
      part.reason = part.hit ? "hit" : miss;
    } else {
      std::tie(part.hit, part.reason) = foresight.find(*item);
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace quire::contexts
