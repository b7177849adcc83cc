#include "quire/tools.h"

#include <string>
#include <string_view>

#include "quire/base/home_path.h"
#include "quire/base/json.h"

namespace quire {

const char* version() { return QUIRE_VERSION; }

std::string expand_home(std::string_view path) { return base::home_path(path); }

std::string json_string(std::string_view text) { return base::write_json(base::Json(text)); }

}  // namespace quire
