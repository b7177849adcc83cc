// ItemList: the items of a context in the order in which they were added. Finds them by id, by
// name, or by the beginning of an id.
//
// Thread rule: as its context.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "quire/context_types.h"
#include "quire/result.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"

namespace quire::contexts {

inline constexpr std::size_t kMinDigits = 4;  // fewest digits of an id that is cut short

// An item and where its KV is. The public fields `tier` and `memory_bytes` are filled when shown;
// `saved` says there what the store says, here that it was saved.
struct Item {
  ContextItem info;
  tiers::HeldRef device;
  tiers::HostRef host;
  // True: the first token is a copy of the last parent's last one. Generation began behind that
  // one, for want of a generation prompt.
  bool borrows = false;
  std::uint64_t used = 0;  // grows with every use of any item
  std::chrono::steady_clock::time_point used_at;
};

class ItemList {
 public:
  // Adds an item, which stays where it is until it is erased. Its id is not changed any more, its
  // name by `rename` alone. Precondition: no item has the id.
  Item* add(Item item);
  // Removes an item. Cost: O(items). No effect when it is not there.
  void erase(const std::string& id);
  void clear();
  // Renames an item; "" takes its name away. Precondition: no other item has the name.
  void rename(Item& item, const std::string& name);

  // Finds an item in O(1). Returns nullptr when there is none.
  [[nodiscard]] Item* find_id(const std::string& id) const;
  [[nodiscard]] Item* find_name(const std::string& name) const;
  // Finds an item by id or name in O(1), else by the beginning of an id, at least kMinDigits of it,
  // in O(log items). kNotFound when there is none or several begin so.
  [[nodiscard]] Result<Item*> find(const std::string& name) const;

  [[nodiscard]] auto begin() const { return items_.begin(); }
  [[nodiscard]] auto end() const { return items_.end(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }

 private:
  // Keys are the ids in the items.
  using Beginnings = std::map<std::string_view, Item*>;

  std::vector<std::unique_ptr<Item>> items_;  // in the order in which they were added
  std::unordered_map<std::string_view, Item*> by_id_;
  Beginnings by_beginning_;
  std::unordered_map<std::string, Item*> by_name_;
};

}  // namespace quire::contexts
