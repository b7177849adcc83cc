#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
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
#include "quire/text/jinja/sort.h"
#include "quire/text/jinja/string_ops.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

// An attribute path ("address.city", 0): jinja2's make_attrgetter.
class AttributePath {
 public:
  // A null `attribute` is the empty path, which gives the item itself.
  static Result<AttributePath> parse(Meter& meter, const Value* attribute) {
    AttributePath path;
    if (attribute == nullptr || attribute->is_none()) {
      return path;
    }
    const auto* string = attribute->get<String>();
    if (string == nullptr) {
      path.parts_.push_back(*attribute);
      return path;
    }
    const Value parts = split(meter, string->text, ".", -1);
    for (const auto& part : parts.sequence()->items) {
      const std::string_view text = part.text()->view();
      const bool index =
          !text.empty() && text.size() < 10 &&
          std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
      path.parts_.push_back(index ? Value::integer(std::stoll(std::string(text))) : part);
    }
    return path;
  }

  // `fallback` stands in for undefined values; may be null.
  Result<Value> get(Meter& meter, Value item, const Value* fallback = nullptr) const {
    for (const auto& part : parts_) {
      QUIRE_TRY(item, get_item(meter, item, part));
      if (item.is_undefined() && fallback != nullptr) {
        item = *fallback;
      }
    }
    return item;
  }

 private:
  std::vector<Value> parts_;
};

Value lower_case(Meter& meter, const Value& value) {
  const auto* text = value.text();
  return text == nullptr ? value : Value::string(change_case(meter, *text, Case::kLower));
}

Value list_of(Meter& meter, const std::vector<Value>& items,
              SequenceKind kind = SequenceKind::kList) {
  SequenceBuilder list(&meter, kind);
  for (const auto& item : items) {
    list.push(item);
  }
  return std::move(list).build();
}

// Adds an item, or fails as soon as the meter has.
Status push(Meter& meter, SequenceBuilder& out, Value item) {
  out.push(std::move(item));
  return meter.failed() ? Status(meter.error()) : Status();
}

// Items with what they are sorted or compared by.
struct Keyed {
  Value key;
  Value item;
};

Status sort_keyed(Meter& meter, std::vector<Keyed>& items, bool reverse) {
  return stable_sort(meter, items, [&](const Keyed& a, const Keyed& b) {
    return compare_order(meter, "<", reverse ? b.key : a.key, reverse ? a.key : b.key);
  });
}

Result<Value> filter_batch(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|batch", arguments, {"linecount", "fill_with"}, 1));
  QUIRE_TRY(const auto count, bound.integer(0, 1));
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  if (count < 1) {
    return invalid("|batch needs a positive linecount, got ", count);
  }
  const auto size = static_cast<std::size_t>(count);
  SequenceBuilder batches(&runtime.meter(), SequenceKind::kGenerator);
  for (std::size_t begin = 0; begin < items->items.size() && !runtime.meter().failed();
       begin += size) {
    SequenceBuilder batch(&runtime.meter());
    const std::size_t end = std::min(items->items.size() - begin, size) + begin;
    for (std::size_t i = begin; i < end; ++i) {
      batch.push(items->items[i]);
    }
    for (std::size_t i = end - begin; i < size && bound.optional(1) != nullptr; ++i) {
      if (runtime.meter().failed()) {
        break;
      }
      batch.push(*bound[1]);
    }
    batches.push(std::move(batch).build());
  }
  return std::move(batches).build();
}

