// Arguments of a call, bound to parameters as Python binds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

class BoundArguments {
 public:
  // Binds to parameters of these names, of which the first `required` must be given.
  // kInvalidArgument naming `function` for too many, unknown, doubled or missing arguments.
  [[nodiscard]] static Result<BoundArguments> bind(std::string_view function,
                                                   const Arguments& arguments,
                                                   std::initializer_list<std::string_view> names,
                                                   std::size_t required = 0);

  // Null when not given.
  [[nodiscard]] const Value* operator[](std::size_t index) const { return values_[index]; }
  // The same, with None counting as not given.
  [[nodiscard]] const Value* optional(std::size_t index) const;

  // Typed access; `fallback` when not given. kInvalidArgument for another type.
  [[nodiscard]] Result<std::int64_t> integer(std::size_t index, std::int64_t fallback) const;
  [[nodiscard]] Result<TextPtr> text(std::size_t index) const;  // must be given
  [[nodiscard]] bool boolean(std::size_t index, bool fallback) const;

 private:
  [[nodiscard]] Error wrong_type(std::size_t index, std::string_view wanted) const;

  std::string function_;
  std::vector<std::string_view> names_;
  std::vector<const Value*> values_;  // of the arguments, which must outlive this
};

// kInvalidArgument when there is any argument.
Status no_arguments(const Arguments& arguments);

}  // namespace quire::text::jinja
