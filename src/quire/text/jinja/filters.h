// The filters and tests of jinja2 that this subset has.
#pragma once

#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

using Filter = Result<Value> (*)(Runtime&, const Value&, const Arguments&);
using Test = Result<bool> (*)(Runtime&, const Value&, const Arguments&);

struct NamedFilter {
  std::string_view name;
  Filter call;
};
struct NamedTest {
  std::string_view name;
  Test call;
};

// Null when there is none of that name.
[[nodiscard]] Filter find_filter(std::string_view name);
[[nodiscard]] Test find_test(std::string_view name);

// Filters of values and text, and filters of lists.
[[nodiscard]] std::span<const NamedFilter> value_filters();
[[nodiscard]] std::span<const NamedFilter> sequence_filters();

}  // namespace quire::text::jinja
