#include "quire/text/jinja/filters.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/result.h"
#include "quire/text/jinja/arguments.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/format.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/numbers.h"
#include "quire/text/jinja/print.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/string_ops.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

bool is_markup(const Value& value) {
  const auto* string = value.get<String>();
  return string != nullptr && string->markup;
}

Result<Value> filter_abs(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  if (const auto integer = input.as_integer(); integer && *integer != INT64_MIN) {
    return Value::integer(std::abs(*integer));
  }
  if (const auto* real = input.get<double>()) {
    return Value::real(std::fabs(*real));
  }
  return invalid("|abs needs a number, got ", type_name(input));
}

template <Case kTo>
Result<Value> filter_case(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  return Value::string(change_case(runtime.meter(), *text, kTo),
                       is_markup(input) && kTo != Case::kFilterTitle);
}

Result<Value> filter_default(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|default", arguments, {"default_value", "boolean"}));
  if (!input.is_undefined() && (!bound.boolean(1, false) || truth(input))) {
    return input;
  }
  return bound[0] == nullptr ? Value::string(make_text(&runtime.meter(), "", kFromTemplate))
                             : *bound[0];
}

Result<Value> filter_escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  if (is_markup(input)) {
    return input;
  }
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  return Value::string(escape_html(runtime.meter(), *text), true);
}

Result<Value> filter_forceescape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  return Value::string(escape_html(runtime.meter(), *text), true);
}

Result<Value> filter_safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  QUIRE_TRY(auto text, to_text(runtime.meter(), input));
  return Value::string(std::move(text), true);
}

Result<Value> filter_string(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  QUIRE_TRY(auto text, to_text(runtime.meter(), input));
  return Value::string(std::move(text), is_markup(input));
}

Result<Value> filter_float(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("|float", arguments, {"default"}));
  if (const auto number = input.as_number()) {
    return Value::real(*number);
  }
  if (const auto* text = input.text()) {
    if (const auto parsed = parse_real(text->view())) {
      return Value::real(*parsed);
    }
  }
  if (const auto* undefined = input.get<Undefined>()) {
    return invalid(undefined->message());
  }
  return bound[0] == nullptr ? Value::real(0.0) : *bound[0];
}

// The number that a value spells, if int() does not take it: "42.23"|int is 42.
std::optional<double> spelled_number(const Value& input) {
  const auto* text = input.text();
  const auto number = text == nullptr ? input.as_number() : parse_real(text->view());
  const bool usable = number && !std::isnan(*number) && (text == nullptr || !std::isinf(*number));
  return usable ? number : std::nullopt;
}

Result<Value> filter_int(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("|int", arguments, {"default", "base"}));
  QUIRE_TRY(const auto base, bound.integer(1, 10));
  if (const auto integer = input.as_integer()) {
    return Value::integer(*integer);
  }
  if (const auto* undefined = input.get<Undefined>()) {
    return invalid(undefined->message());
  }
  if (const auto* text = input.text()) {
    QUIRE_TRY(const auto integer, parse_integer(text->view(), base));
    if (integer) {
      return Value::integer(*integer);
    }
  }
  if (const auto number = spelled_number(input)) {
    return truncate_to_integer(*number);
  }
  return bound[0] == nullptr ? Value::integer(0) : *bound[0];
}

Result<Value> filter_round(Runtime& /*runtime*/, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("|round", arguments, {"precision", "method"}));
  QUIRE_TRY(const auto precision, bound.integer(0, 0));
  std::string_view method = "common";
  if (bound[1] != nullptr) {
    QUIRE_TRY(const auto given, bound.text(1));
    method = given->view();
  }
  return round_number(input, precision, method);
}

Result<Value> filter_format(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(auto text, to_text(runtime.meter(), input));
  const String format{std::move(text), is_markup(input)};
  if (arguments.named.empty()) {
    SequenceBuilder tuple(&runtime.meter(), SequenceKind::kTuple);
    for (const auto& argument : arguments.positional) {
      tuple.push(argument);
    }
    return format_percent(runtime.meter(), format, std::move(tuple).build());
  }
  if (!arguments.positional.empty()) {
    return invalid("|format takes either positional or named arguments");
  }
  DictBuilder dict(&runtime.meter());
  for (const auto& [name, value] : arguments.named) {
    dict.push(Value::string(make_text(&runtime.meter(), name, kFromTemplate)), value);
  }
  return format_percent(runtime.meter(), format, std::move(dict).build());
}

Result<Value> filter_indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|indent", arguments, {"width", "first", "blank"}));
  if (input.text() == nullptr) {
    return invalid("|indent needs a string, got ", type_name(input));
  }
  Meter& meter = runtime.meter();
  TextPtr indention;
  if (bound[0] != nullptr && bound[0]->text() != nullptr) {
    QUIRE_TRY(indention, bound.text(0));
  } else {
    QUIRE_TRY(const auto width, bound.integer(0, 4));
    const auto spaces = static_cast<std::size_t>(std::max<std::int64_t>(width, 0));
    if (!meter.allow_text(spaces)) {
      return meter.error();
    }
    indention = make_text(&meter, std::string(spaces, ' '), kFromTemplate);
  }
  // jinja2 appends a line break before it splits, so that a last empty line counts.
  TextBuilder ended(&meter);
  ended.append(*input.text());
  ended.append("\n", kFromTemplate);
  const Value lines = split_lines(meter, std::move(ended).build(), false);
  TextBuilder out(&meter);
  bool first_line = true;
  for (const auto& line : lines.sequence()->items) {
    const bool filled = line.text()->size_bytes() != 0;
    out.append(first_line ? "" : "\n", kFromTemplate);
    if (first_line ? bound.boolean(1, false) : filled || bound.boolean(2, false)) {
      out.append(*indention);
    }
    out.append(*line.text());
    first_line = false;
  }
  return Value::string(std::move(out).build(), is_markup(input));
}

