// StoreCore: owns an open store's folder, index, options and clock. The parts of a Store borrow it.
//
// Thread rule: one thread at a time, but for now_ms().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_index.h"
#include "quire/result.h"

namespace quire::kv_store {

// Returns the milliseconds since 1970, UTC, by the system's clock.
[[nodiscard]] std::int64_t system_now_ms();

// The options with which a store is opened.
struct StoreOptions {
  bool read_only = false;
  bool create = true;  // false: kNotFound or kInvalidArgument where there is no store
  // The bytes that gc leaves; 0: no limit. With a limit, putting an entry collects once there is
  // more. With `tenant` the limit counts the objects of its entries, else all objects.
  std::int64_t max_bytes = 0;
  // The tenant whose entries gc and the limit touch; absent: all, by the rule of store_eviction.h.
  std::optional<std::string> tenant = {};
  std::int64_t grace_ms =
      std::int64_t{10} * 60'000;  // gc leaves objects alone that are younger than this
  WriteOptions
      write;  // options of objects; with `sync` an entry that was put survives a loss of power
  std::function<std::int64_t()> now_ms = system_now_ms;
};

// Counts the bytes that may be written before the limit of a store is compared with its files
// again.
class WriteAllowance {
 public:
  [[nodiscard]] bool is_spent() const { return !bytes_ || *bytes_ <= 0; }
  void grant(std::int64_t bytes) { bytes_ = bytes; }
  void revoke() { bytes_.reset(); }
  void spend(std::int64_t bytes) {
    if (bytes_) {
      *bytes_ -= bytes;
    }
  }

 private:
  std::optional<std::int64_t> bytes_;
};

class StoreCore {
 public:
  // Opens a store; errors as for Store::open.
  [[nodiscard]] static Result<StoreCore> open(const std::filesystem::path& path,
                                              StoreOptions options);
  // Takes open folders and an index, which need not lie in `folder`.
  StoreCore(Folder folder, Folder objects, StoreIndex index, StoreOptions options);

  [[nodiscard]] bool read_only() const { return options_.read_only; }
  // Returns kIo that names the store if it is open read-only.
  [[nodiscard]] Status check_writable() const;
  [[nodiscard]] std::int64_t now_ms() const { return possible_time_ms(options_.now_ms()); }

  [[nodiscard]] const StoreOptions& options() const { return options_; }
  [[nodiscard]] const Folder& folder() const { return folder_; }
  [[nodiscard]] const Folder& objects_folder() const { return objects_folder_; }
  [[nodiscard]] StoreIndex& index() { return index_; }
  [[nodiscard]] const StoreIndex& index() const { return index_; }
  [[nodiscard]] WriteAllowance& allowance() { return allowance_; }

 private:
  Folder folder_;
  Folder objects_folder_;
  StoreIndex index_;
  StoreOptions options_;
  WriteAllowance allowance_;
};

}  // namespace quire::kv_store
