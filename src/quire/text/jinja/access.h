// value.name, value[key] and value[a:b:c], as the sandbox of jinja2 resolves them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// The attribute, else the item of that key, else undefined. kInvalidArgument on undefined values,
// kUnsupported for an attribute that Python's type has and this subset has not.
[[nodiscard]] Result<Value> get_attribute(Meter& meter, const Value& value, std::string_view name);

// The item, else (for a string key) the attribute, else undefined; errors as get_attribute.
[[nodiscard]] Result<Value> get_item(Meter& meter, const Value& value, const Value& key);

// Start, stop and step; None means not given.
[[nodiscard]] Result<Value> get_slice(Meter& meter, const Value& value,
                                      const std::array<Value, 3>& bounds);

// The items that a for statement visits, in order; taken from the value if it is a generator.
// kInvalidArgument when it cannot be iterated.
[[nodiscard]] Result<SequencePtr> iterate(Meter& meter, const Value& value);

// len(value); nullopt when Python's type has none.
[[nodiscard]] std::optional<std::int64_t> length_of(const Value& value);

// An index range as Python's slices clamp it to [0, length].
struct IndexRange {
  std::int64_t start = 0;
  std::int64_t stop = 0;
};
[[nodiscard]] IndexRange clamp_range(std::optional<std::int64_t> start,
                                     std::optional<std::int64_t> stop, std::int64_t length);

}  // namespace quire::text::jinja
