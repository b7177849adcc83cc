// Indexes that a repair has set aside: index.sqlite.damaged, index.sqlite.damaged.2 and so on. One
// that repair could not read whole has an empty file <name>-unread beside it. It may name objects
// that no entry names any more, so none is collected and no later repair replaces it, until
// somebody deletes it.
//
// A repair that dies at any point leaves a store that the next repair makes as much of. The new
// index gets its name when it is whole, and the old one has its own or that of one set aside.
#pragma once

#include <string>

#include "quire/kv_store/file_io.h"
#include "quire/result.h"

namespace quire::kv_store {

inline constexpr const char* kRepairName = ".tmp-repair";  // a folder, while a repair is at work

// Returns the name that the next index set aside gets.
[[nodiscard]] std::string next_aside(const Folder& folder);

// Sets the index aside under this name, in place of what has it.
[[nodiscard]] Status set_aside(const Folder& folder, const std::string& name);

// Undoes what a repair that was cut short has set aside.
[[nodiscard]] Status take_back(const Folder& folder);

// Notes that what was set aside could not be read whole. No effect where nothing was.
[[nodiscard]] Status note_unread(const Folder& folder, const std::string& name);

// Says why objects that no entry names may be named all the same, and how to end that; "" where
// they cannot be.
[[nodiscard]] Result<std::string> why_unread(const Folder& folder);

// Renames a file; one that is not there stays so.
[[nodiscard]] Status rename_file(const Folder& from, const std::string& name, const Folder& to,
                                 const std::string& new_name);

}  // namespace quire::kv_store
