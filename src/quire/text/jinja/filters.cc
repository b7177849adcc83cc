#include "quire/text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

template <Case kTo>
Result<Value> filter_case(Runtime& runtime, const Value& input, const Bound& /*bound*/) {
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  return Value::string(change_case(runtime.meter(), *text, kTo), input.is_markup());
}

Result<Value> filter_default(Runtime& runtime, const Value& input, const Bound& bound) {
  if (!input.is_undefined() && (!bound.boolean(1) || truth(input))) {
    return input;
  }
  return bound.values[0] != nullptr ? *bound.values[0]
                                    : Value::string(make_text(&runtime.meter(), "", kFromTemplate));
}

template <bool kMarkup>
Result<Value> filter_string(Runtime& runtime, const Value& input, const Bound& /*bound*/) {
  QUIRE_TRY(auto text, to_text(runtime.meter(), input));
  return Value::string(std::move(text), kMarkup || input.is_markup());
}

// Numbers lose their fraction; a text that is no decimal integer gives the default.
Result<Value> filter_int(Runtime& runtime, const Value& input, const Bound& bound) {
  QUIRE_TRY_STATUS(check_defined(input));
  if (const auto* real = input.get<double>()) {
    return *real > -9.2e18 && *real < 9.2e18
               ? Result<Value>(Value::integer(static_cast<std::int64_t>(*real)))
               : invalid("the integer part of ", *real, " is beyond 64 bits");
  }
  auto integer = input.as_integer();
  if (const auto* string = input.get<String>()) {
    const TextPtr text = strip(runtime.meter(), string->text, std::nullopt, Side::kBoth);
    const std::string_view digits = text->view();
    if (digits.find_first_of("._eE") != std::string_view::npos) {
      return unsupported("|int of a text with '.', '_' or 'e'");
    }
    const char* const end = digits.data() + digits.size();
    std::int64_t value = 0;
    const auto parsed =
        std::from_chars(digits.data() + (digits.starts_with('+') ? 1 : 0), end, value);
    if (parsed.ec == std::errc::result_out_of_range) {
      return invalid("an integer is beyond 64 bits");
    }
    integer = parsed.ptr == end && parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
  }
  return integer                      ? Value::integer(*integer)
         : bound.values[0] == nullptr ? Value::integer(0)
                                      : *bound.values[0];
}

// `count` blanks, if the meter allows a text so long.
Result<std::string> blanks(Meter& meter, std::int64_t count) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  return meter.allow_text(size) ? Result<std::string>(std::string(size, ' ')) : meter.error();
}

Result<Value> filter_indent(Runtime& runtime, const Value& input, const Bound& bound) {
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto width, bound.integer(0, 4));
  QUIRE_TRY(const auto indention, blanks(meter, width));
  if (input.text() == nullptr) {
    return invalid("|indent needs a string, got ", type_name(input));
  }
  TextBuilder out(&meter);
  bool first = true;
  for (const auto& line : split_lines(meter, input.get<String>()->text)) {
    out.append(first ? "" : "\n", kFromTemplate);
    if (first ? bound.boolean(1) : line->size_bytes() != 0) {
      out.append(indention, kFromTemplate);
    }
    out.append(*line);
    first = false;
  }
  return Value::string(std::move(out).build(), input.is_markup());
}

Result<Value> filter_replace(Runtime& runtime, const Value& input, const Bound& bound) {
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  QUIRE_TRY(const auto from, to_text(runtime.meter(), *bound.values[0]));
  QUIRE_TRY(const auto to, to_text(runtime.meter(), *bound.values[1]));
  QUIRE_TRY(const auto count, bound.integer(2, -1));
  return Value::string(replace(runtime.meter(), *text, from->view(), *to, count));
}

Result<Value> filter_trim(Runtime& runtime, const Value& input, const Bound& bound) {
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  QUIRE_TRY(const auto characters, bound.text(0));
  return Value::string(strip(runtime.meter(), text, characters, Side::kBoth), input.is_markup());
}

