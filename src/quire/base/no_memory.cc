#include "quire/base/no_memory.h"

#include <new>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::base {

Error no_memory(const char* what) noexcept {
  Error error{.code = ErrorCode::kOutOfBlocks};
  try {
    error.message = str_cat("the machine has no memory left for ", what,
                            "; end other programs, lower kv_budget or max_batch_tokens, or give it "
                            "less to do at once");
  } catch (const std::bad_alloc&) {
    error.message = "out of memory";  // fits into the string itself
  }
  return error;
}

Error copy_of(const Error& error) noexcept {
  try {
    return error;
  } catch (const std::bad_alloc&) {
    return no_memory("the error of a request");
  }
}

}  // namespace quire::base
