#include "quire/engine/home_process.h"

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::engine {

Status HomeProcess::check() const {
  if (!left()) {
    return {};
  }
  return {ErrorCode::kClosed,
          base::str_cat("the LLM was opened in process ", process_,
                        "; a forked child has no engine: open the model again there, or start it "
                        "with \"spawn\"")};
}

}  // namespace quire::engine
