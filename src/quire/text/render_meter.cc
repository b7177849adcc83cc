#include "quire/text/render_meter.h"

#include <cstddef>
#include <cstdint>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::text {

bool Meter::reserve(std::size_t bytes) {
  if (bytes > limits_.memory_bytes - memory_bytes_) {
    failure_ = "values take more than " +
               base::format_bytes(static_cast<std::int64_t>(limits_.memory_bytes));
    return false;
  }
  memory_bytes_ += bytes;
  return true;
}

bool Meter::allow_text(std::size_t bytes) {
  if (bytes > limits_.text_bytes) {
    failure_ = "a string is longer than " +
               base::format_bytes(static_cast<std::int64_t>(limits_.text_bytes));
  }
  return bytes <= limits_.text_bytes;
}

bool Meter::allow_depth(int depth) {
  if (depth > kMaxContainerDepth) {
    failure_ = base::str_cat("lists and dicts nest deeper than ", kMaxContainerDepth);
  }
  return depth <= kMaxContainerDepth;
}

bool Meter::enter() {
  if (depth_ >= limits_.depth) {
    failure_ = base::str_cat("evaluation is nested deeper than ", limits_.depth);
    return false;
  }
  ++depth_;
  return true;
}

Error Meter::error() const {
  if (work_ != nullptr && work_->failed()) {
    return work_->status().error();
  }
  return {.code = ErrorCode::kInvalidArgument,
          .message = failure_.empty()
                         ? base::str_cat("rendering takes more than ", limits_.steps, " steps")
                         : failure_};
}

}  // namespace quire::text
