// Truth, equality, order and membership as Python defines them. Every visited item is a step, so
// that shared nested lists cannot make a comparison endless.
#pragma once

#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

[[nodiscard]] inline bool is_number(const Value& value) { return value.as_number().has_value(); }

[[nodiscard]] bool truth(const Value& value);

// Any two values can be asked. `meter` may be null.
[[nodiscard]] bool equal(Meter* meter, const Value& a, const Value& b);

// a < b, a <= b, a > b or a >= b, by `op`. kInvalidArgument when the types have no order.
[[nodiscard]] Result<bool> compare_order(Meter& meter, std::string_view op, const Value& a,
                                         const Value& b);

// item in container. kInvalidArgument when the container is none.
[[nodiscard]] Result<bool> contains(Meter& meter, const Value& container, const Value& item);

// The entry of `key`, or null.
[[nodiscard]] const Value* find(Meter& meter, const Dict& dict, const Value& key);
[[nodiscard]] const Value* find(Meter& meter, const Dict& dict, std::string_view key);

}  // namespace quire::text::jinja
