// The two kinds of errors that a template can cause.
#pragma once

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::text::jinja {

// Returns kInvalidArgument: what Python raises as TypeError, ValueError and the like.
template <class... Parts>
[[nodiscard]] Error invalid(const Parts&... parts) {
  return {.code = ErrorCode::kInvalidArgument, .message = base::str_cat(parts...)};
}

// Returns kUnsupported for a thing of jinja2 that chat templates do not need. `parts` name it.
template <class... Parts>
[[nodiscard]] Error unsupported(const Parts&... parts) {
  return {.code = ErrorCode::kUnsupported,
          .message = base::str_cat(parts..., " is not supported in chat templates")};
}

}  // namespace quire::text::jinja
