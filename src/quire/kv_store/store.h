// Store: a folder of KV that outlives the process and that several processes may share.
//
//   DIR/format                   "quire store 1"
//   DIR/objects/ab/<hash>.qkv    KV files named by what the KV is: equal KV is written once
//   DIR/index.sqlite             entries: names of users, their objects, pins, TTL, access
//   DIR/weights/<hash>.qw        weights files, which models are mapped from (weights_file.h)
//
// Invariants:
// 1. An entry in the index names only objects that were whole and on the disk when it was put.
// 2. After a crash of any process at any point every entry put before is there and whole.
// 3. Objects are never changed, only replaced by equal ones, and removed only while no entry names
//    them, under the write lock of the index.
// 4. No name leaves the folder: they are hashes of 64 digits or ours; links inside are not
//    followed.
// 5. Locks are the kernel's: a killed process leaves none behind.
// 6. While the folder has an index that was set aside and could not be read whole, only a wipe
//    removes objects.
//
// Thread rule: one thread at a time. Another thread opens a Store of its own, as another process
// does. Open KVFiles live on without the store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>

#include "quire/kv_store/entry_file.h"
#include "quire/kv_store/entry_remover.h"
#include "quire/kv_store/object_wipes.h"
#include "quire/kv_store/store_collector.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entries.h"
#include "quire/kv_store/store_inspector.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

// Owns an open folder and its parts, each of which does one thing with a store. Move only.
class Store {
 public:
  // Opens the store, or makes one (0700, its files 0600) where the folder is absent or empty. Opens
  // a folder read-only that the process may not write to. Fails with kInvalidArgument for a folder
  // that is no store, kUnsupported for a later format, and kCorrupt for a damaged index. kNotFound
  // if there is nothing to open read-only. Reads no KV file.
  [[nodiscard]] static Result<Store> open(const std::filesystem::path& path,
                                          StoreOptions options = {});

  [[nodiscard]] bool read_only() const { return parts_->core.read_only(); }
  // Returns kIo that names the store if it is open read-only.
  [[nodiscard]] Status check_writable() const { return parts_->core.check_writable(); }
  [[nodiscard]] const std::filesystem::path& path() const { return parts_->core.folder().path; }
  [[nodiscard]] std::int64_t now_ms() const { return parts_->core.now_ms(); }

  // Puts and opens KV files.
  [[nodiscard]] StoreObjects& objects() { return parts_->objects; }
  [[nodiscard]] const StoreObjects& objects() const { return parts_->objects; }
  // Puts, finds and lists entries.
  [[nodiscard]] StoreEntries& entries() { return parts_->entries; }
  [[nodiscard]] const StoreEntries& entries() const { return parts_->entries; }
  // Removes and wipes entries.
  [[nodiscard]] EntryRemover& remover() { return parts_->remover; }
  // Removes objects and entries that are no longer needed.
  [[nodiscard]] StoreCollector& collector() { return parts_->collector; }
  // Verifies files.
  [[nodiscard]] const StoreInspector& inspector() const { return parts_->inspector; }
  // Exports and imports entries.
  [[nodiscard]] EntryFiles& files() { return parts_->files; }
  [[nodiscard]] const EntryFiles& files() const { return parts_->files; }

 private:
  // The parts point to each other, so they stay where they are.
  struct Parts {
    explicit Parts(StoreCore opened) : core(std::move(opened)) {}
    StoreCore core;
    StoreObjects objects{core};
    ObjectWipes wipes{core, objects};
    StoreCollector collector{core, objects, wipes};
    StoreEntries entries{core, objects, collector};
    EntryRemover remover{core, objects, wipes};
    StoreInspector inspector{core, objects};
    EntryFiles files{core, objects, entries};
  };
  explicit Store(StoreCore core) : parts_(std::make_unique<Parts>(std::move(core))) {}

  std::unique_ptr<Parts> parts_;
};

// Calls `put`, which puts objects and then the entry that names them, and returns its result. Calls
// it again, up to 4 times in all, if another process removed an object meanwhile (kNotFound).
template <class Put>
auto put_until_there(Put put) -> decltype(put()) {
  constexpr int kAttempts = 4;
  auto done = put();
  for (int attempt = 1; attempt < kAttempts && !done.ok(); ++attempt) {
    if (done.error().code != ErrorCode::kNotFound) {
      break;
    }
    done = put();
  }
  return done;
}

}  // namespace quire::kv_store
