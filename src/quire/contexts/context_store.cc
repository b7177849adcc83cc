// Items of a context in the store. Items otherwise: context.cc.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_core.h"
#include "quire/chunks/chunk_service.h"
#include "quire/context_types.h"
#include "quire/contexts/context.h"
#include "quire/contexts/item_list.h"
#include "quire/interrupt.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sequences/block_run.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::contexts {
namespace {

std::string to_json(const Item& item) {
  const ContextItem& info = item.info;
  return base::write_json(base::Json::object({{"item_kind", item_kind_name(info.kind)},
                                              {"tags", base::Json::list(info.tags)},
                                              {"text", info.text},
                                              {"token_ids", base::Json::list(info.token_ids)},
                                              {"parents", base::Json::list(info.parents)},
                                              {"sampling", info.sampling_json},
                                              {"active", info.active},
                                              {"borrows", item.borrows}}));
}

// Returns the list under `key`; kCorrupt when it is anything else.
template <class T>
Result<std::vector<T>> list_of(base::JsonView object, std::string_view key) {
  const base::JsonView list = object.find(key);
  auto values = list.is_null() ? std::vector<T>() : base::read_json_list<T>(list);
  if (!values) {
    return {ErrorCode::kCorrupt, base::str_cat("'", key, "' of a saved item is malformed")};
  }
  return *std::move(values);
}

Result<Item> parse_item(const kv_store::StoreEntry& entry) {
  QUIRE_TRY(const base::Json value, base::parse_json(entry.metadata_json, "a saved item"));
  const base::JsonView object = value;
  if (!object.is_object()) {
    return {ErrorCode::kCorrupt, "the metadata of a saved item is no object"};
  }
  Item item;
  ContextItem& info = item.info;
  info.id = entry.key;
  info.name = entry.name;
  info.saved = true;
  info.retention.pinned = entry.pinned;
  if (entry.ttl_ms) {
    info.retention.ttl_seconds = static_cast<double>(*entry.ttl_ms) / 1e3;
  }
  QUIRE_TRY(info.tags, list_of<std::string>(object, "tags"));
  QUIRE_TRY(info.text, base::get_string(object, "text", ""));
  QUIRE_TRY(info.token_ids, list_of<TokenId>(object, "token_ids"));
  QUIRE_TRY(info.parents, list_of<std::string>(object, "parents"));
  QUIRE_TRY(info.sampling_json, base::get_string(object, "sampling", ""));
  QUIRE_TRY(info.active, base::get_bool(object, "active", false));
  QUIRE_TRY(item.borrows, base::get_bool(object, "borrows", false));
  QUIRE_TRY(const std::string kind, base::get_string(object, "item_kind", ""));
  for (const ItemKind known :
       {ItemKind::kSystem, ItemKind::kContext, ItemKind::kUser, ItemKind::kOutput}) {
    if (kind == item_kind_name(known)) {
      info.kind = known;
      return item;
    }
  }
  return {ErrorCode::kCorrupt, base::str_cat("a saved item is of kind '", kind, "'")};
}

std::optional<std::int64_t> ttl_ms(const ItemRetention& retention) {
  constexpr double kLongest = 1e12;  // s
  return retention.ttl_seconds ? std::optional(static_cast<std::int64_t>(
                                     std::min(*retention.ttl_seconds, kLongest) * 1000))
                               : std::nullopt;
}

}  // namespace

Result<kv_store::Store*> Context::need_store() const {
  if (store_ == nullptr) {
    return {ErrorCode::kInvalidArgument,
            "the context has no store; open it with a directory for one"};
  }
  return store_.get();
}

Status Context::save(const std::string& name, const Interrupt& interrupted) {
  QUIRE_TRY(const auto runtime, this->runtime());
  QUIRE_TRY([[maybe_unused]] const kv_store::Store* const store, need_store());
  QUIRE_TRY(Item* const item, items_.find(name));
  QUIRE_TRY_STATUS(check_separate(*item, "save"));
  if (item->device == nullptr && item->host == nullptr && !is_saved(*item)) {
    QUIRE_TRY_STATUS(ensure(*runtime, *item, interrupted));
  }
  return write(*runtime, *item);
}

