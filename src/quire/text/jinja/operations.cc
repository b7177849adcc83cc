#include "quire/text/jinja/operations.h"

#include <algorithm>
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

// ---- operators

std::string_view sign(Operator op) {
  constexpr std::array<std::string_view, 14> kSigns = {
      "+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSigns[static_cast<std::size_t>(op)];
}

Result<Value> apply_integers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflow = false;
  if (op == Operator::kAdd) {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == Operator::kSubtract) {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == Operator::kMultiply) {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == Operator::kDivide) {
    return Value::real(static_cast<double>(static_cast<long double>(a) / b));
  } else if (b == -1) {  // dividing the smallest integer by it overflows
    overflow = op == Operator::kFloorDivide && __builtin_sub_overflow(0, a, &result);
  } else {
    // Rounds towards minus infinity.
    const std::int64_t quotient = (a / b) - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
    result = op == Operator::kFloorDivide ? quotient : a - (quotient * b);
  }
  return overflow ? Result<Value>(invalid("result of '", sign(op), "' is beyond 64 bits"))
                  : Value::integer(result);
}

// Computes "..{}..".format(*arguments), or with `percent`, "..%s.." % arguments. Literal parts keep
// the sources of the format, inserted ones those of their values.
Result<Value> format_text(Meter& meter, const String& format, std::span<const Value> arguments,
                          bool percent) {
  const std::string_view view = format.text->view();
  TextBuilder out(&meter);
  std::size_t used = 0;
  for (std::size_t at = 0; at < view.size() && !meter.failed();) {
    const std::size_t mark = std::min(view.find_first_of(percent ? "%" : "{}", at), view.size());
    const std::string_view field = view.substr(mark, 2);
    out.append(*format.text, at, mark);
    at = mark + 2;
    if (field == "%%" || field == "{{" || field == "}}") {
      out.append(*format.text, mark, mark + 1);
    } else if (format.markup || (!field.empty() && field != "%s" && field != "{}")) {
      return unsupported("the field '", field, "' of a format, or a format made by |safe,");
    } else if (!field.empty() && used == arguments.size()) {
      return invalid("not enough arguments for the format: ", used, " given");
    } else if (!field.empty()) {
      QUIRE_TRY_STATUS(append_str(meter, arguments[used++], out));
    }
  }
  if (percent && used != arguments.size()) {
    return invalid("not all arguments were converted by the format");
  }
  return Value::string(std::move(out).build());
}

// Returns the entity of an HTML character, or nothing.
std::string html_entity(char32_t code) {
  constexpr std::array<std::string_view, 5> kEntities = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  const std::size_t at = std::u32string_view(U"&<>'\"").find(code);
  return std::string(at < kEntities.size() ? kEntities[at] : std::string_view());
}

Value concatenate(Meter& meter, const String& left, const String& right) {
  const bool markup = left.markup || right.markup;
  TextBuilder out(&meter);
  for (const String* side : {&left, &right}) {
    const bool escapes = markup && !side->markup;
    append_escaped(meter, *side->text, out,
                   [&](char32_t code) { return escapes ? html_entity(code) : std::string(); });
  }
  return Value::string(std::move(out).build(), markup);
}

Error no_operator(Operator op, const Value& left, const Value& right) {
  return invalid("unsupported operand types for ", sign(op), ": ", type_name(left), " and ",
                 type_name(right));
}

