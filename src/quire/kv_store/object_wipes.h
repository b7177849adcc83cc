// ObjectWipes: overwrites KV files of a store with zeros before they are removed.
//
// A wipe marks the objects (.wipe-<name>, empty), and then the caller takes the entry out. finish()
// gives each object the name of its mark, overwrites it and removes it. Cut short at any point,
// either the entry is there with its KV whole, or the next finish() does what its mark says.
//
// Thread rule: one thread at a time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

class ObjectWipes {
 public:
  // Borrows both, which must outlive the object.
  ObjectWipes(StoreCore& core, StoreObjects& objects) : core_(core), objects_(objects) {}

  // Marks those of `hashes` that no entry names, and appends them to `marked`. The caller holds the
  // index's write lock.
  [[nodiscard]] Status mark_unnamed(std::span<const std::string> hashes,
                                    std::vector<std::string>& marked);
  // Takes back the mark of an object that was not overwritten.
  void unmark(const std::string& hash) const;
  // Overwrites and removes all marked objects that no entry names. Returns the first error, after
  // it has tried each.
  [[nodiscard]] Status finish();

 private:
  [[nodiscard]] Status mark(const std::string& hash) const;
  [[nodiscard]] Status wipe(const Folder& folder, const std::string& hash) const;

  StoreCore& core_;
  StoreObjects& objects_;
};

}  // namespace quire::kv_store
