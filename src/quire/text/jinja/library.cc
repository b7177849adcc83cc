#include "quire/text/jinja/library.h"

// POSIX: newlocale and strftime_l.
#include <locale.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/builtin.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/operations.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"

namespace quire::text::jinja {
namespace {

// ---- filters

template <Case kTo>
Result<Value> filter_case(const Call& call) {
  QUIRE_TRY(const auto text, to_text(call.meter, call.self));
  return Value::string(change_case(call.meter, *text, kTo), call.self.is_markup());
}

template <bool kMarkup>
Result<Value> filter_string(const Call& call) {
  QUIRE_TRY(auto text, to_text(call.meter, call.self));
  return Value::string(std::move(text), kMarkup || call.self.is_markup());
}

Result<Value> filter_default(const Call& call) {
  if (!call.self.is_undefined() && (!call.boolean(1) || truth(call.self))) {
    return call.self;
  }
  return call.bound[0] != nullptr ? *call.bound[0]
                                  : Value::string(make_text(&call.meter, "", kFromTemplate));
}

// Converts to an integer. A text that is no decimal integer gives the default.
Result<Value> filter_int(const Call& call) {
  QUIRE_TRY_STATUS(check_defined(call.self));
  auto integer = call.self.as_integer();
  if (const auto* string = call.self.get<String>()) {
    const TextPtr text = strip(call.meter, string->text, std::nullopt, Side::kBoth);
    const std::string_view digits = text->view().substr(text->view().starts_with('+') ? 1 : 0);
    std::int64_t value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (parsed.ec == std::errc::result_out_of_range ||
        digits.find_first_of("._eE") != std::string_view::npos) {
      return unsupported("|int of a text that is beyond 64 bits or has '.', '_' or 'e'");
    }
    const bool whole = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size();
    integer = whole ? std::optional(value) : std::nullopt;
  } else if (call.self.get<double>() != nullptr) {
    return unsupported("|int of a float");
  }
  return integer                    ? Value::integer(*integer)
         : call.bound[0] == nullptr ? Value::integer(0)
                                    : *call.bound[0];
}

// Returns `count` blanks, if the meter allows a text so long.
Result<std::string> blanks(Meter& meter, std::int64_t count) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(count, 0));
  return meter.allow_text(size) ? Result<std::string>(std::string(size, ' ')) : meter.error();
}

Result<Value> filter_indent(const Call& call) {
  QUIRE_TRY(const auto width, call.integer(0, 4));
  QUIRE_TRY(const auto indention, blanks(call.meter, width));
  if (call.self.text() == nullptr) {
    return invalid("|indent needs a string, got ", type_name(call.self));
  }
  TextBuilder out(&call.meter);
  bool first = true;
  for (const auto& line : split_lines(call.meter, call.self.get<String>()->text)) {
    out.append(first ? "" : "\n", kFromTemplate);
    const bool indents = first ? call.boolean(1) : line->size_bytes() != 0;
    out.append(indents ? indention : "", kFromTemplate);
    out.append(*line);
    first = false;
  }
  return Value::string(std::move(out).build(), call.self.is_markup());
}

Result<Value> filter_replace(const Call& call) {
  QUIRE_TRY(const auto text, to_text(call.meter, call.self));
  QUIRE_TRY(const auto from, to_text(call.meter, *call.bound[0]));
  QUIRE_TRY(const auto to, to_text(call.meter, *call.bound[1]));
  QUIRE_TRY(const auto count, call.integer(2, -1));
  return Value::string(replace(call.meter, *text, from->view(), *to, count));
}

Result<Value> filter_trim(const Call& call) {
  QUIRE_TRY(const auto text, to_text(call.meter, call.self));
  QUIRE_TRY(const auto characters, call.text(0));
  return Value::string(strip(call.meter, text, characters, Side::kBoth), call.self.is_markup());
}

// Prints as transformers overrides it: json.dumps without escaping for HTML.
Result<Value> filter_tojson(const Call& call) {
  JsonStyle style{.ensure_ascii = call.boolean(0), .sort_keys = call.boolean(3)};
  if (call.bound[1] != nullptr && !call.bound[1]->is_none()) {
    QUIRE_TRY(const auto width, call.integer(1, 0));
    QUIRE_TRY(style.indent, blanks(call.meter, width));
    style.item_separator = ",";
  }
  if (call.bound[2] != nullptr && !call.bound[2]->is_none()) {
    const auto* pair = call.bound[2]->sequence();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      return invalid("|tojson needs two strings as 'separators'");
    }
    style.item_separator = pair->items[0].text()->view();
    style.key_separator = pair->items[1].text()->view();
  }
  QUIRE_TRY(auto text, to_json(call.meter, call.self, style));
  return Value::string(std::move(text));
}