// As transformers overrides it: json.dumps without escaping for HTML.
Result<Value> filter_tojson(Runtime& runtime, const Value& input, const Bound& bound) {
  JsonStyle style{.ensure_ascii = bound.boolean(0), .sort_keys = bound.boolean(3)};
  if (bound.values[1] != nullptr && !bound.values[1]->is_none()) {
    QUIRE_TRY(const auto width, bound.integer(1, 0));
    QUIRE_TRY(style.indent, blanks(runtime.meter(), width));
    style.item_separator = ",";
  }
  if (bound.values[2] != nullptr && !bound.values[2]->is_none()) {
    const auto* pair = bound.values[2]->sequence();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      return invalid("|tojson needs two strings as 'separators'");
    }
    style.item_separator = pair->items[0].text()->view();
    style.key_separator = pair->items[1].text()->view();
  }
  QUIRE_TRY(auto text, to_json(runtime.meter(), input, style));
  return Value::string(std::move(text));
}

// The item itself, or its attribute if one is named.
Result<Value> attribute_of(Meter& meter, const Value& item, const Value* attribute) {
  if (attribute == nullptr || attribute->is_none()) {
    return item;
  }
  const auto* name = attribute->text();
  if (name != nullptr && name->view().find_first_of(".,") != std::string_view::npos) {
    return unsupported("the attribute '", name->view(), "', a path or list,");
  }
  return get_item(meter, item, *attribute);
}

// What sorting and uniqueness go by: texts in lower case.
Value sort_key(Meter& meter, const Value& value, bool case_sensitive) {
  const auto* text = value.text();
  return text == nullptr || case_sensitive ? value
                                           : Value::string(change_case(meter, *text, Case::kLower));
}

Result<Value> sorted(Meter& meter, std::vector<Keyed> items, bool reverse) {
  QUIRE_TRY_STATUS(sort_keyed(meter, items, reverse));
  SequenceBuilder out(&meter);
  for (auto& item : items) {
    out.push(std::move(item.item));
  }
  return std::move(out).build();
}

Result<Value> filter_sort(Runtime& runtime, const Value& input, const Bound& bound) {
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  std::vector<Keyed> keyed;
  for (const auto& item : items->items) {
    QUIRE_TRY(const auto key, attribute_of(meter, item, bound.values[2]));
    keyed.push_back({sort_key(meter, key, bound.boolean(1)), item});
    QUIRE_TRY_STATUS(meter.status());
  }
  return sorted(meter, std::move(keyed), bound.boolean(0));
}

Result<Value> filter_dictsort(Runtime& runtime, const Value& input, const Bound& bound) {
  if (input.dict() == nullptr) {
    return invalid("|dictsort needs a dict, got ", type_name(input));
  }
  std::vector<Keyed> items;
  for (const auto& [key, value] : input.dict()->items) {
    items.push_back(
        {sort_key(runtime.meter(), key, bound.boolean(0)), make_pair(runtime.meter(), key, value)});
  }
  return sorted(runtime.meter(), std::move(items), false);
}

template <bool kLast>
Result<Value> filter_end(Runtime& runtime, const Value& input, const Bound& /*bound*/) {
  if (kLast && input.sequence() != nullptr && input.sequence()->kind == SequenceKind::kGenerator) {
    return invalid("a generator has no last item; use |list before |last");
  }
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  return items->items.empty() ? Value::undefined(runtime.meter(), "the sequence was empty")
         : kLast              ? items->items.back()
                              : items->items.front();
}

Result<Value> filter_items(Runtime& runtime, const Value& input, const Bound& /*bound*/) {
  if (input.dict() == nullptr && !input.is_undefined()) {
    return invalid("|items needs a dict, got ", type_name(input));
  }
  SequenceBuilder out(&runtime.meter(), SequenceKind::kGenerator);
  if (input.dict() != nullptr) {
    for (const auto& [key, value] : input.dict()->items) {
      out.push(make_pair(runtime.meter(), key, value));
    }
  }
  return std::move(out).build();
}

Result<Value> filter_join(Runtime& runtime, const Value& input, const Bound& bound) {
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  TextPtr separator = make_text(&meter, "", kFromTemplate);
  if (bound.values[0] != nullptr) {
    QUIRE_TRY(separator, to_text(meter, *bound.values[0]));
  }
  TextBuilder out(&meter);
  for (std::size_t i = 0; i < items->items.size() && !meter.failed(); ++i) {
    out.append(*separator, 0, i == 0 ? 0 : separator->size_bytes());
    QUIRE_TRY(const auto item, attribute_of(meter, items->items[i], bound.values[1]));
    QUIRE_TRY_STATUS(append_str(meter, item, out));
  }
  return Value::string(std::move(out).build());
}

