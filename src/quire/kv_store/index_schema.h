// Schema by which an index of ours is known. A file is opened only with exactly this schema, word
// for word.
#pragma once

#include <array>
#include <cstdint>

namespace quire::kv_store {

inline constexpr std::int64_t kApplicationId = 0x51554952;  // "QUIR"
inline constexpr std::int64_t kIndexVersion = 2;
inline constexpr std::int64_t kVersionBeforeChecksums = 1;

inline constexpr const char* kEntriesTable =
    "CREATE TABLE entries(id INTEGER PRIMARY KEY, key TEXT NOT NULL, tenant TEXT NOT NULL, "
    "kind TEXT NOT NULL, name TEXT NOT NULL, metadata TEXT NOT NULL, tokens INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, created_ms INTEGER NOT NULL, accessed_ms INTEGER NOT NULL, "
    "expires_ms INTEGER NOT NULL, pinned INTEGER NOT NULL, UNIQUE(key, tenant))";
inline constexpr const char* kPartsTable =
    "CREATE TABLE parts(entry INTEGER NOT NULL REFERENCES entries(id) ON DELETE CASCADE, "
    "place INTEGER NOT NULL, object TEXT NOT NULL, first_token INTEGER NOT NULL, "
    "tokens INTEGER NOT NULL, PRIMARY KEY(entry, place)) WITHOUT ROWID";
inline constexpr const char* kPartsByObject = "CREATE INDEX parts_by_object ON parts(object)";
inline constexpr std::array<const char*, 3> kSchemaBeforeChecksums = {kEntriesTable, kPartsTable,
                                                                      kPartsByObject};
inline constexpr const char* kChecksumsTable =
    "CREATE TABLE checksums(entry INTEGER PRIMARY KEY REFERENCES entries(id) ON DELETE CASCADE, "
    "value INTEGER NOT NULL)";

}  // namespace quire::kv_store
