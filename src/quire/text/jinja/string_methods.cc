#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "quire/result.h"
#include "quire/text/jinja/access.h"
#include "quire/text/jinja/arguments.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/format.h"
#include "quire/text/jinja/format_spec.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/methods.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/string_ops.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

const TextPtr& text_of(const Value& self) { return self.get<String>()->text; }

// A string of the same kind (plain or markup) as `self`.
Value same_kind(const Value& self, TextPtr text) {
  return Value::string(std::move(text), self.get<String>()->markup);
}

template <Case kTo>
Result<Value> cased(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  return same_kind(self, change_case(runtime.meter(), *text_of(self), kTo));
}

template <Side kSide>
Result<Value> stripped(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("strip", arguments, {"chars"}));
  std::optional<std::string_view> characters;
  if (bound.optional(0) != nullptr) {
    QUIRE_TRY(const auto given, bound.text(0));
    characters = given->view();
  }
  return same_kind(self, strip(runtime.meter(), text_of(self), characters, kSide));
}

template <Value (*kSplit)(Meter&, const TextPtr&, std::optional<std::string_view>, std::int64_t)>
Result<Value> split_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("split", arguments, {"sep", "maxsplit"}));
  QUIRE_TRY(const auto max_splits, bound.integer(1, -1));
  std::optional<std::string_view> separator;
  if (bound.optional(0) != nullptr) {
    QUIRE_TRY(const auto given, bound.text(0));
    separator = given->view();
    if (separator->empty()) {
      return invalid("empty separator");
    }
  }
  return kSplit(runtime.meter(), text_of(self), separator, max_splits);
}

Result<Value> splitlines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("splitlines", arguments, {"keepends"}));
  return split_lines(runtime.meter(), text_of(self), bound.boolean(0, false));
}

template <bool kLast>
Result<Value> partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("partition", arguments, {"sep"}, 1));
  QUIRE_TRY(const auto separator, bound.text(0));
  if (separator->size_bytes() == 0) {
    return invalid("empty separator");
  }
  const TextPtr& text = text_of(self);
  const std::size_t size = text->size_bytes();
  const std::size_t found =
      kLast ? rfind_bytes(runtime.meter(), text->view(), separator->view(), size)
            : find_bytes(runtime.meter(), text->view(), separator->view(), 0);
  // Not found: everything is the first part, or the last one when searching from the end.
  const bool missing = found == std::string_view::npos;
  const std::size_t first_end = missing ? (kLast ? 0 : size) : found;
  const std::size_t last_begin = missing ? first_end : found + separator->size_bytes();
  SequenceBuilder parts(&runtime.meter(), SequenceKind::kTuple);
  for (const auto& [begin, end] : {std::pair(std::size_t{0}, first_end),
                                   std::pair(first_end, last_begin), std::pair(last_begin, size)}) {
    parts.push(Value::string(slice_bytes(&runtime.meter(), text, begin, end)));
  }
  return std::move(parts).build();
}

Result<Value> replaced(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("replace", arguments, {"old", "new", "count"}, 2));
  QUIRE_TRY(const auto from, bound.text(0));
  QUIRE_TRY(const auto to, bound.text(1));
  QUIRE_TRY(const auto count, bound.integer(2, -1));
  return Value::string(replace(runtime.meter(), *text_of(self), from->view(), *to, count));
}

// The part [start, end) of the text that a search is restricted to, in bytes.
struct Window {
  std::string_view view;  // all of the text up to `end`
  std::size_t begin = 0;  // above view.size(): nothing matches, not even the empty string
};

Result<Window> window(const Text& text, const BoundArguments& bound) {
  std::optional<std::int64_t> start;
  std::optional<std::int64_t> stop;
  if (bound.optional(1) != nullptr) {
    QUIRE_TRY(start, bound.integer(1, 0));
  }
  if (bound.optional(2) != nullptr) {
    QUIRE_TRY(stop, bound.integer(2, 0));
  }
  const IndexRange range = clamp_range(start, stop, static_cast<std::int64_t>(text.length()));
  const std::string_view view =
      text.view().substr(0, text.byte_offset(static_cast<std::size_t>(range.stop)));
  if (range.start > range.stop) {
    return Window{view, view.size() + 1};
  }
  return Window{view, text.byte_offset(static_cast<std::size_t>(range.start))};
}