Result<Value> filter_length(Runtime& runtime, const Value& input, const Bound& /*bound*/) {
  runtime.meter().step_bytes(input.text() == nullptr ? 0 : input.text()->size_bytes());
  const auto length = length_of(input);
  return length ? Result<Value>(Value::integer(*length))
                : invalid("object of type ", type_name(input), " has no length");
}

template <bool kReverse>
Result<Value> filter_list(Runtime& runtime, const Value& input, const Bound& /*bound*/) {
  if (kReverse && input.text() != nullptr) {
    return unsupported("|reverse of a string");
  }
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  SequenceBuilder out(&runtime.meter(), kReverse ? SequenceKind::kGenerator : SequenceKind::kList);
  const std::size_t count = items->items.size();
  for (std::size_t i = 0; i < count; ++i) {
    out.push(items->items[kReverse ? count - 1 - i : i]);
  }
  return std::move(out).build();
}

// Runs the filter or test that argument `at` names on `item`, with the arguments behind it.
Result<Value> run_named(Runtime& runtime, const Value& item, const Arguments& given, std::size_t at,
                        bool is_filter) {
  QUIRE_TRY(const auto name, to_text(runtime.meter(), given.positional[at]));
  const Builtin* builtin = is_filter ? find_filter(name->view()) : find_test(name->view());
  if (builtin == nullptr) {
    return unsupported(is_filter ? "filter '" : "test '", name->view(), "'");
  }
  const auto rest = given.positional.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  return builtin->call(runtime, item, {{rest, given.positional.end()}, given.named});
}

// map('filter', ...) or map(attribute='name').
Result<Value> filter_map(Runtime& runtime, const Value& input, const Bound& bound) {
  const Arguments& given = bound.given;
  const bool by_name =
      given.positional.empty() && given.named.size() == 1 && given.named[0].first == "attribute";
  if (given.positional.empty() && !by_name) {
    return unsupported("|map without a filter or exactly 'attribute'");
  }
  SequenceBuilder out(&runtime.meter(), SequenceKind::kGenerator);
  if (!truth(input)) {
    return std::move(out).build();
  }
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  for (const auto& item : items->items) {
    QUIRE_TRY(auto mapped, by_name ? attribute_of(runtime.meter(), item, &given.named[0].second)
                                   : run_named(runtime, item, given, 0, true));
    out.push(std::move(mapped));
    QUIRE_TRY_STATUS(runtime.meter().status());
  }
  return std::move(out).build();
}

template <bool kSelect, bool kByAttribute>
Result<Value> filter_select(Runtime& runtime, const Value& input, const Bound& bound) {
  const auto& given = bound.given.positional;
  if (kByAttribute && given.empty()) {
    return invalid("selecting by attribute needs the name of one");
  }
  SequenceBuilder out(&runtime.meter(), SequenceKind::kGenerator);
  if (!truth(input)) {
    return std::move(out).build();
  }
  constexpr std::size_t kTestAt = kByAttribute ? 1 : 0;
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  for (const auto& item : items->items) {
    QUIRE_TRY(Value tested,
              attribute_of(runtime.meter(), item, kByAttribute ? given.data() : nullptr));
    if (given.size() > kTestAt) {
      QUIRE_TRY(tested, run_named(runtime, tested, bound.given, kTestAt, false));
    }
    if (truth(tested) == kSelect) {
      out.push(item);
    }
    QUIRE_TRY_STATUS(runtime.meter().status());
  }
  return std::move(out).build();
}

template <bool kMax>
Result<Value> filter_extreme(Runtime& runtime, const Value& input, const Bound& /*bound*/) {
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  const Value* best = nullptr;
  for (const auto& item : items->items) {
    if (best != nullptr) {
      QUIRE_TRY(const auto order, compare(meter, kMax ? ">" : "<", sort_key(meter, item, false),
                                          sort_key(meter, *best, false)));
      best = (kMax ? order > 0 : order < 0) ? &item : best;
    }
    best = best == nullptr ? &item : best;
    QUIRE_TRY_STATUS(meter.status());
  }
  return best != nullptr ? *best : Value::undefined(meter, "the sequence was empty");
}