Result<Value> filter_replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|replace", arguments, {"old", "new", "count"}, 2));
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  QUIRE_TRY(const auto from, to_text(runtime.meter(), *bound[0]));
  QUIRE_TRY(const auto to, to_text(runtime.meter(), *bound[1]));
  std::int64_t count = -1;
  if (bound.optional(2) != nullptr) {
    QUIRE_TRY(count, bound.integer(2, -1));
  }
  return Value::string(replace(runtime.meter(), *text, from->view(), *to, count));
}

Result<Value> filter_trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("|trim", arguments, {"chars"}));
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  std::optional<std::string_view> characters;
  if (bound.optional(0) != nullptr) {
    QUIRE_TRY(const auto given, bound.text(0));
    characters = given->view();
  }
  return Value::string(strip(runtime.meter(), text, characters, Side::kBoth), is_markup(input));
}

Result<Value> filter_truncate(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|truncate", arguments, {"length", "killwords", "end", "leeway"}));
  QUIRE_TRY(const auto length, bound.integer(0, 255));
  QUIRE_TRY(const auto leeway, bound.integer(3, 5));
  if (input.text() == nullptr) {
    return invalid("|truncate needs a string, got ", type_name(input));
  }
  TextPtr end = make_text(&runtime.meter(), "...", kFromTemplate);
  if (bound[2] != nullptr) {
    QUIRE_TRY(end, bound.text(2));
  }
  const auto end_length = static_cast<std::int64_t>(end->length());
  if (length < end_length || leeway < 0) {
    return invalid("|truncate needs a length of at least ", end_length, " and no negative leeway");
  }
  const TextPtr& text = input.get<String>()->text;
  if (static_cast<std::int64_t>(text->length()) - leeway <= length) {
    return input;
  }
  std::size_t cut = text->byte_offset(static_cast<std::size_t>(length - end_length));
  if (!bound.boolean(1, false)) {
    cut = std::min(cut, rfind_bytes(runtime.meter(), text->view(), " ", cut));
  }
  TextBuilder out(&runtime.meter());
  out.append(*text, 0, cut);
  out.append(*end);
  return Value::string(std::move(out).build(), is_markup(input));
}

Result<Value> filter_wordcount(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  QUIRE_TRY(const auto text, to_text(runtime.meter(), input));
  runtime.meter().step_bytes(text->size_bytes());
  std::int64_t words = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text->size_bytes();) {
    const Decoded next = decode_at(text->view(), at);
    words += is_word(next.code) && !inside ? 1 : 0;
    inside = is_word(next.code);
    at += next.bytes;
  }
  return Value::integer(words);
}

Result<std::string> separator_at(const Value& separators, std::size_t index) {
  const auto* pair = separators.sequence();
  if (pair == nullptr || pair->items.size() != 2 || pair->items[index].text() == nullptr) {
    return invalid("|tojson needs two strings as 'separators'");
  }
  return std::string(pair->items[index].text()->view());
}

// As transformers overrides it: json.dumps without escaping for HTML.
Result<Value> filter_tojson(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|tojson", arguments,
                                 {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ensure_ascii = bound.boolean(0, false);
  style.sort_keys = bound.boolean(3, false);
  if (bound.optional(1) != nullptr) {
    if (const auto* text = bound[1]->text()) {
      style.indent = text->view();
    } else {
      QUIRE_TRY(const auto width, bound.integer(1, 0));
      if (!runtime.meter().allow_text(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)))) {
        return runtime.meter().error();
      }
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (const auto* separators = bound.optional(2)) {
    QUIRE_TRY(style.item_separator, separator_at(*separators, 0));
    QUIRE_TRY(style.key_separator, separator_at(*separators, 1));
  }
  QUIRE_TRY(auto text, to_json(runtime.meter(), input, style));
  return Value::string(std::move(text));
}

constexpr NamedFilter kValueFilters[] = {
    {"abs", filter_abs},
    {"capitalize", filter_case<Case::kCapitalize>},
    {"d", filter_default},
    {"default", filter_default},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"float", filter_float},
    {"forceescape", filter_forceescape},
    {"format", filter_format},
    {"indent", filter_indent},
    {"int", filter_int},
    {"lower", filter_case<Case::kLower>},
    {"replace", filter_replace},
    {"round", filter_round},
    {"safe", filter_safe},
    {"string", filter_string},
    {"title", filter_case<Case::kFilterTitle>},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"truncate", filter_truncate},
    {"upper", filter_case<Case::kUpper>},
    {"wordcount", filter_wordcount},
};

}  // namespace

std::span<const NamedFilter> value_filters() { return kValueFilters; }

Filter find_filter(std::string_view name) {
  for (const auto filters : {value_filters(), sequence_filters()}) {
    for (const auto& filter : filters) {
      if (filter.name == name) {
        return filter.call;
      }
    }
  }
  return nullptr;
}

}  // namespace quire::text::jinja
