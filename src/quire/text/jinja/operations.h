// Operators, attributes, items, slices and methods of values, as Python and the sandbox of jinja2
// define them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"

namespace quire::text::jinja {

enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn
};

// Computes an operator. kInvalidArgument for types that have no such operator, results beyond 64
// bits and division by zero. kUnsupported for arithmetic of floats, lists times numbers, and % of a
// string but for %s.
Result<Value> apply(Meter& meter, Operator op, const Value& left, const Value& right);
Result<Value> negate(const Value& value);

// Returns the attribute, else the item of that key, else undefined. kInvalidArgument on undefined
// values.
Result<Value> get_attribute(Meter& meter, const Value& value, std::string_view name);
// Returns the item, else (for a string key) the attribute, else undefined; errors as get_attribute.
Result<Value> get_item(Meter& meter, const Value& value, const Value& key);
// Returns a slice. `bounds` are start, stop and step; None means not given. kUnsupported for steps
// but 1, and -1 of a whole list.
Result<Value> get_slice(Meter& meter, const Value& value, const std::array<Value, 3>& bounds);

}  // namespace quire::text::jinja
