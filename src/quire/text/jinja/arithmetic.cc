#include "quire/text/jinja/arithmetic.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/format.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/string_ops.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

constexpr std::array<std::string_view, 7> kSigns = {"+", "-", "*", "/", "//", "%", "**"};

std::string_view sign(Operator op) { return kSigns[static_cast<std::size_t>(op)]; }

Error overflow(Operator op) { return invalid("result of '", sign(op), "' is beyond 64 bits"); }

Error zero_division(Operator op) { return invalid("division by zero in '", sign(op), "'"); }

// Rounds towards minus infinity. Precondition: b != 0, no overflow.
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) {
    return std::copysign(0.0, b);
  }
  return (rest < 0) == (b < 0) ? rest : rest + b;
}

// CPython's float floor division: the quotient of what floor_modulo leaves, rounded.
double floor_divide(double a, double b) {
  const double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    quotient -= 1;
  }
  if (quotient == 0) {
    return std::copysign(0.0, a / b);
  }
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

Result<Value> integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) {
      return zero_division(Operator::kPower);
    }
    return Value::real(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  for (std::int64_t square = base; exponent > 0; exponent /= 2) {
    if (exponent % 2 == 1 && __builtin_mul_overflow(result, square, &result)) {
      return overflow(Operator::kPower);
    }
    if (exponent > 1 && __builtin_mul_overflow(square, square, &square)) {
      return overflow(Operator::kPower);
    }
  }
  return Value::integer(result);
}

Result<Value> apply_integers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) {
    return zero_division(op);
  }
  switch (op) {
    case Operator::kAdd:
      return __builtin_add_overflow(a, b, &result) ? Result<Value>(overflow(op))
                                                   : Value::integer(result);
    case Operator::kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? Result<Value>(overflow(op))
                                                   : Value::integer(result);
    case Operator::kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? Result<Value>(overflow(op))
                                                   : Value::integer(result);
    case Operator::kDivide:
      return Value::real(
          static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
    case Operator::kFloorDivide:
      if (b == -1) {
        return apply_integers(Operator::kSubtract, 0, a);
      }
      return Value::integer(floor_divide(a, b));
    case Operator::kModulo:
      return Value::integer(b == -1 ? 0 : a - (floor_divide(a, b) * b));
    case Operator::kPower:
      break;
  }
  return integer_power(a, b);
}

Result<Value> real_power(double a, double b) {
  if (a == 0 && b < 0) {
    return zero_division(Operator::kPower);
  }
  const double result = std::pow(a, b);
  if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) {
    return unsupported("complex numbers are not supported: a power of a negative number");
  }
  if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) {
    return invalid("result of '**' is too large");
  }
  return Value::real(result);
}

Result<Value> apply_reals(Operator op, double a, double b) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b == 0) {
    return zero_division(op);
  }
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kDivide:
      return Value::real(a / b);
    case Operator::kFloorDivide:
      return Value::real(floor_divide(a, b));
    case Operator::kModulo:
      return Value::real(floor_modulo(a, b));
    case Operator::kPower:
      break;
  }
  return real_power(a, b);
}

Value concatenate(Meter& meter, const String& left, const String& right) {
  const bool markup = left.markup || right.markup;
  TextBuilder out(&meter);
  out.append(markup && !left.markup ? *escape_html(meter, *left.text) : *left.text);
  out.append(markup && !right.markup ? *escape_html(meter, *right.text) : *right.text);
  return Value::string(std::move(out).build(), markup);
}

bool is_list_or_tuple(const Sequence* sequence) {
  return sequence != nullptr && sequence->kind <= SequenceKind::kTuple;
}

Value repeat(Meter& meter, const Sequence& sequence, std::int64_t count) {
  SequenceBuilder out(&meter, sequence.kind);
  if (!sequence.items.empty()) {
    for (; count > 0 && !meter.failed(); --count) {
      for (const auto& item : sequence.items) {
        out.push(item);
      }
    }
  }
  return std::move(out).build();
}

Value repeat(Meter& meter, const String& string, std::int64_t count) {
  TextBuilder out(&meter);
  const std::size_t size = string.text->size_bytes();
  std::size_t total = 0;
  if (count > 0 && __builtin_mul_overflow(size, static_cast<std::size_t>(count), &total)) {
    total = SIZE_MAX;
  }
  if (size != 0 && meter.allow_text(total)) {
    for (; count > 0 && !meter.failed(); --count) {
      out.append(*string.text);
    }
  }
  return Value::string(std::move(out).build(), string.markup);
}

// + and * of strings, lists and tuples; % of a string. An error when `op` is none of these.
Result<Value> apply_other(Meter& meter, Operator op, const Value& left, const Value& right) {
  const auto* string = left.get<String>();
  const Sequence* list = left.sequence();
  if (op == Operator::kModulo && string != nullptr) {
    return format_percent(meter, *string, right);
  }
  if (op == Operator::kAdd && string != nullptr && right.text() != nullptr) {
    return concatenate(meter, *string, *right.get<String>());
  }
  if (op == Operator::kAdd && is_list_or_tuple(list) && right.sequence() != nullptr &&
      right.sequence()->kind == list->kind) {
    SequenceBuilder out(&meter, list->kind);
    for (const Sequence* part : {list, static_cast<const Sequence*>(right.sequence())}) {
      for (const auto& item : part->items) {
        out.push(item);
      }
    }
    return std::move(out).build();
  }
  if (op == Operator::kMultiply) {
    if (left.as_integer()) {
      return right.text() != nullptr || is_list_or_tuple(right.sequence())
                 ? apply_other(meter, op, right, left)
                 : Result<Value>(invalid("cannot multiply int by ", type_name(right)));
    }
    const auto count = right.as_integer();
    if (count && string != nullptr) {
      return repeat(meter, *string, *count);
    }
    if (count && is_list_or_tuple(list)) {
      return repeat(meter, *list, *count);
    }
  }
  return invalid("unsupported operand types for ", sign(op), ": ", type_name(left), " and ",
                 type_name(right));
}

}  // namespace

Result<Value> apply(Meter& meter, Operator op, const Value& left, const Value& right) {
  const bool formats = op == Operator::kModulo && left.text() != nullptr;
  for (const auto* side : {&left, &right}) {
    if (const auto* undefined = side->get<Undefined>(); undefined != nullptr && !formats) {
      return invalid(undefined->message());
    }
  }
  const auto int_left = left.as_integer();
  const auto int_right = right.as_integer();
  if (int_left && int_right) {
    return apply_integers(op, *int_left, *int_right);
  }
  const auto number_left = left.as_number();
  const auto number_right = right.as_number();
  if (number_left && number_right) {
    return apply_reals(op, *number_left, *number_right);
  }
  return apply_other(meter, op, left, right);
}

Result<Value> negate(const Value& value) {
  if (const auto integer = value.as_integer()) {
    return apply_integers(Operator::kSubtract, 0, *integer);
  }
  if (const auto* real = value.get<double>()) {
    return Value::real(-*real);
  }
  if (const auto* undefined = value.get<Undefined>()) {
    return invalid(undefined->message());
  }
  return invalid("bad operand type for unary -: ", type_name(value));
}

Result<Value> plus(const Value& value) {
  if (const auto integer = value.as_integer()) {
    return Value::integer(*integer);
  }
  if (value.get<double>() != nullptr) {
    return value;
  }
  if (const auto* undefined = value.get<Undefined>()) {
    return invalid(undefined->message());
  }
  return invalid("bad operand type for unary +: ", type_name(value));
}

}  // namespace quire::text::jinja
