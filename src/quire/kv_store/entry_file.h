// Entries as files: one self-contained file with an entry and all its objects.
//
// Thread rule of EntryFiles: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "quire/kv_store/file_front.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entries.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_objects.h"
#include "quire/result.h"

namespace quire::kv_store {

// Copies entries of one store to files, and back.
class EntryFiles {
 public:
  // Borrows all three, which must outlive the object.
  EntryFiles(StoreCore& core, StoreObjects& objects, StoreEntries& entries)
      : core_(core), objects_(objects), entries_(entries) {}

  // Writes one file with the entry and all its objects, which it verifies meanwhile.
  [[nodiscard]] Status export_entry(std::string_view key, std::string_view tenant,
                                    const std::filesystem::path& path) const;
  // Puts the objects and the entry of such a file under `tenant`; returns the entry. Verifies
  // everything before it writes anything. Trusts whoever made the file for what its KV says. Fails
  // with kCorrupt that names the file when it is damaged. Cost: two passes over it, the second
  // copies.
  [[nodiscard]] Result<StoreEntry> import_entry(const std::filesystem::path& path,
                                                std::string_view tenant);

 private:
  [[nodiscard]] Status export_object(const std::string& hash, const NewFile& to,
                                     std::int64_t offset, std::int64_t bytes) const;
  // Copies a range of the entry file `path` and verifies the copy before it gets its name.
  [[nodiscard]] Status import_object(const Descriptor& from, const FileRange& range,
                                     const std::string& hash, const std::filesystem::path& path);

  StoreCore& core_;
  StoreObjects& objects_;
  StoreEntries& entries_;
};

// An entry and its objects, open for reading.
struct EntryContent {
  StoreEntry entry;
  std::vector<KVFile> objects;
};
// Opens an entry file. Reads every byte, and fails as import_entry does.
[[nodiscard]] Result<EntryContent> open_entry_file(const std::filesystem::path& path);

// Returns OK if import_entry would take the file, else its error. Reads every byte.
[[nodiscard]] Status check_entry_file(const std::filesystem::path& path);

}  // namespace quire::kv_store