Result<Value> filter_dictsort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|dictsort", arguments, {"case_sensitive", "by", "reverse"}));
  if (input.dict() == nullptr) {
    return invalid("|dictsort needs a dict, got ", type_name(input));
  }
  std::string_view by = "key";
  if (bound[1] != nullptr) {
    QUIRE_TRY(const auto given, bound.text(1));
    by = given->view();
  }
  if (by != "key" && by != "value") {
    return invalid("|dictsort sorts by \"key\" or \"value\", got ", base::quoted(by));
  }
  Meter& meter = runtime.meter();
  const bool case_sensitive = bound.boolean(0, false);
  std::vector<Keyed> items;
  for (const auto& [key, value] : input.dict()->items) {
    const Value& sort_by = by == "key" ? key : value;
    SequenceBuilder pair(&meter, SequenceKind::kTuple);
    pair.push(key);
    pair.push(value);
    items.push_back(
        {case_sensitive ? sort_by : lower_case(meter, sort_by), std::move(pair).build()});
  }
  QUIRE_TRY_STATUS(sort_keyed(meter, items, bound.boolean(2, false)));
  SequenceBuilder out(&meter);
  for (auto& item : items) {
    out.push(std::move(item.item));
  }
  return std::move(out).build();
}

Result<Value> filter_first(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  if (auto* sequence = input.sequence(); sequence != nullptr &&
                                         sequence->kind == SequenceKind::kGenerator &&
                                         sequence->next < sequence->items.size()) {
    return sequence->items[sequence->next++];
  }
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  return items->items.empty()
             ? Value::undefined(runtime.meter(), "No first item, sequence was empty.")
             : items->items.front();
}

Result<Value> filter_last(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  const auto* sequence = input.sequence();
  const bool reversible = sequence == nullptr || sequence->kind != SequenceKind::kGenerator;
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  if (!reversible) {
    return invalid("a generator has no last item; use |list before |last");
  }
  return items->items.empty()
             ? Value::undefined(runtime.meter(), "No last item, sequence was empty.")
             : items->items.back();
}

Result<Value> filter_items(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  SequenceBuilder out(&runtime.meter(), SequenceKind::kGenerator);
  if (input.dict() == nullptr && !input.is_undefined()) {
    return invalid("|items needs a dict, got ", type_name(input));
  }
  if (input.dict() != nullptr) {
    for (const auto& [key, value] : input.dict()->items) {
      out.push(list_of(runtime.meter(), {key, value}, SequenceKind::kTuple));
    }
  }
  return std::move(out).build();
}

Result<Value> filter_join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("|join", arguments, {"d", "attribute"}));
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  QUIRE_TRY(const auto path, AttributePath::parse(meter, bound[1]));
  TextPtr separator = make_text(&meter, "", kFromTemplate);
  if (bound[0] != nullptr) {
    QUIRE_TRY(separator, to_text(meter, *bound[0]));
  }
  TextBuilder out(&meter);
  for (std::size_t i = 0; i < items->items.size() && !meter.failed(); ++i) {
    if (i > 0) {
      out.append(*separator);
    }
    QUIRE_TRY(const auto item, path.get(meter, items->items[i]));
    QUIRE_TRY_STATUS(append_str(meter, item, out));
  }
  return Value::string(std::move(out).build());
}

Result<Value> filter_length(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  if (const auto* text = input.text()) {
    runtime.meter().step_bytes(text->size_bytes());
  }
  const auto length = length_of(input);
  if (!length) {
    return invalid("object of type ", type_name(input), " has no length");
  }
  return Value::integer(*length);
}

Result<Value> filter_list(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  return list_of(runtime.meter(), items->items);
}

// map(attribute=...).
Result<Value> map_attribute(Meter& meter, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto items, iterate(meter, input));
  QUIRE_TRY(const auto bound, BoundArguments::bind("|map", arguments, {"attribute", "default"}, 1));
  QUIRE_TRY(const auto path, AttributePath::parse(meter, bound[0]));
  SequenceBuilder out(&meter, SequenceKind::kGenerator);
  for (const auto& item : items->items) {
    QUIRE_TRY(auto mapped, path.get(meter, item, bound.optional(1)));
    QUIRE_TRY_STATUS(push(meter, out, std::move(mapped)));
  }
  return std::move(out).build();
}

