#include "quire/contexts/item_list.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::contexts {

Item* ItemList::add(Item item) {
  QUIRE_CHECK(find_id(item.info.id) == nullptr, "two items of one id");
  Item* const added = items_.emplace_back(std::make_unique<Item>(std::move(item))).get();
  by_id_.emplace(added->info.id, added);
  by_beginning_.emplace(added->info.id, added);
  if (!added->info.name.empty()) {
    by_name_.emplace(added->info.name, added);
  }
  return added;
}

void ItemList::erase(const std::string& id) {
  const Item* const gone = find_id(id);
  if (gone == nullptr) {
    return;
  }
  by_name_.erase(gone->info.name);
  by_beginning_.erase(gone->info.id);
  by_id_.erase(gone->info.id);
  std::erase_if(items_, [gone](const auto& item) { return item.get() == gone; });
}

void ItemList::clear() {
  by_name_.clear();
  by_beginning_.clear();
  by_id_.clear();
  items_.clear();
}

void ItemList::rename(Item& item, const std::string& name) {
  by_name_.erase(item.info.name);
  item.info.name = name;
  if (!name.empty()) {
    by_name_.emplace(name, &item);
  }
}

Item* ItemList::find_id(const std::string& id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

Item* ItemList::find_name(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

Result<Item*> ItemList::find(const std::string& name) const {
  if (Item* const item = find_id(name); item != nullptr) {
    return item;
  }
  if (Item* const item = find_name(name); item != nullptr) {
    return item;
  }
  std::vector<Item*> found;
  for (auto at = by_beginning_.lower_bound(name);
       name.size() >= kMinDigits && at != by_beginning_.end() && at->first.starts_with(name);
       ++at) {
    found.push_back(at->second);
  }
  if (found.size() == 1) {
    return found.front();
  }
  return Error{.code = ErrorCode::kNotFound,
               .message = found.empty() ? base::str_cat("no item '", name, "' in the context")
                                        : base::str_cat("'", name, "' begins the ids of ",
                                                        found.size(), " items; give more digits"),
               .chunk_id = name};
}

}  // namespace quire::contexts