bool Context::is_saved(const Item& item) const {
  return item.info.saved && store_->objects().open(item.info.id).ok();
}

Status Context::write_through(runtime::Runtime& runtime, Item& item) {
  return options_.write_through && !is_saved(item) ? write(runtime, item) : Status();
}

Status Context::write(runtime::Runtime& runtime, Item& item) {
  return kv_store::put_until_there([&] { return write_once(runtime, item); });
}

Status Context::write_once(runtime::Runtime& runtime, Item& item) {
  const std::string& id = item.info.id;
  tiers::TierService& tiers = runtime.tiers();
  const auto put = [&](const auto& segment) -> Status {
    QUIRE_TRY(const tiers::TierService::Readable from, tiers.readable(segment));
    QUIRE_TRY([[maybe_unused]] const std::int64_t written,
              store_->objects().put(id, tiers.content_of(segment), from.pool(), from.runs));
    return {};
  };
  if (item.device != nullptr) {
    QUIRE_TRY_STATUS(put(*item.device));
  } else if (item.host != nullptr) {
    QUIRE_TRY_STATUS(put(*item.host));
  }
  QUIRE_TRY_STATUS(
      store_->entries().put({.key = id,
                             .tenant = options_.salt,
                             .kind = kv_store::EntryKind::kContext,
                             .name = item.info.name,
                             .metadata_json = to_json(item),
                             .parts = {{.object = id, .tokens = std::ssize(item.info.token_ids)}},
                             .pinned = item.info.retention.pinned,
                             .ttl_ms = ttl_ms(item.info.retention)}));
  item.info.saved = true;
  return {};
}

// Writes what the store keeps of a retention. Priorities are for this context only.
Status Context::save_retention(const std::string& id, const ItemRetention& retention) {
  QUIRE_TRY(kv_store::Store* const store, need_store());
  if (store->read_only()) {  // nothing need be written that the store has already
    QUIRE_TRY(const kv_store::StoreEntry entry, store->entries().get(id, options_.salt));
    if (entry.pinned == retention.pinned && entry.ttl_ms == ttl_ms(retention)) {
      return {};
    }
  }
  QUIRE_TRY_STATUS(store->entries().pin(id, options_.salt, retention.pinned));
  return store->entries().set_ttl(id, options_.salt, ttl_ms(retention));
}

Result<kv_store::KVFile> Context::open_kv(const Item& item) const {
  QUIRE_TRY(kv_store::Store* const store, need_store());
  QUIRE_TRY(kv_store::KVFile file, store->objects().open(item.info.id));
  const auto runtime = runtime_.lock();
  const bool with_maps = runtime != nullptr && runtime->chunks().core().has_states();
  if (!tiers::holds_segment(file, item.info.token_ids, with_maps)) {
    return {ErrorCode::kCorrupt,
            base::str_cat("the object of item ", item.info.id, " holds other tokens")};
  }
  return file;
}

// Begins to read saved KV of active items, whose KV nobody may move meanwhile. A read that cannot
// begin is left to the caller that needs the item. So is all KV where computing is faster.
Context::Arriving Context::begin_reading(runtime::Runtime& runtime, std::span<Item* const> items) {
  Arriving arriving;
  std::vector<std::shared_ptr<const kv_store::KVFile>> files;
  const chunks::ChunkCore& core = runtime.chunks().core();
  const bool waits = core.has_states() || !options_.fetch ||
                     runtime.tiers().reload_policy().measured().computing_is_faster();
  for (Item* const item : items) {
    if (waits || item->device != nullptr || item->host != nullptr || !item->info.saved) {
      continue;
    }
    if (auto file = open_kv(*item); file.ok()) {
      files.push_back(std::make_shared<const kv_store::KVFile>(std::move(file).value()));
      arriving.items.push_back(item);
    }
  }
  if (files.empty()) {
    return arriving;
  }
  const std::vector<tiers::HeldRef> kv = runtime.tiers().from_files(files, arriving.loads);
  for (std::size_t i = 0; i < kv.size(); ++i) {
    arriving.items[i]->device = kv[i];
  }
  std::erase_if(arriving.items, [](const Item* item) { return item->device == nullptr; });
  return arriving;
}

