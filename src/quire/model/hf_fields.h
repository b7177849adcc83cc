// Which fields of config.json are known: read, harmless, implemented for one value, or refused.
#pragma once

#include <string>
#include <string_view>

#include "quire/base/json.h"
#include "quire/model/family.h"
#include "quire/result.h"

namespace quire::model {

// kUnsupported naming the first field that may change the result and is not implemented. A field
// that is null counts as absent.
[[nodiscard]] Status check_fields(const base::json::object& config, const Family& family);
// The same inside of the block of rotary fields, which is called `block_name` in errors.
[[nodiscard]] Status check_rope_fields(const base::json::object& block,
                                       std::string_view block_name);

// The value as JSON, quoted and cut, for messages.
[[nodiscard]] std::string shown_json(const base::json::value& value);

}  // namespace quire::model
