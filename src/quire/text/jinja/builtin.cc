#include "quire/text/jinja/builtin.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"

namespace quire::text::jinja {
namespace {

Status bind(Call& call) {
  const auto& [name, run, names, required, takes_any] = call.builtin;
  const auto count = static_cast<std::size_t>(std::ranges::find(names, "") - names.begin());
  const auto& positional = call.given.positional;
  if (positional.size() > count) {
    return unsupported("argument ", count + 1, " of '", name, "'");
  }
  for (std::size_t i = 0; i < positional.size(); ++i) {
    call.bound[i] = &positional[i];
  }
  for (const auto& [parameter, value] : call.given.named) {
    const auto at = static_cast<std::size_t>(std::ranges::find(names, parameter) - names.begin());
    if (at >= count) {
      return unsupported("the parameter '", parameter, "' of '", name, "'");
    }
    if (call.bound[at] != nullptr) {
      return invalid("'", name, "' got two values for '", parameter, "'");
    }
    call.bound[at] = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (call.bound[i] == nullptr) {
      return invalid("'", name, "' needs the argument '", names[i], "'");
    }
  }
  return {};
}

Error wrong_type(const Call& call, std::size_t index, std::string_view wanted) {
  const Status defined = check_defined(*call.bound[index]);
  return !defined.ok()
             ? defined.error()
             : invalid("'", call.builtin.name, "' needs ", wanted, " as '",
                       call.builtin.parameters[index], "', got ", type_name(*call.bound[index]));
}

}  // namespace

Result<Value> Builtin::call(Runtime& runtime, const Value& self, const Arguments& given) const {
  Call call{*this, runtime, runtime.meter(), self, given};
  if (!takes_any) {
    QUIRE_TRY_STATUS(bind(call));
  }
  return run(call);
}

Result<std::int64_t> Call::integer(std::size_t index, std::int64_t fallback) const {
  const auto integer = bound[index] == nullptr ? fallback : bound[index]->as_integer();
  return integer ? Result<std::int64_t>(*integer) : wrong_type(*this, index, "an integer");
}

Result<std::optional<std::string_view>> Call::text(std::size_t index) const {
  if (bound[index] == nullptr || (bound[index]->is_none() && index >= builtin.required)) {
    return std::optional<std::string_view>();
  }
  if (bound[index]->text() == nullptr) {
    return wrong_type(*this, index, "a string");
  }
  return std::optional(bound[index]->text()->view());
}

bool Call::boolean(std::size_t index) const {
  return bound[index] != nullptr && truth(*bound[index]);
}

Value bind_builtin(Meter& meter, std::string description, const Builtin& builtin, Value self) {
  return Value::callable(
      meter, {.description = std::move(description),
              .call = [&builtin, self = std::move(self)](Runtime& runtime, const Arguments& given) {
                return builtin.call(runtime, self, given);
              }});
}

const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Builtin::name);
  return found == table.end() ? nullptr : &*found;
}

}  // namespace quire::text::jinja