Result<Value> add(Meter& meter, const Value& left, const Value& right) {
  if (left.text() != nullptr && right.text() != nullptr) {
    return concatenate(meter, *left.get<String>(), *right.get<String>());
  }
  const auto *a = left.sequence(), *b = right.sequence();
  if (a == nullptr || b == nullptr || a->kind != b->kind || a->kind > SequenceKind::kTuple) {
    return no_operator(Operator::kAdd, left, right);
  }
  SequenceBuilder out(meter, a->kind);
  for (const Sequence* part : {a, b}) {
    for (const auto& item : part->items) {
      out.push(item);
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
  for (; count > 0 && size != 0 && meter.allow_text(total) && !meter.failed(); --count) {
    out.append(*string.text);
  }
  return Value::string(std::move(out).build(), string.markup);
}

// Applies the operator to operands that are no two integers.
Result<Value> apply_others(Meter& meter, Operator op, const Value& left, const Value& right) {
  if (left.as_number() && right.as_number()) {
    return unsupported("'", sign(op), "' of floats");
  }
  if (op == Operator::kAdd) {
    return add(meter, left, right);
  }
  const Value& repeated = left.as_integer() ? right : left;
  const auto count = (left.as_integer() ? left : right).as_integer();
  if (op != Operator::kMultiply || !count ||
      (repeated.text() == nullptr && repeated.sequence() == nullptr)) {
    return no_operator(op, left, right);
  }
  return repeated.text() != nullptr ? repeat(meter, *repeated.get<String>(), *count)
                                    : Result<Value>(unsupported("repeating a list by '*'"));
}

Result<Value> arithmetic(Meter& meter, Operator op, const Value& left, const Value& right) {
  if (op == Operator::kModulo && left.text() != nullptr) {
    const auto* tuple = right.sequence();
    const bool several = tuple != nullptr && tuple->kind == SequenceKind::kTuple;
    const auto arguments = several ? std::span(tuple->items) : std::span(&right, 1);
    return format_text(meter, *left.get<String>(), arguments, true);
  }
  QUIRE_TRY_STATUS(check_defined(left));
  QUIRE_TRY_STATUS(check_defined(right));
  const auto a = left.as_integer();
  const auto b = right.as_integer();
  if (!a || !b) {
    return apply_others(meter, op, left, right);
  }
  if (op >= Operator::kDivide && *b == 0) {
    return invalid("division by zero in '", sign(op), "'");
  }
  return apply_integers(op, *a, *b);
}

// ---- methods, attributes, items and slices

const TextPtr& text_of(const Value& self) { return self.get<String>()->text; }

template <Case kTo>
Result<Value> cased(const Call& call) {
  return Value::string(change_case(call.meter, *text_of(call.self), kTo));
}

template <Side kSide>
Result<Value> stripped(const Call& call) {
  QUIRE_TRY(const auto characters, call.text(0));
  return Value::string(strip(call.meter, text_of(call.self), characters, kSide));
}

Result<Value> split_method(const Call& call) {
  QUIRE_TRY(const auto separator, call.text(0));
  QUIRE_TRY(const auto max_splits, call.integer(1, -1));
  if (!separator || separator->empty()) {
    return unsupported("split() without a separator");
  }
  SequenceBuilder out(call.meter);
  for (auto& part : split(call.meter, text_of(call.self), *separator, max_splits)) {
    out.push(Value::string(std::move(part)));
  }
  return std::move(out).build();
}

Result<Value> replaced(const Call& call) {
  QUIRE_TRY(const auto from, call.text(0));
  QUIRE_TRY([[maybe_unused]] const auto to, call.text(1));
  QUIRE_TRY(const auto count, call.integer(2, -1));
  const Text& inserted = *call.bound[1]->text();
  return Value::string(
      replace(call.meter, *text_of(call.self), from.value_or(""), inserted, count));
}

template <bool kPrefix>
Result<Value> has_affix(const Call& call) {
  QUIRE_TRY(const auto given, call.text(0));
  const std::string_view affix = given.value_or("");
  call.meter.step_bytes(affix.size());
  const std::string_view view = text_of(call.self)->view();
  return Value::boolean(kPrefix ? view.starts_with(affix) : view.ends_with(affix));
}

Result<Value> format_method(const Call& call) {
  return call.given.named.empty()
             ? format_text(call.meter, *call.self.get<String>(), call.given.positional, false)
             : unsupported("a named argument of format()");
}

Result<Value> dict_get(const Call& call) {
  QUIRE_TRY_STATUS(check_hashable(*call.bound[0]));
  const auto* found = find(call.meter, *call.self.dict(), *call.bound[0]);
  return found != nullptr ? *found : call.bound[1] == nullptr ? Value() : *call.bound[1];
}

template <bool kKeys, bool kValues>
Result<Value> dict_view(const Call& call) {
  SequenceBuilder view(call.meter, SequenceKind::kView);
  for (const auto& [key, value] : call.self.dict()->items) {
    view.push(kKeys && kValues ? make_pair(call.meter, key, value) : kKeys ? key : value);
  }
  return std::move(view).build();
}

constexpr Builtin kStringMethods[] = {
    {"capitalize", cased<Case::kCapitalize>},
    {"endswith", has_affix<false>, {"suffix"}, 1},
    {.name = "format", .run = format_method, .takes_any = true},
    {"lower", cased<Case::kLower>},
    {"lstrip", stripped<Side::kLeft>, {"chars"}},
    {"replace", replaced, {"old", "new", "count"}, 2},
    {"rstrip", stripped<Side::kRight>, {"chars"}},
    {"split", split_method, {"sep", "maxsplit"}},
    {"startswith", has_affix<true>, {"prefix"}, 1},
    {"strip", stripped<Side::kBoth>, {"chars"}},
    {"title", cased<Case::kTitle>},
    {"upper", cased<Case::kUpper>},
};

constexpr Builtin kDictMethods[] = {
    {"get", dict_get, {"key", "default"}, 1},
    {"items", dict_view<true, true>},
    {"keys", dict_view<true, false>},
    {"values", dict_view<false, true>},
};

Value missing(Meter& meter, const Value& value, std::string_view name) {
  return Value::undefined(
      meter, base::str_cat("'", type_name(value), " object' has no attribute or element ",
                           base::quoted(name)));
}

// Returns the value of Python's getattr, or undefined.
Result<Value> own_attribute(Meter& meter, const Value& value, std::string_view name) {
  if (const auto* loop = value.get<std::shared_ptr<Loop>>()) {
    return (*loop)->attribute(meter, name);
  }
  const auto* space = value.get<ScopePtr>();
  if (const auto* found = space == nullptr ? nullptr : (*space)->find(name)) {
    return *found;
  }
  const bool plain = value.text() != nullptr && !value.is_markup();
  const Builtin* method = plain                     ? find_builtin(kStringMethods, name)
                          : value.dict() != nullptr ? find_builtin(kDictMethods, name)
                                                    : nullptr;
  return method == nullptr
             ? missing(meter, value, name)
             : bind_builtin(meter, base::str_cat("method '", name, "' of ", type_name(value)),
                            *method, value);
}

// Returns the place of index `key` among `size` items, counted from the end if negative.
std::optional<std::size_t> place_of(const Value& key, std::size_t size) {
  const auto index = key.as_integer();
  const auto count = static_cast<std::int64_t>(size);
  const std::int64_t at = index && *index < 0 ? *index + count : index.value_or(-1);
  return at < 0 || at >= count ? std::nullopt : std::optional(static_cast<std::size_t>(at));
}

// Returns the item of an integer index or a dict's key; nullopt for TypeError and LookupError.
std::optional<Value> own_item(Meter& meter, const Value& value, const Value& key) {
  if (const auto* dict = value.dict()) {
    const auto* found = check_hashable(key).ok() ? find(meter, *dict, key) : nullptr;
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  if (const auto* sequence = value.sequence(); sequence != nullptr && sequence->has_index()) {
    const auto at = place_of(key, sequence->items.size());
    return at ? std::optional(sequence->items[*at]) : std::nullopt;
  }
  if (value.text() == nullptr) {
    return std::nullopt;
  }
  const TextPtr& text = text_of(value);
  meter.step_bytes(text->size_bytes());
  const auto at = place_of(key, text->length());
  if (!at) {
    return std::nullopt;
  }
  const std::size_t begin = text->byte_offset(*at);
  const std::size_t end = begin + utf8_length(text->view()[begin]);
  return Value::string(slice_bytes(&meter, text, begin, end), value.is_markup());
}

// Returns the items [first, last) that Python's slice of `size` items keeps.
Result<std::pair<std::size_t, std::size_t>> resolve(const Value& start, const Value& stop,
                                                    std::size_t size) {
  for (const Value* bound : {&start, &stop}) {
    if (!bound->is_none() && !bound->as_integer()) {
      return invalid("slice indices must be integers or none, got ", type_name(*bound));
    }
  }
  const auto count = static_cast<std::int64_t>(size);
  const auto clamp = [&](const Value& bound, std::int64_t fallback) {
    const std::int64_t at = bound.as_integer().value_or(fallback);
    return static_cast<std::size_t>(std::clamp<std::int64_t>(at < 0 ? at + count : at, 0, count));
  };
  const std::size_t first = clamp(start, 0);
  return std::pair(first, std::max(first, clamp(stop, count)));
}

}  // namespace

Result<Value> apply(Meter& meter, Operator op, const Value& left, const Value& right) {
  if (op < Operator::kEqual) {
    return arithmetic(meter, op, left, right);
  }
  if (op <= Operator::kNotEqual) {
    return Value::boolean(equal(meter, left, right) == (op == Operator::kEqual));
  }
  if (op >= Operator::kIn) {
    QUIRE_TRY(const bool found, contains(meter, right, left));
    return Value::boolean(found == (op == Operator::kIn));
  }
  QUIRE_TRY(const auto order, compare(meter, sign(op), left, right));
  const bool may_be_equal = op == Operator::kLessEqual || op == Operator::kGreaterEqual;
  return Value::boolean((may_be_equal && order == 0) ||
                        (op <= Operator::kLessEqual ? order < 0 : order > 0));
}

Result<Value> negate(const Value& value) {
  QUIRE_TRY_STATUS(check_defined(value));
  if (const auto* real = value.get<double>()) {
    return Value::real(-*real);
  }
  const auto integer = value.as_integer();
  return integer ? apply_integers(Operator::kSubtract, 0, *integer)
                 : invalid("bad operand type for unary -: ", type_name(value));
}

Result<Value> get_attribute(Meter& meter, const Value& value, std::string_view name) {
  meter.step();
  QUIRE_TRY_STATUS(check_defined(value));
  QUIRE_TRY(const auto own, own_attribute(meter, value, name));
  const bool may_be_item = own.is_undefined() && value.dict() != nullptr;
  const auto* item = may_be_item ? find(meter, *value.dict(), name) : nullptr;
  return item != nullptr ? *item : own;
}

Result<Value> get_item(Meter& meter, const Value& value, const Value& key) {
  meter.step();
  QUIRE_TRY_STATUS(check_defined(value));
  if (auto item = own_item(meter, value, key)) {
    return *std::move(item);
  }
  QUIRE_TRY(const auto name, to_text(meter, key));
  return key.text() != nullptr ? own_attribute(meter, value, name->view())
                               : missing(meter, value, name->view());
}

Result<Value> get_slice(Meter& meter, const Value& value, const std::array<Value, 3>& bounds) {
  QUIRE_TRY_STATUS(check_defined(value));
  const std::int64_t step = bounds[2].as_integer().value_or(bounds[2].is_none() ? 1 : 0);
  const bool reversed = step == -1 && bounds[0].is_none() && bounds[1].is_none();
  if (step != 1 && (!reversed || value.text() != nullptr)) {
    return unsupported("a slice with a step, but [::-1] of a list,");
  }
  if (value.text() != nullptr) {
    const TextPtr& text = text_of(value);
    meter.step_bytes(text->size_bytes());
    QUIRE_TRY(const auto kept, resolve(bounds[0], bounds[1], text->length()));
    return Value::string(
        slice_bytes(&meter, text, text->byte_offset(kept.first), text->byte_offset(kept.second)),
        value.is_markup());
  }
  const auto* sequence = value.sequence();
  if (sequence == nullptr || !sequence->has_index()) {
    return invalid(type_name(value), " cannot be sliced");
  }
  QUIRE_TRY(const auto kept, resolve(bounds[0], bounds[1], sequence->items.size()));
  SequenceBuilder out(meter, sequence->kind);
  for (std::size_t i = kept.first; i < kept.second && !meter.failed(); ++i) {
    out.push(sequence->items[reversed ? sequence->items.size() - 1 - i : i]);
  }
  return std::move(out).build();
}

}  // namespace quire::text::jinja