// Returns the item itself, or its attribute if one is named.
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

// Returns the key that sorting and uniqueness go by: texts in lower case.
Value sort_key(Meter& meter, const Value& value, bool case_sensitive) {
  const auto* text = value.text();
  return text == nullptr || case_sensitive ? value
                                           : Value::string(change_case(meter, *text, Case::kLower));
}

Result<Value> sorted(Meter& meter, std::vector<Keyed> items, bool reverse) {
  QUIRE_TRY_STATUS(sort_keyed(meter, items, reverse));
  SequenceBuilder out(meter);
  for (auto& item : items) {
    out.push(std::move(item.item));
  }
  return std::move(out).build();
}

Result<Value> filter_sort(const Call& call) {
  QUIRE_TRY(const auto items, iterate(call.meter, call.self));
  std::vector<Keyed> keyed;
  for (const auto& item : items->items) {
    QUIRE_TRY(const auto key, attribute_of(call.meter, item, call.bound[2]));
    keyed.push_back({sort_key(call.meter, key, call.boolean(1)), item});
    QUIRE_TRY_STATUS(call.meter.status());
  }
  return sorted(call.meter, std::move(keyed), call.boolean(0));
}

// Returns the entries of a dict as pairs; undefined has none.
Result<std::vector<Keyed>> entries_of(const Call& call) {
  std::vector<Keyed> out;
  if (call.self.dict() == nullptr && !call.self.is_undefined()) {
    return invalid("|", call.builtin.name, " needs a dict, got ", type_name(call.self));
  }
  if (call.self.dict() != nullptr) {
    for (const auto& [key, value] : call.self.dict()->items) {
      out.push_back({sort_key(call.meter, key, false), make_pair(call.meter, key, value)});
    }
  }
  return out;
}

Result<Value> filter_dictsort(const Call& call) {
  QUIRE_TRY_STATUS(check_defined(call.self));
  QUIRE_TRY(auto entries, entries_of(call));
  return sorted(call.meter, std::move(entries), false);
}

Result<Value> filter_items(const Call& call) {
  QUIRE_TRY(const auto entries, entries_of(call));
  SequenceBuilder out(call.meter, SequenceKind::kGenerator);
  for (const auto& entry : entries) {
    out.push(entry.item);
  }
  return std::move(out).build();
}

template <bool kLast>
Result<Value> filter_end(const Call& call) {
  if (kLast && call.self.sequence() && call.self.sequence()->kind == SequenceKind::kGenerator) {
    return invalid("a generator has no last item; use |list before |last");
  }
  QUIRE_TRY(const auto items, iterate(call.meter, call.self));
  return items->items.empty() ? Value::undefined(call.meter, "the sequence was empty")
         : kLast              ? items->items.back()
                              : items->items.front();
}

Result<Value> filter_join(const Call& call) {
  QUIRE_TRY(const auto items, iterate(call.meter, call.self));
  TextPtr separator = make_text(&call.meter, "", kFromTemplate);
  if (call.bound[0] != nullptr) {
    QUIRE_TRY(separator, to_text(call.meter, *call.bound[0]));
  }
  TextBuilder out(&call.meter);
  for (std::size_t i = 0; i < items->items.size() && !call.meter.failed(); ++i) {
    out.append(*separator, 0, i == 0 ? 0 : separator->size_bytes());
    QUIRE_TRY(const auto item, attribute_of(call.meter, items->items[i], call.bound[1]));
    QUIRE_TRY_STATUS(append_str(call.meter, item, out));
  }
  return Value::string(std::move(out).build());
}

Result<Value> filter_length(const Call& call) {
  call.meter.step_bytes(call.self.text() == nullptr ? 0 : call.self.text()->size_bytes());
  const auto length = length_of(call.self);
  return length ? Result<Value>(Value::integer(*length))
                : invalid("object of type ", type_name(call.self), " has no length");
}

// Returns a generator of visit(item) for each item, but for those that give none. Nothing is empty.
template <class Visit>
Result<Value> collect(const Call& call, Visit visit) {
  SequenceBuilder out(call.meter, SequenceKind::kGenerator);
  if (!truth(call.self)) {
    return std::move(out).build();
  }
  QUIRE_TRY(const auto items, iterate(call.meter, call.self));
  for (const auto& item : items->items) {
    QUIRE_TRY(std::optional<Value> kept, visit(item));
    if (kept) {
      out.push(*std::move(kept));
    }
    QUIRE_TRY_STATUS(call.meter.status());
  }
  return std::move(out).build();
}

