#include "quire/kv_store/store_uses.h"

#include <chrono>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "quire/device/cpu/start_thread.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::chrono::seconds kPause{1};

}  // namespace

void StoreUses::note(const std::string& key, const std::string& tenant) {
  if (store_.read_only()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  const bool sleeps = untold_.empty();
  untold_[tenant].insert_or_assign(key, store_.now_ms());
  if (!thread_.joinable()) {
    thread_ = device::start_thread([this] { run(); });  // without one, the end tells
  }
  if (sleeps) {
    changed_.notify_one();
  }
}

void StoreUses::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (untold_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const Untold uses = std::exchange(untold_, {});
    lock.unlock();
    tell(uses);
    lock.lock();
    changed_.wait_for(lock, kPause, [this] { return stopped_; });
  }
}

StoreUses::~StoreUses() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
  tell(untold_);
}

void StoreUses::tell(const Untold& uses) {
  try {
    for (const auto& [tenant, keys] : uses) {
      [[maybe_unused]] const Status told = store_.entries().touch(keys, tenant);
    }
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the store counts them as older
  }
}

}  // namespace quire::kv_store
