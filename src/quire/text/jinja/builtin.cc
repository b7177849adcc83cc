#include "quire/text/jinja/builtin.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

Status bind(Bound& bound) {
  const auto& names = bound.builtin.parameters;
  const auto count = static_cast<std::size_t>(std::ranges::find(names, "") - names.begin());
  const std::string_view name = bound.builtin.name;
  if (bound.given.positional.size() > count) {
    return unsupported("argument ", count + 1, " of '", name, "'");
  }
  for (std::size_t i = 0; i < bound.given.positional.size(); ++i) {
    bound.values[i] = &bound.given.positional[i];
  }
  for (const auto& [parameter, value] : bound.given.named) {
    const auto index =
        static_cast<std::size_t>(std::ranges::find(names, parameter) - names.begin());
    if (index >= count) {
      return unsupported("the parameter '", parameter, "' of '", name, "'");
    }
    if (bound.values[index] != nullptr) {
      return invalid("'", name, "' got two values for '", parameter, "'");
    }
    bound.values[index] = &value;
  }
  for (std::size_t i = 0; i < bound.builtin.required; ++i) {
    if (bound.values[i] == nullptr) {
      return invalid("'", name, "' needs the argument '", names[i], "'");
    }
  }
  return {};
}

Error wrong_type(const Bound& bound, std::size_t index, std::string_view wanted) {
  const Value& value = *bound.values[index];
  const Status defined = check_defined(value);
  return defined.ok() ? invalid("'", bound.builtin.name, "' needs ", wanted, " as '",
                                bound.builtin.parameters[index], "', got ", type_name(value))
                      : defined.error();
}

}  // namespace

Result<Value> Builtin::call(Runtime& runtime, const Value& self, const Arguments& arguments) const {
  Bound bound{.builtin = *this, .given = arguments};
  if (!takes_any) {
    QUIRE_TRY_STATUS(bind(bound));
  }
  return run(runtime, self, bound);
}

Result<std::int64_t> Bound::integer(std::size_t index, std::int64_t fallback) const {
  const auto integer = values[index] == nullptr ? fallback : values[index]->as_integer();
  return integer ? Result<std::int64_t>(*integer) : wrong_type(*this, index, "an integer");
}

Result<std::optional<std::string_view>> Bound::text(std::size_t index) const {
  if (values[index] == nullptr || values[index]->is_none()) {
    return std::optional<std::string_view>();
  }
  const auto* text = values[index]->text();
  return text == nullptr
             ? Result<std::optional<std::string_view>>(wrong_type(*this, index, "a string"))
             : std::optional(text->view());
}

bool Bound::boolean(std::size_t index) const {
  return values[index] != nullptr && truth(*values[index]);
}

const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Builtin::name);
  return found == table.end() ? nullptr : &*found;
}

}  // namespace quire::text::jinja