template <bool kReverse>
Result<Value> filter_list(const Call& call) {
  if (kReverse && call.self.text() != nullptr) {
    return unsupported("|reverse of a string");
  }
  QUIRE_TRY(const auto items, iterate(call.meter, call.self));
  SequenceBuilder out(call.meter, kReverse ? SequenceKind::kGenerator : SequenceKind::kList);
  const std::size_t count = items->items.size();
  for (std::size_t i = 0; i < count; ++i) {
    out.push(items->items[kReverse ? count - 1 - i : i]);
  }
  return std::move(out).build();
}

// Runs the filter or test that argument `at` names on `item`, with the arguments behind it.
Result<Value> run_named(const Call& call, const Value& item, std::size_t at, bool is_filter) {
  const Arguments& given = call.given;
  QUIRE_TRY(const auto name, to_text(call.meter, given.positional[at]));
  const Builtin* builtin = is_filter ? find_filter(name->view()) : find_test(name->view());
  if (builtin == nullptr) {
    return unsupported(is_filter ? "filter '" : "test '", name->view(), "'");
  }
  const auto rest = given.positional.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  return builtin->call(call.runtime, item, {{rest, given.positional.end()}, given.named});
}

// Does map('filter', ...) or map(attribute='name').
Result<Value> filter_map(const Call& call) {
  const auto& [positional, named] = call.given;
  const bool by_name =
      positional.empty() && named.size() == 1 && named.front().first == "attribute";
  if (positional.empty() && !by_name) {
    return unsupported("|map without a filter or exactly 'attribute'");
  }
  const Value* attribute = by_name ? &named.front().second : nullptr;
  return collect(call, [&](const Value& item) {
    auto mapped = attribute != nullptr ? attribute_of(call.meter, item, attribute)
                                       : run_named(call, item, 0, true);
    return mapped.ok() ? Result<std::optional<Value>>(*std::move(mapped)) : mapped.error();
  });
}

template <bool kSelect, bool kByAttribute>
Result<Value> filter_select(const Call& call) {
  constexpr std::size_t kTestAt = kByAttribute ? 1 : 0;
  const auto& given = call.given.positional;
  if (given.size() < kTestAt) {
    return invalid("selecting by attribute needs the name of one");
  }
  const auto visit = [&](const Value& item) -> Result<std::optional<Value>> {
    QUIRE_TRY(Value tested, attribute_of(call.meter, item, kByAttribute ? &given[0] : nullptr));
    if (given.size() > kTestAt) {
      QUIRE_TRY(tested, run_named(call, tested, kTestAt, false));
    }
    return truth(tested) == kSelect ? std::optional(item) : std::nullopt;
  };
  return collect(call, visit);
}

template <bool kMax>
Result<Value> filter_extreme(const Call& call) {
  QUIRE_TRY(const auto items, iterate(call.meter, call.self));
  std::optional<Keyed> best;
  for (const auto& item : items->items) {
    Keyed next{sort_key(call.meter, item, false), item};
    QUIRE_TRY(const auto order,
              compare(call.meter, kMax ? ">" : "<", next.key, best ? best->key : next.key));
    best = !best || (kMax ? order > 0 : order < 0) ? std::move(next) : std::move(best);
  }
  return best ? best->item : Value::undefined(call.meter, "the sequence was empty");
}

Result<Value> filter_unique(const Call& call) {
  DictBuilder seen(call.meter);
  const auto visit = [&](const Value& item) -> Result<std::optional<Value>> {
    QUIRE_TRY(const auto key, attribute_of(call.meter, item, call.bound[1]));
    QUIRE_TRY_STATUS(check_hashable(key));
    const bool fresh = seen.set(sort_key(call.meter, key, call.boolean(0)), Value());
    return fresh ? std::optional(item) : std::nullopt;
  };
  return collect(call, visit);
}

