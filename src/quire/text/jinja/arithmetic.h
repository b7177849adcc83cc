// The operators + - * / // % ** and unary - +, as Python defines them; integers beyond 64 bits are
// refused.
#pragma once

#include <cstdint>

#include "quire/result.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

enum class Operator : std::uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};

// kInvalidArgument for types that have no such operator, overflow and division by zero.
[[nodiscard]] Result<Value> apply(Meter& meter, Operator op, const Value& left, const Value& right);
[[nodiscard]] Result<Value> negate(const Value& value);
[[nodiscard]] Result<Value> plus(const Value& value);

}  // namespace quire::text::jinja
