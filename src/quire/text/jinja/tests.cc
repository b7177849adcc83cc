#include <cmath>
#include <cstdint>
#include <memory>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/access.h"
#include "quire/text/jinja/arguments.h"
#include "quire/text/jinja/arithmetic.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/filters.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

template <bool (*kHolds)(const Value&)>
Result<bool> simple(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  return kHolds(value);
}

bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }
bool is_boolean(const Value& value) { return value.get<bool>() != nullptr; }
bool is_true(const Value& value) { return is_boolean(value) && truth(value); }
bool is_false(const Value& value) { return is_boolean(value) && !truth(value); }
bool is_integer(const Value& value) { return value.get<std::int64_t>() != nullptr; }
bool is_float(const Value& value) { return value.get<double>() != nullptr; }
bool is_string(const Value& value) { return value.text() != nullptr; }
bool is_mapping(const Value& value) { return value.dict() != nullptr; }
bool is_escaped(const Value& value) { return is_string(value) && value.get<String>()->markup; }
// Undefined values have __call__, which raises.
bool is_callable(const Value& value) {
  return value.get<std::shared_ptr<const Callable>>() != nullptr || value.is_undefined() ||
         value.get<std::shared_ptr<LoopContext>>() != nullptr;
}
bool is_iterable(const Value& value) {
  return value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr ||
         value.is_undefined() || value.get<std::shared_ptr<LoopContext>>() != nullptr;
}
// Has a length and items by index: views of dicts have the one and not the other.
bool is_sequence(const Value& value) {
  const auto* sequence = value.sequence();
  return sequence != nullptr ? sequence->kind <= SequenceKind::kRange
                             : length_of(value).has_value();
}

Result<bool> remainder_is(Meter& meter, const Value& value, const Value& divisor,
                          std::int64_t wanted) {
  QUIRE_TRY(const auto rest, apply(meter, Operator::kModulo, value, divisor));
  return equal(&meter, rest, Value::integer(wanted));
}

template <std::int64_t kRemainder>
Result<bool> test_parity(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  return remainder_is(runtime.meter(), value, Value::integer(2), kRemainder);
}

Result<bool> test_divisible(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("divisibleby", arguments, {"num"}, 1));
  return remainder_is(runtime.meter(), value, *bound[0], 0);
}

template <bool kUpper>
Result<bool> test_case(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  QUIRE_TRY(const auto text, to_text(runtime.meter(), value));
  return is_all_of_case(text->view(), kUpper);
}

template <bool kEqual>
Result<bool> test_equal(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("eq", arguments, {"other"}, 1));
  return equal(&runtime.meter(), value, *bound[0]) == kEqual;
}

enum class Order : std::uint8_t { kLess, kLessEqual, kGreater, kGreaterEqual };

template <Order kOrder>
Result<bool> test_order(Runtime& runtime, const Value& value, const Arguments& arguments) {
  constexpr std::string_view kSigns[] = {"<", "<=", ">", ">="};
  constexpr std::string_view kSign = kSigns[static_cast<int>(kOrder)];
  QUIRE_TRY(const auto bound, BoundArguments::bind(kSign, arguments, {"other"}, 1));
  return compare_order(runtime.meter(), kSign, value, *bound[0]);
}

Result<bool> test_in(Runtime& runtime, const Value& value, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("in", arguments, {"seq"}, 1));
  return contains(runtime.meter(), *bound[0], value);
}

// Identity, where Python promises it: none, booleans, and one and the same container.
Result<bool> test_sameas(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("sameas", arguments, {"other"}, 1));
  const Value& other = *bound[0];
  if (value.data().index() != other.data().index()) {
    return false;
  }
  if (value.is_none() || is_boolean(value)) {
    return truth(value) == truth(other);
  }
  if (value.sequence() != nullptr || value.dict() != nullptr) {
    return value.sequence() == other.sequence() && value.dict() == other.dict();
  }
  return unsupported("the test 'sameas' is not supported for ", type_name(value));
}

Result<bool> test_filter(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  return value.text() != nullptr && find_filter(value.text()->view()) != nullptr;
}

Result<bool> test_test(Runtime& /*runtime*/, const Value& value, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  return value.text() != nullptr && find_test(value.text()->view()) != nullptr;
}

constexpr NamedTest kTests[] = {
    {"!=", test_equal<false>},
    {"<", test_order<Order::kLess>},
    {"<=", test_order<Order::kLessEqual>},
    {"==", test_equal<true>},
    {">", test_order<Order::kGreater>},
    {">=", test_order<Order::kGreaterEqual>},
    {"boolean", simple<is_boolean>},
    {"callable", simple<is_callable>},
    {"defined", simple<is_defined>},
    {"divisibleby", test_divisible},
    {"eq", test_equal<true>},
    {"equalto", test_equal<true>},
    {"escaped", simple<is_escaped>},
    {"even", test_parity<0>},
    {"false", simple<is_false>},
    {"filter", test_filter},
    {"float", simple<is_float>},
    {"ge", test_order<Order::kGreaterEqual>},
    {"greaterthan", test_order<Order::kGreater>},
    {"gt", test_order<Order::kGreater>},
    {"in", test_in},
    {"integer", simple<is_integer>},
    {"iterable", simple<is_iterable>},
    {"le", test_order<Order::kLessEqual>},
    {"lessthan", test_order<Order::kLess>},
    {"lower", test_case<false>},
    {"lt", test_order<Order::kLess>},
    {"mapping", simple<is_mapping>},
    {"ne", test_equal<false>},
    {"none", simple<is_none>},
    {"number", simple<is_number>},
    {"odd", test_parity<1>},
    {"sameas", test_sameas},
    {"sequence", simple<is_sequence>},
    {"string", simple<is_string>},
    {"test", test_test},
    {"true", simple<is_true>},
    {"undefined", simple<is_undefined>},
    {"upper", test_case<true>},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const auto& test : kTests) {
    if (test.name == name) {
      return test.call;
    }
  }
  return nullptr;
}

}  // namespace quire::text::jinja