bool matches_at_end(const Window& window, std::string_view affix, bool prefix) {
  if (window.begin > window.view.size()) {
    return false;
  }
  const std::string_view inside = window.view.substr(window.begin);
  return prefix ? inside.starts_with(affix) : inside.ends_with(affix);
}

template <bool kPrefix>
Result<Value> has_affix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  constexpr std::string_view kName = kPrefix ? "startswith" : "endswith";
  QUIRE_TRY(const auto bound, BoundArguments::bind(kName, arguments, {"affix", "start", "end"}, 1));
  QUIRE_TRY(const auto where, window(*text_of(self), bound));
  runtime.meter().step_bytes(where.view.size());
  if (const auto* affix = bound[0]->text()) {
    return Value::boolean(matches_at_end(where, affix->view(), kPrefix));
  }
  const auto* tuple = bound[0]->sequence();
  if (tuple == nullptr || tuple->kind != SequenceKind::kTuple) {
    return bound.text(0).error();
  }
  for (const auto& item : tuple->items) {
    if (item.text() == nullptr) {
      return invalid(kName, " needs a tuple of strings, got ", type_name(item));
    }
    runtime.meter().step_bytes(item.text()->size_bytes());
    if (matches_at_end(where, item.text()->view(), kPrefix)) {
      return Value::boolean(true);
    }
  }
  return Value::boolean(false);
}

// Index of the first or last occurrence, in code points, or -1.
template <bool kLast>
Result<std::int64_t> locate(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("find", arguments, {"sub", "start", "end"}, 1));
  QUIRE_TRY(const auto wanted, bound.text(0));
  QUIRE_TRY(const auto where, window(*text_of(self), bound));
  runtime.meter().step_bytes(where.view.size());
  if (where.begin > where.view.size()) {
    return -1;
  }
  const std::size_t found =
      kLast ? rfind_bytes(runtime.meter(), where.view, wanted->view(), where.view.size())
            : find_bytes(runtime.meter(), where.view, wanted->view(), where.begin);
  if (found == std::string_view::npos || found < where.begin) {
    return -1;
  }
  return static_cast<std::int64_t>(count_code_points(where.view.substr(0, found)));
}

template <bool kLast>
Result<Value> find_method_of(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto index, locate<kLast>(runtime, self, arguments));
  return Value::integer(index);
}

template <bool kLast>
Result<Value> index_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto index, locate<kLast>(runtime, self, arguments));
  if (index < 0) {
    return invalid("substring not found");
  }
  return Value::integer(index);
}

Result<Value> count_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("count", arguments, {"sub", "start", "end"}, 1));
  QUIRE_TRY(const auto wanted, bound.text(0));
  QUIRE_TRY(const auto where, window(*text_of(self), bound));
  if (where.begin > where.view.size()) {
    return Value::integer(0);
  }
  return Value::integer(
      count_occurrences(runtime.meter(), where.view.substr(where.begin), wanted->view()));
}

Result<Value> join_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("join", arguments, {"iterable"}, 1));
  QUIRE_TRY(const auto items, iterate(runtime.meter(), *bound[0]));
  TextBuilder out(&runtime.meter());
  for (std::size_t i = 0; i < items->items.size() && !runtime.meter().failed(); ++i) {
    const auto* text = items->items[i].text();
    if (text == nullptr) {
      return invalid("join needs strings, item ", i, " is ", type_name(items->items[i]));
    }
    if (i > 0) {
      out.append(*text_of(self));
    }
    out.append(*text);
  }
  return Value::string(std::move(out).build());
}

Result<Value> format_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return format_braces(runtime.meter(), *self.get<String>(), arguments);
}

template <bool kPrefix>
Result<Value> remove_affix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("removeprefix", arguments, {"affix"}, 1));
  QUIRE_TRY(const auto affix, bound.text(0));
  const TextPtr& text = text_of(self);
  const std::size_t size = text->size_bytes();
  if (!matches_at_end({text->view(), 0}, affix->view(), kPrefix)) {
    return self;
  }
  const std::size_t cut = affix->size_bytes();
  return Value::string(kPrefix ? slice_bytes(&runtime.meter(), text, cut, size)
                               : slice_bytes(&runtime.meter(), text, 0, size - cut));
}

