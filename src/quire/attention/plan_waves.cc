#include "quire/attention/plan_waves.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/attention/entry.h"
#include "quire/attention/plan_chains.h"
#include "quire/attention/plan_tiles.h"

namespace quire::attention {
namespace {

// Knows which chain of the last wave updates a softmax state last. A state is one of a row and of
// the heads of a tile.
class LastChains {
 public:
  // Knows of no chain yet. Reuses the storage of `memory`.
  LastChains(const TileShape& shape, std::span<const Entry> entries, const AttentionPlan& plan,
             std::vector<std::int32_t>& memory)
      : shape_(shape),
        entries_(entries),
        items_(plan.items),
        num_rows_(static_cast<std::size_t>(plan.num_rows)),
        last_(memory) {
    last_.clear();
  }

  // Forgets all chains. No chain may be after another before the next wave of chains.
  void close() { last_.clear(); }
  // Tells each of `added` the chain that it has to come after, and sorts them by it. So what
  // requests have of their own fills the time in which the last of what they share is computed.
  // False, and nothing changed, if one would have to come after several.
  [[nodiscard]] bool order(std::span<AttentionPlan::Chain> added) const;
  // Notes `added`, whose first is chain number `first`. They begin a wave, or belong to the last.
  void note(std::span<const AttentionPlan::Chain> added, std::int32_t first, bool begin);

 private:
  static constexpr std::int32_t kNone = -1;

  [[nodiscard]] std::size_t states_of_row() const {
    return static_cast<std::size_t>(shape_.kv_heads) *
           static_cast<std::size_t>(shape_.tiles_per_head);
  }

  // Calls fn(state) for every state that the chain updates.
  template <class Fn>
  void for_each_state(const AttentionPlan::Chain& chain, Fn fn) const {
    const WorkItem& item = items_[static_cast<std::size_t>(chain.first_item)];
    const std::int32_t tile = item.kv_head * shape_.tiles_per_head +
                              (item.first_head - item.kv_head * shape_.group) / shape_.heads;
    const std::span<const EntryRow> rows = entries_[static_cast<std::size_t>(item.entry)].rows;
    for (const EntryRow& row : rows.subspan(static_cast<std::size_t>(item.first_row),
                                            static_cast<std::size_t>(item.rows))) {
      fn(static_cast<std::size_t>(row.row) * states_of_row() + static_cast<std::size_t>(tile));
    }
  }

  const TileShape& shape_;
  std::span<const Entry> entries_;
  std::span<const WorkItem> items_;
  std::size_t num_rows_;
  std::vector<std::int32_t>& last_;  // [states]; empty: closed
};

bool LastChains::order(std::span<AttentionPlan::Chain> added) const {
  bool one = !last_.empty();
  for (std::size_t i = 0; one && i < added.size(); ++i) {
    for_each_state(added[i], [&](std::size_t state) {
      const std::int32_t last = last_[state];
      one = one && (last < 0 || added[i].after < 0 || last == added[i].after);
      added[i].after = std::max(added[i].after, last);
    });
  }
  if (!one) {
    for (AttentionPlan::Chain& chain : added) {
      chain.after = kNone;
    }
    return false;
  }
  std::ranges::sort(added, {}, [](const AttentionPlan::Chain& chain) {
    return std::pair(chain.after, chain.first_item);
  });
  return true;
}

void LastChains::note(std::span<const AttentionPlan::Chain> added, std::int32_t first, bool begin) {
  if (begin) {
    last_.assign(num_rows_ * states_of_row(), kNone);
  }
  for (const AttentionPlan::Chain& chain : added) {
    for_each_state(chain, [&](std::size_t state) { last_[state] = first; });
    ++first;
  }
}

}  // namespace

void make_waves(const TileShape& shape, std::span<const Entry> entries,
                std::span<const ChainGroup> groups, std::vector<std::int32_t>& last_chain,
                AttentionPlan& plan) {
  LastChains last(shape, entries, plan, last_chain);
  for (const ChainGroup& group : groups) {
    if (group.split) {
      last.close();
    }
    if (group.count == 0) {
      continue;
    }
    const std::span<AttentionPlan::Chain> chains =
        std::span(plan.chains)
            .subspan(static_cast<std::size_t>(group.first), static_cast<std::size_t>(group.count));
    const bool joins = !group.split && last.order(chains);
    if (joins) {
      plan.waves.back().num_chains += group.count;
    } else {
      plan.waves.push_back(
          {.first_chain = group.first, .num_chains = group.count, .split = group.split});
    }
    if (!group.split) {
      last.note(chains, group.first, !joins);
    }
  }
}

}  // namespace quire::attention
