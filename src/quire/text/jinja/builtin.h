// Filters, tests, methods and functions: rows of tables with names of their parameters, to which
// the arguments of a call are bound as Python binds them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

class Bound;

struct Builtin {
  std::string_view name;
  // `self` is the input of a filter or test, and what a method is called on; none for a function.
  Result<Value> (*run)(Runtime&, const Value& self, const Bound& bound);
  std::array<std::string_view, 4> parameters = {};  // empty names: fewer parameters
  std::size_t required = 0;                         // so many of them must be given
  bool takes_any = false;                           // reads Bound::given by itself

  // Binds and runs. kInvalidArgument naming the builtin for too many, unknown, doubled or missing
  // arguments.
  [[nodiscard]] Result<Value> call(Runtime& runtime, const Value& self,
                                   const Arguments& arguments) const;
};

// The arguments of one call, which it borrows.
struct Bound {
  const Builtin& builtin;
  const Arguments& given;
  std::array<const Value*, 4> values = {};  // by parameter; null when not given

  // Typed access; the fallback when not given. kInvalidArgument for another type.
  [[nodiscard]] Result<std::int64_t> integer(std::size_t index, std::int64_t fallback) const;
  // None counts as not given.
  [[nodiscard]] Result<std::optional<std::string_view>> text(std::size_t index) const;
  [[nodiscard]] bool boolean(std::size_t index) const;  // false when not given
};

// Null when there is none of that name.
[[nodiscard]] const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name);

}  // namespace quire::text::jinja
