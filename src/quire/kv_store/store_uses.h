// StoreUses: tells a store which of its entries are used in memory, so that what is in use there
// neither expires nor counts as long unused. On a thread of its own, the uses of a second together:
// whoever uses something waits for no disk and no other process.
//
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_index.h"

namespace quire::kv_store {

class StoreUses {
 public:
  // Entries of `tenant`. The store is this object's alone: others open it for themselves.
  StoreUses(Store store, std::string tenant)
      : store_(std::move(store)), tenant_(std::move(tenant)) {}
  // Tells what it has not told yet.
  ~StoreUses();
  StoreUses(const StoreUses&) = delete;
  StoreUses& operator=(const StoreUses&) = delete;

  // Used now. Nothing where there is no such entry or the store cannot be written.
  void note(const std::string& key);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  Store store_;  // of the thread, but for its clock
  const std::string tenant_;
  LastUses untold_;
  bool stopped_ = false;
  std::thread thread_;  // started by the first use
};

}  // namespace quire::kv_store
