// StoreUses: tells a store which of its entries are used in memory. So an entry in use there
// neither expires nor counts as long unused. On a thread of its own, the uses of a second together:
// whoever uses something waits for no disk and no other process.
//
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "quire/kv_store/store.h"
#include "quire/kv_store/store_index.h"

namespace quire::kv_store {

class StoreUses {
 public:
  // Takes the store for itself alone: others open it for themselves.
  explicit StoreUses(Store store) : store_(std::move(store)) {}
  // Writes the uses that it has not written yet.
  ~StoreUses();
  StoreUses(const StoreUses&) = delete;
  StoreUses& operator=(const StoreUses&) = delete;

  // Notes that the tenant's entry is used now. Nothing where there is none or the store cannot be
  // written.
  void note(const std::string& key, const std::string& tenant);

 private:
  using Untold = std::map<std::string, LastUses>;  // by tenant
  void run();
  void tell(const Untold& uses);

  std::mutex mutex_;
  std::condition_variable changed_;
  Store store_;  // store of the thread alone, but for its clock
  Untold untold_;
  bool stopped_ = false;
  std::thread thread_;  // started by the first use
};

}  // namespace quire::kv_store