Result<Value> filter_map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  Meter& meter = runtime.meter();
  SequenceBuilder out(&meter, SequenceKind::kGenerator);
  if (!truth(input)) {
    return std::move(out).build();
  }
  if (arguments.positional.empty()) {
    return map_attribute(meter, input, arguments);
  }
  QUIRE_TRY(const auto items, iterate(meter, input));
  const auto* name = arguments.positional[0].text();
  const Filter filter = name == nullptr ? nullptr : find_filter(name->view());
  if (filter == nullptr) {
    QUIRE_TRY(const auto shown, to_text(meter, arguments.positional[0]));
    return unsupported("filter ", base::quoted(shown->view()), " is not supported");
  }
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()},
                       arguments.named};
  for (const auto& item : items->items) {
    QUIRE_TRY(auto mapped, filter(runtime, item, rest));
    QUIRE_TRY_STATUS(push(meter, out, std::move(mapped)));
  }
  return std::move(out).build();
}

// Whether the chosen test, by default truth, holds: prepare_select_or_reject.
Result<bool> passes(Runtime& runtime, const Value& item, Test test, const Arguments& rest) {
  return test == nullptr ? Result<bool>(truth(item)) : test(runtime, item, rest);
}

template <bool kSelect, bool kByAttribute>
Result<Value> filter_select(Runtime& runtime, const Value& input, const Arguments& arguments) {
  Meter& meter = runtime.meter();
  const auto& given = arguments.positional;
  if (kByAttribute && given.empty()) {
    return invalid("selecting by attribute needs the name of one");
  }
  QUIRE_TRY(const auto path, AttributePath::parse(meter, kByAttribute ? &given[0] : nullptr));
  constexpr std::size_t kTestAt = kByAttribute ? 1 : 0;
  Test test = nullptr;
  Arguments rest{{}, arguments.named};
  if (given.size() > kTestAt) {
    const auto* name = given[kTestAt].text();
    test = name == nullptr ? nullptr : find_test(name->view());
    if (test == nullptr) {
      QUIRE_TRY(const auto shown, to_text(meter, given[kTestAt]));
      return unsupported("test ", base::quoted(shown->view()), " is not supported");
    }
    rest.positional.assign(given.begin() + kTestAt + 1, given.end());
  }
  SequenceBuilder out(&meter, SequenceKind::kGenerator);
  if (truth(input)) {
    QUIRE_TRY(const auto items, iterate(meter, input));
    for (const auto& item : items->items) {
      QUIRE_TRY(const auto tested, path.get(meter, item));
      QUIRE_TRY(const bool passed, passes(runtime, tested, test, rest));
      if (passed == kSelect) {
        out.push(item);
      }
      if (meter.failed()) {
        return meter.error();
      }
    }
  }
  return std::move(out).build();
}

template <bool kMax>
Result<Value> filter_extreme(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind(kMax ? "|max" : "|min", arguments,
                                                   {"case_sensitive", "attribute"}));
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  QUIRE_TRY(const auto path, AttributePath::parse(meter, bound[1]));
  const bool case_sensitive = bound.boolean(0, false);
  std::optional<Keyed> best;
  for (const auto& item : items->items) {
    QUIRE_TRY(Value key, path.get(meter, item));
    if (!case_sensitive) {
      key = lower_case(meter, key);
    }
    bool better = !best.has_value();
    if (best) {
      QUIRE_TRY(better, compare_order(meter, kMax ? ">" : "<", key, best->key));
    }
    if (better) {
      best = Keyed{std::move(key), item};
    }
    if (meter.failed()) {
      return meter.error();
    }
  }
  return best ? best->item : Value::undefined(meter, "No aggregated item, sequence was empty.");
}

Result<Value> filter_reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY_STATUS(no_arguments(arguments));
  if (input.text() != nullptr) {
    return get_slice(runtime.meter(), input, {Value(), Value(), Value::integer(-1)});
  }
  const auto* sequence = input.sequence();
  const bool generator = sequence != nullptr && sequence->kind == SequenceKind::kGenerator;
  QUIRE_TRY(const auto items, iterate(runtime.meter(), input));
  SequenceBuilder out(&runtime.meter(), generator || input.is_undefined()
                                            ? SequenceKind::kList
                                            : SequenceKind::kGenerator);
  for (std::size_t i = items->items.size(); i-- > 0;) {
    out.push(items->items[i]);
  }
  return std::move(out).build();
}