Result<Value> filter_unique(Runtime& runtime, const Value& input, const Bound& bound) {
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  DictBuilder seen(&meter);
  SequenceBuilder out(&meter, SequenceKind::kGenerator);
  for (const auto& item : items->items) {
    QUIRE_TRY(const auto key, attribute_of(meter, item, bound.values[1]));
    QUIRE_TRY_STATUS(check_hashable(key));
    if (seen.set(sort_key(meter, key, bound.boolean(0)), Value())) {
      out.push(item);
    }
    QUIRE_TRY_STATUS(meter.status());
  }
  return std::move(out).build();
}

constexpr Builtin kFilters[] = {
    {"capitalize", filter_case<Case::kCapitalize>},
    {"count", filter_length},
    {"default", filter_default, {"default_value", "boolean"}},
    {"dictsort", filter_dictsort, {"case_sensitive"}},
    {"first", filter_end<false>},
    {"indent", filter_indent, {"width", "first"}},
    {"int", filter_int, {"default"}},
    {"items", filter_items},
    {"join", filter_join, {"d", "attribute"}},
    {"last", filter_end<true>},
    {"length", filter_length},
    {"list", filter_list<false>},
    {"lower", filter_case<Case::kLower>},
    {.name = "map", .run = filter_map, .takes_any = true},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {.name = "reject", .run = filter_select<false, false>, .takes_any = true},
    {.name = "rejectattr", .run = filter_select<false, true>, .takes_any = true},
    {"replace", filter_replace, {"old", "new", "count"}, 2},
    {"reverse", filter_list<true>},
    {"safe", filter_string<true>},
    {.name = "select", .run = filter_select<true, false>, .takes_any = true},
    {.name = "selectattr", .run = filter_select<true, true>, .takes_any = true},
    {"sort", filter_sort, {"reverse", "case_sensitive", "attribute"}},
    {"string", filter_string<false>},
    {"title", filter_case<Case::kFilterTitle>},
    {"tojson", filter_tojson, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", filter_trim, {"chars"}},
    {"unique", filter_unique, {"case_sensitive", "attribute"}},
    {"upper", filter_case<Case::kUpper>},
};

template <bool (*kHolds)(const Value&)>
Result<Value> test_kind(Runtime& /*runtime*/, const Value& value, const Bound& /*bound*/) {
  return Value::boolean(kHolds(value));
}

template <Operator kOperator>
Result<Value> test_operator(Runtime& runtime, const Value& value, const Bound& bound) {
  return apply(runtime.meter(), kOperator, value, *bound.values[0]);
}

template <class T>
bool is_a(const Value& value) {
  return value.get<T>() != nullptr;
}
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_true(const Value& value) { return is_a<bool>(value) && truth(value); }
bool is_false(const Value& value) { return is_a<bool>(value) && !truth(value); }
bool is_number(const Value& value) { return value.as_number().has_value(); }
bool is_iterable(const Value& value) {
  return value.sequence() != nullptr || length_of(value).has_value();
}
// Has a length and items by index.
bool is_sequence(const Value& value) {
  return value.sequence() == nullptr ? length_of(value).has_value() : value.sequence()->has_index();
}

constexpr Builtin kTests[] = {
    {"==", test_operator<Operator::kEqual>, {"other"}, 1},
    {"boolean", test_kind<is_a<bool>>},
    {"defined", test_kind<is_defined>},
    {"eq", test_operator<Operator::kEqual>, {"other"}, 1},
    {"equalto", test_operator<Operator::kEqual>, {"other"}, 1},
    {"false", test_kind<is_false>},
    {"float", test_kind<is_a<double>>},
    {"in", test_operator<Operator::kIn>, {"seq"}, 1},
    {"integer", test_kind<is_a<std::int64_t>>},
    {"iterable", test_kind<is_iterable>},
    {"mapping", test_kind<is_a<DictPtr>>},
    {"ne", test_operator<Operator::kNotEqual>, {"other"}, 1},
    {"none", test_kind<is_a<None>>},
    {"number", test_kind<is_number>},
    {"sequence", test_kind<is_sequence>},
    {"string", test_kind<is_a<String>>},
    {"true", test_kind<is_true>},
    {"undefined", test_kind<is_a<Undefined>>},
};

}  // namespace

const Builtin* find_filter(std::string_view name) { return find_builtin(kFilters, name); }

const Builtin* find_test(std::string_view name) { return find_builtin(kTests, name); }

}  // namespace quire::text::jinja
