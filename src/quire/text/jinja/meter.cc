#include "quire/text/jinja/meter.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::text::jinja {

bool Meter::reserve(std::size_t bytes) {
  if (bytes > limits_.memory_bytes - memory_bytes_) {
    failure_ = Failure::kMemory;
    return false;
  }
  memory_bytes_ += bytes;
  return true;
}

bool Meter::allow_text(std::size_t bytes) {
  if (bytes > limits_.text_bytes) {
    failure_ = Failure::kText;
    return false;
  }
  return true;
}

bool Meter::enter() {
  if (depth_ >= limits_.depth) {
    failure_ = Failure::kDepth;
    return false;
  }
  ++depth_;
  return true;
}

Error Meter::error() const {
  if (work_ != nullptr && work_->failed()) {
    return work_->status().error();
  }
  const auto bytes = [](std::size_t size) {
    return base::format_bytes(static_cast<std::int64_t>(size));
  };
  std::string message;
  switch (failure_) {
    case Failure::kNone:
      message = base::str_cat("rendering takes more than ", limits_.steps, " steps");
      break;
    case Failure::kMemory:
      message = base::str_cat("values take more than ", bytes(limits_.memory_bytes));
      break;
    case Failure::kText:
      message = base::str_cat("a string is longer than ", bytes(limits_.text_bytes));
      break;
    case Failure::kDepth:
      message = base::str_cat("evaluation is nested deeper than ", limits_.depth);
      break;
    case Failure::kContainerDepth:
      message = base::str_cat("lists and dicts nest deeper than ", kMaxContainerDepth);
      break;
  }
  return {.code = ErrorCode::kInvalidArgument, .message = std::move(message)};
}

}  // namespace quire::text::jinja
