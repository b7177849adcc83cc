// The two kinds of errors that a template can cause.
#pragma once

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::text::jinja {

// What Python raises as TypeError, ValueError and the like.
template <class... Parts>
[[nodiscard]] Error invalid(const Parts&... parts) {
  return {.code = ErrorCode::kInvalidArgument, .message = base::str_cat(parts...)};
}

// What jinja2 can do and this subset cannot.
template <class... Parts>
[[nodiscard]] Error unsupported(const Parts&... parts) {
  return {.code = ErrorCode::kUnsupported, .message = base::str_cat(parts...)};
}

}  // namespace quire::text::jinja
