// Python's int(), float() and round().
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// int(text, base); nullopt where Python raises ValueError. kInvalidArgument beyond 64 bits.
[[nodiscard]] Result<std::optional<std::int64_t>> parse_integer(std::string_view text,
                                                                std::int64_t base);
// float(text); nullopt where Python raises ValueError.
[[nodiscard]] std::optional<double> parse_real(std::string_view text);

// int(value). kInvalidArgument for infinities and beyond 64 bits.
[[nodiscard]] Result<Value> truncate_to_integer(double value);

// jinja2's |round: method "common" (half to even), "ceil" or "floor". kUnsupported for a negative
// precision.
[[nodiscard]] Result<Value> round_number(const Value& value, std::int64_t precision,
                                         std::string_view method);

}  // namespace quire::text::jinja
