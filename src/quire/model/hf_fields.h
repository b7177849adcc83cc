// Which fields of config.json are known: read, harmless, implemented for one value, or refused.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "quire/base/json.h"
#include "quire/model/family.h"

namespace quire::model {

// Messages about what is not implemented, in the order in which it was found.
using Refused = std::vector<std::string>;

// Adds every field that may change the result and is not implemented. A field that is null counts
// as absent; a field of an unknown name that is false, 0 or empty switches nothing on.
void check_fields(base::JsonView config, const Family& family, Refused& refused);
// Does so for the outer fields of a model whose text part is of the family.
void check_wrapper_fields(base::JsonView wrapper, const Family& family, Refused& refused);
// Checks the block of rotary fields so, which is called `block_name` in messages.
void check_rope_fields(base::JsonView block, std::string_view block_name, const Family& family,
                       Refused& refused);

// Returns the value as JSON, quoted and cut, for messages.
[[nodiscard]] std::string shown_json(base::JsonView value);

}  // namespace quire::model
