#include "quire/text/jinja/methods.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/arguments.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

using Names = std::span<const std::string_view>;

Result<Value> dict_get(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("dict.get", arguments, {"key", "default"}, 1));
  if (!is_hashable(*bound[0])) {
    return invalid("unhashable type: ", type_name(*bound[0]));
  }
  if (const auto* found = find(runtime.meter(), *self.dict(), *bound[0])) {
    return *found;
  }
  return bound[1] == nullptr ? Value() : *bound[1];
}

template <SequenceKind kKind>
Result<Value> dict_view(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  SequenceBuilder view(&runtime.meter(), kKind);
  for (const auto& [key, value] : self.dict()->items) {
    if constexpr (kKind == SequenceKind::kItems) {
      SequenceBuilder pair(&runtime.meter(), SequenceKind::kTuple);
      pair.push(key);
      pair.push(value);
      view.push(std::move(pair).build());
    } else {
      view.push(kKind == SequenceKind::kKeys ? key : value);
    }
  }
  return std::move(view).build();
}

Result<Value> copy(Runtime& /*runtime*/, const Value& self, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  return self;
}

Result<Value> sequence_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("count", arguments, {"value"}, 1));
  const auto& items = self.sequence()->items;
  return Value::integer(std::count_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(&runtime.meter(), item, *bound[0]);
  }));
}

Result<Value> sequence_index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("index", arguments, {"value"}, 1));
  const auto& items = self.sequence()->items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(&runtime.meter(), item, *bound[0]);
  });
  if (found == items.end()) {
    return invalid("the value of index() is not in the ", type_name(self));
  }
  return Value::integer(found - items.begin());
}

constexpr Method kSequenceMethods[] = {
    {"count", sequence_count}, {"index", sequence_index}, {"copy", copy}};
constexpr Method kDictMethods[] = {{"get", dict_get},
                                   {"items", dict_view<SequenceKind::kItems>},
                                   {"keys", dict_view<SequenceKind::kKeys>},
                                   {"values", dict_view<SequenceKind::kValues>},
                                   {"copy", copy}};

// The attributes that Python's types have; those not in the tables above are unsupported.
constexpr std::string_view kStringAttributes[] = {
    "casefold",  "center",  "encode",    "expandtabs", "isidentifier",
    "isnumeric", "istitle", "maketrans", "translate",  "format_map"};
constexpr std::string_view kMarkupAttributes[] = {"escape", "striptags", "unescape"};
constexpr std::string_view kIntAttributes[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator",
    "from_bytes",       "imag",      "numerator",  "real",      "to_bytes"};
constexpr std::string_view kFloatAttributes[] = {
    "as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real"};
constexpr std::string_view kDictAttributes[] = {"fromkeys"};
constexpr std::string_view kRangeAttributes[] = {"start", "step", "stop"};
constexpr std::string_view kViewAttributes[] = {"isdisjoint", "mapping"};
constexpr std::string_view kGeneratorAttributes[] = {
    "close", "gi_code", "gi_frame", "gi_running", "gi_suspended", "gi_yieldfrom", "send", "throw"};
constexpr std::string_view kMacroAttributes[] = {"arguments",     "caller",          "catch_kwargs",
                                                 "catch_varargs", "explicit_caller", "name"};
// What the immutable sandbox forbids.
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMutators[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};

struct TypeAttributes {
  std::span<const Method> methods;
  Names forbidden;
  Names unsupported;
};

TypeAttributes sequence_attributes(SequenceKind kind) {
  const std::span<const Method> methods(kSequenceMethods);
  switch (kind) {
    case SequenceKind::kList:
      return {methods, kListMutators, {}};
    case SequenceKind::kTuple:
      return {methods.first(2), {}, {}};
    case SequenceKind::kRange:
      return {methods.first(2), {}, kRangeAttributes};
    case SequenceKind::kGenerator:
      return {{}, {}, kGeneratorAttributes};
    default:
      return {{}, {}, kViewAttributes};
  }
}

TypeAttributes attributes_of(const Value& value) {
  if (const auto* sequence = value.sequence()) {
    return sequence_attributes(sequence->kind);
  }
  if (value.text() != nullptr) {
    return {string_methods(), {}, kStringAttributes};
  }
  if (value.dict() != nullptr) {
    return {kDictMethods, kDictMutators, kDictAttributes};
  }
  if (value.as_integer()) {
    return {{}, {}, kIntAttributes};
  }
  if (value.get<double>() != nullptr) {
    return {{}, {}, kFloatAttributes};
  }
  if (value.get<std::shared_ptr<const Callable>>() != nullptr) {
    return {{}, {}, kMacroAttributes};
  }
  return {};
}

bool has(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Result<std::optional<Value>> find_method(Meter& meter, const Value& value, std::string_view name) {
  const TypeAttributes attributes = attributes_of(value);
  const auto* string = value.get<String>();
  const bool markup = string != nullptr && string->markup;
  const auto found = std::find_if(attributes.methods.begin(), attributes.methods.end(),
                                  [&](const Method& method) { return method.name == name; });
  if (found != attributes.methods.end() && (!markup || found->on_markup)) {
    const Method& method = *found;
    return std::optional<Value>(Value::callable(
        meter, {.description = base::str_cat("method '", name, "' of ", type_name(value)),
                .printed = "",
                .call = [self = value, &method](Runtime& runtime, const Arguments& arguments) {
                  return method.call(runtime, self, arguments);
                }}));
  }
  if (has(attributes.forbidden, name)) {
    return std::optional<Value>(
        Value::undefined(meter, base::str_cat("access to attribute '", name, "' of '",
                                              type_name(value), "' object is unsafe.")));
  }
  if (found != attributes.methods.end() || has(attributes.unsupported, name) ||
      (markup && has(kMarkupAttributes, name))) {
    return unsupported("attribute '", name, "' of ", type_name(value), " is not supported");
  }
  return std::optional<Value>();
}

}  // namespace quire::text::jinja
