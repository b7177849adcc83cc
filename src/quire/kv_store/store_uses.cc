#include "quire/kv_store/store_uses.h"

#include <chrono>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "quire/kv_store/store_index.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

constexpr std::chrono::seconds kPause{1};

}  // namespace

void StoreUses::note(const std::string& key) {
  const std::lock_guard lock(mutex_);
  untold_.insert_or_assign(key, store_.now_ms());
  if (!thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
      return;  // the next use tries again, and the end tells
    }
  }
  changed_.notify_one();
}

void StoreUses::run() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    if (untold_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const LastUses uses = std::exchange(untold_, {});
    lock.unlock();
    [[maybe_unused]] const Status told = store_.touch(uses, tenant_);
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
  if (!untold_.empty()) {
    [[maybe_unused]] const Status told = store_.touch(untold_, tenant_);
  }
}

}  // namespace quire::kv_store
