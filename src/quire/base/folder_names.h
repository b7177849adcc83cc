// The names in a folder.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "quire/result.h"

namespace quire::base {

// Calls visit(name) for everything in the folder, in no order. Files that `visit` removes or adds
// may be visited or not. Returns kNotFound for a folder that is not there, kOutOfBlocks where
// memory is refused, and kIo for what else the system refuses.
[[nodiscard]] Status for_each_name(const std::filesystem::path& folder,
                                   const std::function<void(const std::string&)>& visit);

}  // namespace quire::base