Result<bool> Context::end_reading(const Arriving& arriving, const Interrupt& interrupted) {
  if (const Status ended = tiers::BackgroundLoads::await(arriving.loads, interrupted);
      !ended.ok()) {
    for (Item* const item : arriving.items) {
      item->device = nullptr;
    }
    return ended.error();
  }
  bool all_right = true;
  for (Item* const item : arriving.items) {
    const tiers::HeldRef kv = item->device;
    const bool right = kv != nullptr && std::ranges::all_of(arriving.loads, [&](const auto& load) {
                         return load->outcome(kv->parts()).ok();
                       });
    if (!right) {
      item->device = nullptr;
      item->info.saved = false;
    }
    all_right = all_right && right;
  }
  return all_right;
}

// Adds an item that an earlier process has saved, found by id, the beginning of it, or name.
Result<Item*> Context::add_saved(runtime::Runtime& runtime, const std::string& name) {
  QUIRE_TRY(kv_store::Store* const store, need_store());
  QUIRE_TRY(
      const std::vector<kv_store::StoreEntry> entries,
      store->entries().list({.kind = kv_store::EntryKind::kContext, .tenant = options_.salt}));
  std::vector<const kv_store::StoreEntry*> found;
  for (const kv_store::StoreEntry& entry : entries) {
    const bool begins = name.size() >= kMinDigits && entry.key.starts_with(name);
    if (begins || entry.name == name) {
      found.push_back(&entry);
    }
  }
  if (found.size() != 1 || name.empty()) {
    return Error{.code = ErrorCode::kNotFound,
                 .message = base::str_cat(found.empty() ? "no item '" : "several items '", name,
                                          "' in the context and its store"),
                 .chunk_id = name};
  }
  if (Item* const known = items_.find_id(found.front()->key); known != nullptr) {
    return known;  // saved under another name than it has now
  }
  QUIRE_TRY(Item item, parse_item(*found.front()));
  QUIRE_TRY_STATUS(runtime.engine().check_prompt(item.info.token_ids));
  if (!check_name(item.info.name).ok()) {
    item.info.name.clear();
  }
  Item* const added = items_.add(std::move(item));
  changed();
  return added;
}

Status Context::restore(const std::string& name, const Interrupt& interrupted) {
  QUIRE_TRY(const auto runtime, this->runtime());
  auto item = items_.find(name);
  const std::size_t known = items_.size();
  if (!item.ok() && store_ != nullptr && options_.mode == ReuseMode::kAnchored) {
    item = add_saved(*runtime, name);
  }
  QUIRE_TRY(Item* const wanted, std::move(item));
  QUIRE_TRY_STATUS(check_separate(*wanted, "restore"));
  if (const Status ready = ensure(*runtime, *wanted, interrupted); !ready.ok()) {
    if (items_.size() > known) {
      items_.erase(wanted->info.id);
    }
    return ready;
  }
  changed();
  return {};
}

Status Context::erase(const std::string& name, bool wipe) {
  QUIRE_TRY(const auto runtime, this->runtime());
  const auto item = items_.find(name);
  if (!item.ok()) {
    return item.error();
  }
  const std::string id = (*item)->info.id;
  if (store_ != nullptr) {
    QUIRE_TRY([[maybe_unused]] const bool removed,
              store_->remover().remove(id, options_.salt, wipe));
  }
  items_.erase(id);
  changed();
  return {};
}

}  // namespace quire::contexts
