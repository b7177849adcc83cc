#include "quire/engine/home_process.h"

#include <string_view>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::engine {

Status HomeProcess::check() const {
  return check("the LLM", "has no engine: open the model again there, or start it with \"spawn\"");
}

Status HomeProcess::check(std::string_view what, std::string_view way_out) const {
  if (!left()) {
    return {};
  }
  return {ErrorCode::kClosed,
          base::str_cat(what, " was opened in process ", process_, "; a forked child ", way_out)};
}

}  // namespace quire::engine
