// Random operations on a context and the tiers of its items. Beside the oracle a mirror: a context
// of the oracle's engine with the same items, whose KV never moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/context.h"
#include "random_site.h"

namespace quire {

class RandomContexts {
 public:
  explicit RandomContexts(Site& site);

  [[nodiscard]] std::vector<Operation> operations();
  void check();
  // Adds the blocks of mode kExact.
  void add_blocks(BlockSet& held) const { held.add(tip_); }
  // Blocks of items, which nobody else has.
  [[nodiscard]] std::int64_t num_blocks() const { return item_blocks_; }
  void clear();

 private:
  static constexpr std::size_t kMostItems = 9;
  static constexpr std::int64_t kMostTokens = 90;

  bool add();
  bool toggle();
  bool infer();
  bool unload();
  bool restore();
  bool save();
  bool erase();
  bool populate();
  template <class T>
  [[nodiscard]] bool refused(const T& result);
  [[nodiscard]] bool exact() const { return site_.scenario.context == ReuseMode::kExact; }
  [[nodiscard]] Ids active_ids() const;
  void follow_tip();

  Site& site_;
  ContextManager context_, mirror_;
  std::vector<ContextItem> items_;  // as shown after the last operation
  std::vector<std::int32_t> tip_;
  std::int64_t item_blocks_ = 0;
  bool changed_ = true;
  bool forgotten_ = false;  // something that others may have seen
};

}  // namespace quire