template <char kAlign>
Result<Value> justify(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("justify", arguments, {"width", "fillchar"}, 1));
  FormatSpec spec{.align = kAlign};
  QUIRE_TRY(spec.width, bound.integer(0, 0));
  if (bound[1] != nullptr) {
    QUIRE_TRY(const auto fill, bound.text(1));
    spec.fill = fill->view();
    if (fill->length() != 1) {
      return invalid("the fill character must be one character");
    }
  }
  if (spec.width > 0 && !runtime.meter().allow_text(static_cast<std::size_t>(spec.width))) {
    return runtime.meter().error();
  }
  TextBuilder out(&runtime.meter());
  append_padded(*text_of(self), spec, out);
  return Value::string(std::move(out).build());
}

Result<Value> zfill(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("zfill", arguments, {"width"}, 1));
  QUIRE_TRY(const auto width, bound.integer(0, 0));
  const TextPtr& text = text_of(self);
  const std::int64_t missing = width - static_cast<std::int64_t>(text->length());
  if (missing > 0 && !runtime.meter().allow_text(static_cast<std::size_t>(width))) {
    return runtime.meter().error();
  }
  const bool has_sign = text->view().starts_with('+') || text->view().starts_with('-');
  TextBuilder out(&runtime.meter());
  out.append(*text, 0, has_sign ? 1 : 0);
  out.append(std::string(static_cast<std::size_t>(std::max<std::int64_t>(missing, 0)), '0'),
             kFromTemplate);
  out.append(*text, has_sign ? 1 : 0, text->size_bytes());
  return Value::string(std::move(out).build());
}

// True when the text is not empty and all its code points are of the kind.
template <bool (*kIs)(char32_t)>
Result<Value> all_are(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  const std::string_view view = text_of(self)->view();
  runtime.meter().step_bytes(view.size());
  for (std::size_t at = 0; at < view.size();) {
    const Decoded next = decode_at(view, at);
    if (!kIs(next.code)) {
      return Value::boolean(false);
    }
    at += next.bytes;
  }
  return Value::boolean(!view.empty());
}

bool is_ascii_code(char32_t code) { return code < 0x80; }
bool is_alphanumeric(char32_t code) { return code != '_' && is_word(code); }

Result<Value> is_ascii_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (text_of(self)->size_bytes() == 0) {
    return Value::boolean(true);
  }
  return all_are<is_ascii_code>(runtime, self, arguments);
}

Result<Value> is_printable_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (text_of(self)->size_bytes() == 0) {
    return Value::boolean(true);
  }
  return all_are<is_printable>(runtime, self, arguments);
}

template <bool kUpper>
Result<Value> has_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  runtime.meter().step_bytes(text_of(self)->size_bytes());
  return Value::boolean(is_all_of_case(text_of(self)->view(), kUpper));
}

constexpr Method kMethods[] = {
    {"capitalize", cased<Case::kCapitalize>, true},
    {"count", count_method, true},
    {"endswith", has_affix<false>, true},
    {"find", find_method_of<false>, true},
    {"format", format_method},
    {"index", index_method<false>, true},
    {"isalnum", all_are<is_alphanumeric>, true},
    {"isalpha", all_are<is_letter>, true},
    {"isascii", is_ascii_method, true},
    {"isdecimal", all_are<is_decimal>, true},
    {"isdigit", all_are<is_digit>, true},
    {"islower", has_case<false>, true},
    {"isprintable", is_printable_method, true},
    {"isspace", all_are<is_space>, true},
    {"isupper", has_case<true>, true},
    {"join", join_method},
    {"ljust", justify<'<'>},
    {"lower", cased<Case::kLower>, true},
    {"lstrip", stripped<Side::kLeft>, true},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"replace", replaced},
    {"rfind", find_method_of<true>, true},
    {"rindex", index_method<true>, true},
    {"rjust", justify<'>'>},
    {"rpartition", partition<true>},
    {"rsplit", split_method<rsplit>},
    {"rstrip", stripped<Side::kRight>, true},
    {"split", split_method<split>},
    {"splitlines", splitlines},
    {"startswith", has_affix<true>, true},
    {"strip", stripped<Side::kBoth>, true},
    {"swapcase", cased<Case::kSwap>, true},
    {"title", cased<Case::kTitle>, true},
    {"upper", cased<Case::kUpper>, true},
    {"zfill", zfill},
};

}  // namespace

std::span<const Method> string_methods() { return kMethods; }

}  // namespace quire::text::jinja
