// The error of a file or an entry whose bytes are not what was written.
#pragma once

#include <string>
#include <utility>

#include "quire/result.h"

namespace quire::kv_store {

[[nodiscard]] inline Error corrupt(std::string message) {
  return {.code = ErrorCode::kCorrupt, .message = std::move(message)};
}

}  // namespace quire::kv_store