constexpr Builtin kFilters[] = {
    {"capitalize", filter_case<Case::kCapitalize>},
    {"count", filter_length},
    {"default", filter_default, {"default_value", "boolean"}},
    {"dictsort", filter_dictsort},
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

// ---- tests

template <bool (*kHolds)(const Value&)>
Result<Value> test_kind(const Call& call) {
  return Value::boolean(kHolds(call.self));
}

template <Operator kOperator>
Result<Value> test_operator(const Call& call) {
  return apply(call.meter, kOperator, call.self, *call.bound[0]);
}

template <class T>
bool is_a(const Value& value) {
  return value.get<T>() != nullptr;
}
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_true(const Value& value) { return is_a<bool>(value) && truth(value); }
bool is_false(const Value& value) { return is_a<bool>(value) && !truth(value); }
bool is_number(const Value& value) { return value.as_number().has_value(); }
bool is_iterable(const Value& value) { return value.sequence() || length_of(value); }
// Has a length and items by index.
bool is_sequence(const Value& value) {
  return value.sequence() ? value.sequence()->has_index() : length_of(value).has_value();
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

// ---- functions

constexpr std::int64_t kMaxRange = 100'000;  // limit of jinja2's sandbox
constexpr std::size_t kMaxDateFormat = 1024;

Result<Value> range(const Call& call) {
  QUIRE_TRY(std::int64_t start, call.integer(0, 0));
  QUIRE_TRY(std::int64_t stop, call.integer(1, 0));
  QUIRE_TRY(const std::int64_t step, call.integer(2, 1));
  if (call.bound[1] == nullptr) {
    stop = std::exchange(start, 0);
  }
  if (step == 0) {
    return invalid("range() step must not be zero");
  }
  // 128 bits, because the distance of two 64-bit integers may need 65.
  const __int128 distance = static_cast<__int128>(stop) - start;
  const __int128 count = distance == 0 || (distance < 0) != (step < 0)
                             ? 0
                             : (distance + step - (step < 0 ? -1 : 1)) / step;
  if (count > kMaxRange) {
    return invalid("range() is larger than ", kMaxRange);
  }
  SequenceBuilder out(call.meter, SequenceKind::kRange);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i) {
    out.push(Value::integer(start + (i * step)));
  }
  return std::move(out).build();
}

Result<Value> make_namespace(const Call& call) {
  if (!call.given.positional.empty()) {
    return unsupported("a namespace of a dict");
  }
  auto space = std::make_shared<Scope>(call.meter, nullptr);
  call.runtime.keep(space);
  for (const auto& [name, value] : call.given.named) {
    if (name.starts_with('_')) {
      return invalid("a namespace cannot have the attribute ", base::quoted(name));
    }
    space->set(name, value);
  }
  return Value(std::move(space), kFromTemplate);
}

Result<Value> raise_exception(const Call& call) {
  QUIRE_TRY(const auto message, to_text(call.meter, *call.bound[0]));
  return invalid(message->view());
}

// Returns datetime.now().strftime(format) in the C locale, whatever locale the program has.
Result<Value> strftime_now(const Call& call) {
  QUIRE_TRY(const auto given, call.text(0));
  const std::string format(given.value_or(""));
  if (format.empty() || format.size() > kMaxDateFormat || format.find('\0') != std::string::npos) {
    return invalid("strftime_now needs a format of at most ", kMaxDateFormat, " bytes");
  }
  // Python fills these otherwise than the C library.
  for (const std::string_view directive : {"%f", "%z", "%Z"}) {
    if (format.find(directive) != std::string::npos) {
      return unsupported("'", directive, "' of strftime_now");
    }
  }
  const std::unique_ptr<std::remove_pointer_t<locale_t>, void (*)(locale_t)> locale(
      newlocale(LC_ALL_MASK, "C", nullptr), freelocale);
  std::string out(std::size_t{16} * kMaxDateFormat, '\0');
  const std::size_t size =
      strftime_l(out.data(), out.size(), format.c_str(), &call.runtime.now(), locale.get());
  if (size == 0) {
    return invalid("strftime_now: the date is empty or longer than ", out.size(), " bytes");
  }
  return Value::string(
      make_text(&call.meter, std::string_view(out).substr(0, size), kFromTemplate));
}

constexpr Builtin kFunctions[] = {
    {.name = "namespace", .run = make_namespace, .takes_any = true},
    {"raise_exception", raise_exception, {"message"}, 1},
    {"range", range, {"start", "stop", "step"}, 1},
    {"strftime_now", strftime_now, {"format"}, 1},
};

}  // namespace

const Builtin* find_filter(std::string_view name) { return find_builtin(kFilters, name); }

const Builtin* find_test(std::string_view name) { return find_builtin(kTests, name); }

const Builtin* find_function(std::string_view name) { return find_builtin(kFunctions, name); }

}  // namespace quire::text::jinja
