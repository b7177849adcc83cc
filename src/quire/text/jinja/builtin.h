// Filters, tests, methods and functions are rows of tables with names of their parameters. The
// arguments of a call are bound to these as Python binds them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"

namespace quire::text::jinja {

struct Call;

struct Builtin {
  std::string_view name;
  Result<Value> (*run)(const Call& call);
  std::array<std::string_view, 4> parameters = {};  // empty names: fewer parameters
  std::size_t required = 0;                         // parameters that must be given
  bool takes_any = false;                           // reads Call::given by itself

  // Binds and runs. Errors name the builtin: kUnsupported for too many or unknown arguments,
  // kInvalidArgument for doubled or missing ones.
  Result<Value> call(Runtime& runtime, const Value& self, const Arguments& given) const;
};

// One call of a builtin. Borrows everything.
struct Call {
  const Builtin& builtin;
  Runtime& runtime;
  Meter& meter;
  const Value& self;  // input of a filter or test, what a method is called on; none for a function
  const Arguments& given;
  std::array<const Value*, 4> bound = {};  // by parameter; null when not given

  // Reads an argument of a type. The fallback, nothing or false when it is not given.
  // kInvalidArgument for other types.
  Result<std::int64_t> integer(std::size_t index, std::int64_t fallback) const;
  Result<std::optional<std::string_view>> text(std::size_t index) const;
  [[nodiscard]] bool boolean(std::size_t index) const;
};

// Returns the builtin as a value to call. `description` is for messages; the builtin is static.
[[nodiscard]] Value bind_builtin(Meter& meter, std::string description, const Builtin& builtin,
                                 Value self);

// Finds a builtin. Returns null when there is none of that name.
[[nodiscard]] const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name);

}  // namespace quire::text::jinja
