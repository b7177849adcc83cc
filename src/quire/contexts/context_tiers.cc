// Where the KV of a context's items is, and which goes first when memory is short. Items otherwise:
// context.cc.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>

#include "quire/base/str.h"
#include "quire/context_types.h"
#include "quire/contexts/context.h"
#include "quire/contexts/item_list.h"
#include "quire/kv_store/store_uses.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/tiers/tier_service.h"

namespace quire::contexts {
namespace {

using std::chrono::steady_clock;

bool is_over(const Item& item, steady_clock::time_point now) {
  const ItemRetention& retention = item.info.retention;
  return retention.ttl_seconds && !retention.pinned &&
         std::chrono::duration<double>(now - item.used_at).count() >= *retention.ttl_seconds;
}

std::int64_t host_bytes(const Item& item) {
  return item.host == nullptr ? 0 : static_cast<std::int64_t>(item.host->bytes.size());
}

}  // namespace

ItemRetention updated(ItemRetention retention, const ItemRetentionUpdate& update) {
  retention.pinned = update.pinned.value_or(retention.pinned);
  retention.priority = update.priority.value_or(retention.priority);
  retention.ttl_seconds = update.ttl_seconds ? update.ttl_seconds : retention.ttl_seconds;
  return retention;
}

Status check(const ItemRetention& retention) {
  const double ttl = retention.ttl_seconds.value_or(0);
  if (std::isfinite(ttl) && ttl >= 0) {
    return {};
  }
  return {ErrorCode::kInvalidArgument, base::str_cat("ttl_seconds is a time from 0 on, not ", ttl)};
}

void Context::touch(Item& item) {
  item.used = ++last_use_;
  item.used_at = steady_clock::now();
  if (item.info.saved) {
    uses_->note(item.info.id, options_.salt);
  }
}

Item* Context::first_to_go(const std::function<bool(const Item&)>& may_go) const {
  const steady_clock::time_point now = steady_clock::now();
  const auto order = [&](const Item& item) {
    return std::tuple(!is_over(item, now), item.info.retention.priority, item.used);
  };
  Item* first = nullptr;
  for (const auto& item : items_) {
    const bool goes = !item->info.retention.pinned && may_go(*item);
    if (goes && (first == nullptr || order(*item) < order(*first))) {
      first = item.get();
    }
  }
  return first;
}

void Context::expire() {
  const steady_clock::time_point now = steady_clock::now();
  for (const auto& item : items_) {
    if (!item->info.active && is_over(*item, now)) {
      item->device = nullptr;
      item->host = nullptr;
    }
  }
}

// Runs `work`, and makes room while blocks are short. Nothing is evicted twice: what comes back
// while the work is tried again is needed for it.
Status Context::with_room(runtime::Runtime& runtime, const std::function<Status()>& work) {
  const std::uint64_t around = work_began_;
  if (around == kNoWork) {
    expire();
  }
  work_began_ = std::min(around, last_use_);
  Status done = work();
  while (!done.ok() && done.error().code == ErrorCode::kOutOfBlocks) {
    const Result<bool> made = make_room(runtime);
    if (!made.ok()) {
      done = made.error();
    }
    if (!made.ok() || !*made) {
      break;
    }
    done = work();
  }
  work_began_ = around;
  return done;
}

// Returns false when there is nothing that may go.
Result<bool> Context::make_room(runtime::Runtime& runtime) {
  Item* const first = first_to_go([&](const Item& item) {
    const bool needed = item.info.active || item.used > work_began_;
    return !needed && item.device != nullptr && item.device.use_count() == 1;
  });
  if (first == nullptr) {
    return false;
  }
  QUIRE_TRY_STATUS(move_to_host(runtime, *first));
  // Items that the store does not take stay in host memory: the blocks are free all the same.
  [[maybe_unused]] const Status shrunk = shrink_host(runtime);
  QUIRE_TRY([[maybe_unused]] const auto freed, runtime.engine().stats());  // with what was given up
  return true;
}

Status Context::move_to_host(runtime::Runtime& runtime, Item& item) {
  QUIRE_TRY(item.host, runtime.tiers().to_host(item.device));
  item.device = nullptr;
  return {};
}

// Moves items beyond the limit of host memory to the store, or without one drops their KV. Nothing
// is lost when the store cannot be written.
Status Context::shrink_host(runtime::Runtime& runtime) {
  std::int64_t bytes = 0;
  for (const auto& item : items_) {
    bytes += host_bytes(*item);
  }
  while (options_.max_host_bytes > 0 && bytes > options_.max_host_bytes) {
    Item* const first = first_to_go([](const Item& item) { return item.host != nullptr; });
    if (first == nullptr) {
      return {};  // pinned ones stay
    }
    bytes -= host_bytes(*first);
    QUIRE_TRY_STATUS(leave_host(runtime, *first));
  }
  return {};
}

Status Context::leave_host(runtime::Runtime& runtime, Item& item) {
  if (store_ != nullptr && !is_saved(item)) {
    QUIRE_TRY_STATUS(write(runtime, item));
  }
  item.host = nullptr;
  return {};
}

Status Context::unload(const std::string& name, bool drop) {
  QUIRE_TRY(const auto runtime, this->runtime());
  QUIRE_TRY(Item* const item, items_.find(name));
  QUIRE_TRY_STATUS(check_separate(*item, "unload"));
  Status told;  // error of a store that cannot be written: the item is in host memory all the same
  if (drop) {
    item->device = nullptr;
    item->host = nullptr;
  } else if (item->device != nullptr) {
    QUIRE_TRY_STATUS(move_to_host(*runtime, *item));
    told = shrink_host(*runtime);
  }
  changed();
  return told;
}

Status Context::set_retention(const std::string& name, const ItemRetention& retention) {
  QUIRE_TRY(Item* const item, items_.find(name));
  QUIRE_TRY_STATUS(check(retention));
  if (item->info.saved) {
    const Status kept = save_retention(item->info.id, retention);
    if (!kept.ok() && kept.error().code != ErrorCode::kNotFound) {
      return kept;
    }
    item->info.saved = kept.ok();  // else it has left the store
  }
  item->info.retention = retention;
  return {};
}

}  // namespace quire::contexts
