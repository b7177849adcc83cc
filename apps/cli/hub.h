// Finds Hugging Face models by name in the local cache. Downloads nothing.
#pragma once

#include <string>

#include "quire/result.h"

namespace quire::cli {

// Returns `model` itself where it is a path or a preset, else the folder of "owner/name" or
// "owner/name@revision" in the local Hugging Face cache. Errors: kIo where a name, a URL or a tag
// has no folder here; the message says how to get one.
[[nodiscard]] Result<std::string> find_model(const std::string& model);

}  // namespace quire::cli
