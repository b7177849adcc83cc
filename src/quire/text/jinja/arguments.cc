#include "quire/text/jinja/arguments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

Result<BoundArguments> BoundArguments::bind(std::string_view function, const Arguments& arguments,
                                            std::initializer_list<std::string_view> names,
                                            std::size_t required) {
  BoundArguments bound;
  bound.function_ = function;
  bound.names_ = names;
  bound.values_.resize(names.size(), nullptr);
  if (arguments.positional.size() > names.size()) {
    return invalid(function, " takes at most ", names.size(), " arguments, got ",
                   arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return invalid(function, " has no parameter '", name, "'");
    }
    const auto index = static_cast<std::size_t>(found - names.begin());
    if (bound.values_[index] != nullptr) {
      return invalid(function, " got two values for '", name, "'");
    }
    bound.values_[index] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound.values_[i] == nullptr) {
      return invalid(function, " needs the argument '", bound.names_[i], "'");
    }
  }
  return bound;
}

const Value* BoundArguments::optional(std::size_t index) const {
  const Value* value = values_[index];
  return value == nullptr || value->is_none() ? nullptr : value;
}

Result<std::int64_t> BoundArguments::integer(std::size_t index, std::int64_t fallback) const {
  if (values_[index] == nullptr) {
    return fallback;
  }
  if (const auto integer = values_[index]->as_integer()) {
    return *integer;
  }
  return wrong_type(index, "an integer");
}

Result<TextPtr> BoundArguments::text(std::size_t index) const {
  if (const auto* string = values_[index]->get<String>()) {
    return string->text;
  }
  return wrong_type(index, "a string");
}

bool BoundArguments::boolean(std::size_t index, bool fallback) const {
  return values_[index] == nullptr ? fallback : truth(*values_[index]);
}

Error BoundArguments::wrong_type(std::size_t index, std::string_view wanted) const {
  if (const auto* undefined = values_[index]->get<Undefined>()) {
    return invalid(undefined->message());
  }
  return invalid(function_, " needs ", wanted, " as '", names_[index], "', got ",
                 type_name(*values_[index]));
}

Status no_arguments(const Arguments& arguments) {
  if (!arguments.positional.empty() || !arguments.named.empty()) {
    return invalid("no arguments are taken here, got ",
                   arguments.positional.size() + arguments.named.size());
  }
  return {};
}

}  // namespace quire::text::jinja
