// StoreInspector: reads all files of a store and reports which are whole. It changes nothing.
//
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_objects.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/result.h"

namespace quire::kv_store {

// An object, or a row of the index that is damaged.
struct ObjectReport {
  enum class State : std::uint8_t { kOk, kDamaged, kMissing };
  std::string hash;  // hash of the object; for a row its key
  State state = State::kOk;
  std::int64_t bytes = 0;
  std::int64_t entries = 0;  // entries that name the object
  std::string message;       // message that says what is wrong
};

class StoreInspector {
 public:
  // Borrows both, which must outlive the object.
  StoreInspector(const StoreCore& core, const StoreObjects& objects)
      : core_(core), objects_(objects) {}

  // Reads every object. Fails with kCorrupt only when the index itself is damaged.
  [[nodiscard]] Result<std::vector<ObjectReport>> verify() const;
  // Returns the weights files; `verify` compares every checksum. max_bytes does not count them.
  [[nodiscard]] std::vector<WeightsReport> weights(bool verify = false) const;

 private:
  // Returns true if at one moment an entry names the object and it is not there. Others may put or
  // remove both between two looks, but not without changing the index.
  [[nodiscard]] Result<bool> is_missing(const std::string& hash) const;

  const StoreCore& core_;
  const StoreObjects& objects_;
};

}  // namespace quire::kv_store