// The key of |sort: one value per attribute of a comma-separated list.
Result<Value> sort_key(Meter& meter, const std::vector<AttributePath>& paths, const Value& item,
                       bool case_sensitive) {
  SequenceBuilder key(&meter);
  for (const auto& path : paths) {
    QUIRE_TRY(auto part, path.get(meter, item));
    key.push(case_sensitive ? std::move(part) : lower_case(meter, part));
  }
  return std::move(key).build();
}

Result<Value> filter_sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  std::vector<AttributePath> paths;
  if (const auto* string = bound[2] == nullptr ? nullptr : bound[2]->get<String>()) {
    const Value names = split(meter, string->text, ",", -1);
    for (const auto& name : names.sequence()->items) {
      QUIRE_TRY(auto path, AttributePath::parse(meter, &name));
      paths.push_back(std::move(path));
    }
  } else {
    QUIRE_TRY(auto path, AttributePath::parse(meter, bound[2]));
    paths.push_back(std::move(path));
  }
  std::vector<Keyed> keyed;
  for (const auto& item : items->items) {
    QUIRE_TRY(auto key, sort_key(meter, paths, item, bound.boolean(1, false)));
    keyed.push_back({std::move(key), item});
    if (meter.failed()) {
      return meter.error();
    }
  }
  QUIRE_TRY_STATUS(sort_keyed(meter, keyed, bound.boolean(0, false)));
  SequenceBuilder out(&meter);
  for (auto& item : keyed) {
    out.push(std::move(item.item));
  }
  return std::move(out).build();
}

Result<Value> filter_sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound, BoundArguments::bind("|sum", arguments, {"attribute", "start"}));
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  QUIRE_TRY(const auto path, AttributePath::parse(meter, bound[0]));
  Value total = bound[1] == nullptr ? Value::integer(0) : *bound[1];
  if (total.text() != nullptr) {
    return invalid("|sum cannot add strings; use |join");
  }
  for (const auto& item : items->items) {
    QUIRE_TRY(const auto term, path.get(meter, item));
    QUIRE_TRY(total, apply(meter, Operator::kAdd, total, term));
    if (meter.failed()) {
      return meter.error();
    }
  }
  return total;
}

Result<Value> filter_unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  QUIRE_TRY(const auto bound,
            BoundArguments::bind("|unique", arguments, {"case_sensitive", "attribute"}));
  Meter& meter = runtime.meter();
  QUIRE_TRY(const auto items, iterate(meter, input));
  QUIRE_TRY(const auto path, AttributePath::parse(meter, bound[1]));
  DictBuilder seen(&meter);
  SequenceBuilder out(&meter, SequenceKind::kGenerator);
  for (const auto& item : items->items) {
    QUIRE_TRY(Value key, path.get(meter, item));
    if (!is_hashable(key)) {
      return invalid("unhashable type: ", type_name(key));
    }
    if (!bound.boolean(0, false)) {
      key = lower_case(meter, key);
    }
    if (!seen.set(key, Value())) {
      continue;
    }
    QUIRE_TRY_STATUS(push(meter, out, item));
  }
  return std::move(out).build();
}

constexpr NamedFilter kSequenceFilters[] = {
    {"batch", filter_batch},
    {"count", filter_length},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"map", filter_map},
    {"max", filter_extreme<true>},
    {"min", filter_extreme<false>},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"reverse", filter_reverse},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
    {"sort", filter_sort},
    {"sum", filter_sum},
    {"unique", filter_unique},
};

}  // namespace

std::span<const NamedFilter> sequence_filters() { return kSequenceFilters; }

}  // namespace quire::text::jinja
