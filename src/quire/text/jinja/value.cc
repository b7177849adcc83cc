#include "quire/text/jinja/value.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

// Returns whether a container of `charge` may hold `value`, one level deeper; raises `depth` if so.
bool admit(const Value& value, std::size_t bytes, Charge& charge, int& depth) {
  const auto* list = value.sequence();
  const auto* dict = value.dict();
  const int needed = (list != nullptr ? list->depth : dict != nullptr ? dict->depth : 0) + 1;
  Meter& meter = *charge.meter();
  const bool admitted = meter.allow_depth(needed) && meter.step() && charge.add(bytes);
  depth = admitted ? std::max(depth, needed) : depth;
  return admitted;
}

// Orders numbers, exactly also between integers and doubles where long double holds 64 bits of
// mantissa.
std::partial_ordering order_numbers(const Value& a, const Value& b) {
  const auto wide = [](const Value& value) {
    const auto integer = value.as_integer();
    return integer ? static_cast<long double>(*integer)
                   : static_cast<long double>(*value.as_number());
  };
  return wide(a) <=> wide(b);
}

bool equal_dicts(Meter& meter, const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() && std::ranges::all_of(a.items, [&](const auto& item) {
           const Value* other = find(meter, b, item.first);
           return other != nullptr && equal(meter, item.second, *other);
         });
}

// Returns the order of two values, or nullopt when their types have none.
std::optional<std::partial_ordering> order(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (a.as_number() && b.as_number()) {
    return order_numbers(a, b);
  }
  if (const auto *text_a = a.text(), *text_b = b.text(); text_a != nullptr && text_b != nullptr) {
    meter.step_bytes(std::min(text_a->size_bytes(), text_b->size_bytes()));
    return text_a->view() <=> text_b->view();
  }
  return std::nullopt;
}

}  // namespace

Value Value::undefined(Meter& meter, std::string message) {
  Undefined::Reason reason{std::move(message), Charge(&meter)};
  reason.charge.add(sizeof(reason) + reason.message.size());
  return {Undefined{std::make_shared<const Undefined::Reason>(std::move(reason))}, kFromTemplate};
}

Value Value::callable(Meter& meter, Callable callable) {
  callable.charge = Charge(&meter);
  callable.charge.add(sizeof(callable) + callable.description.size());
  return {std::make_shared<const Callable>(std::move(callable)), kFromTemplate};
}

std::optional<std::int64_t> Value::as_integer() const {
  if (const auto* integer = get<std::int64_t>()) {
    return *integer;
  }
  const auto* boolean = get<bool>();
  return boolean == nullptr ? std::nullopt : std::optional<std::int64_t>(*boolean ? 1 : 0);
}

std::optional<double> Value::as_number() const {
  if (const auto* real = get<double>()) {
    return *real;
  }
  const auto integer = as_integer();
  return integer ? std::optional(static_cast<double>(*integer)) : std::nullopt;
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    charge.meter()->step((scope->variables.size() / 8) + 1);
    const auto found = find_name(scope->variables, name);
    if (found != scope->variables.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  const auto found = find_name(variables, name);
  if (found != variables.end()) {
    found->second = std::move(value);
  } else if (charge.add(sizeof(variables[0]) + name.size())) {
    variables.emplace_back(name, std::move(value));
  }
}

SequenceBuilder::SequenceBuilder(Meter& meter, SequenceKind kind) {
  sequence_.kind = kind;
  sequence_.charge = Charge(&meter);
}

void SequenceBuilder::push(Value value) {
  if (admit(value, sizeof(Value), sequence_.charge, sequence_.depth)) {
    sequence_.items.push_back(std::move(value));
  }
}

Value SequenceBuilder::build() && {
  sequence_.charge.add(sizeof(Sequence));
  return {std::make_shared<Sequence>(std::move(sequence_)), kFromTemplate};
}

void DictBuilder::push(Value key, Value value) {
  if (admit(value, sizeof(dict_.items[0]), dict_.charge, dict_.depth)) {
    dict_.items.emplace_back(std::move(key), std::move(value));
  }
}

bool DictBuilder::set(const Value& key, Value value) {
  Meter& meter = *dict_.charge.meter();
  for (auto& item : dict_.items) {
    if (meter.failed() || equal(meter, item.first, key)) {
      if (admit(value, 0, dict_.charge, dict_.depth)) {
        item.second = std::move(value);
      }
      return false;
    }
  }
  push(key, std::move(value));
  return true;
}

Value DictBuilder::build() && {
  dict_.charge.add(sizeof(Dict));
  return {std::make_shared<const Dict>(std::move(dict_)), kFromTemplate};
}

Value make_pair(Meter& meter, const Value& first, const Value& second) {
  SequenceBuilder out(meter, SequenceKind::kTuple);
  out.push(first);
  out.push(second);
  return std::move(out).build();
}

Status check_hashable(const Value& key) {
  if (key.sequence() != nullptr && key.sequence()->kind == SequenceKind::kTuple) {
    return unsupported("a tuple as a key");
  }
  if (key.sequence() != nullptr || key.dict() != nullptr) {
    return invalid("unhashable type: ", type_name(key));
  }
  return {};
}

std::string_view type_name(const Value& value) {
  if (const auto* sequence = value.sequence()) {
    constexpr std::string_view kKinds[] = {"list", "tuple", "range", "view of a dict", "generator"};
    return kKinds[static_cast<std::size_t>(sequence->kind)];
  }
  constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",       "int",
                                         "float",     "str",      "",           "dict",
                                         "Namespace", "function", "LoopContext"};
  return value.is_markup() ? "Markup" : kNames[value.data().index()];
}

Status check_defined(const Value& value) {
  const auto* undefined = value.get<Undefined>();
  return undefined == nullptr ? Status() : Status(invalid(undefined->reason->message));
}

Result<SequencePtr> iterate(Meter& meter, const Value& value) {
  if (const auto* shared = value.get<SequencePtr>()) {
    Sequence& sequence = **shared;
    if (sequence.kind != SequenceKind::kGenerator) {
      return *shared;
    }
    auto rest = std::make_shared<Sequence>(std::move(sequence));
    rest->kind = SequenceKind::kList;
    sequence = Sequence{.kind = SequenceKind::kGenerator};
    return rest;
  }
  SequenceBuilder list(meter);
  if (const auto* string = value.get<String>()) {
    const std::string_view view = string->text->view();
    for (std::size_t at = 0; at < view.size() && !meter.failed();) {
      const std::size_t end = at + utf8_length(view[at]);
      list.push(Value::string(slice_bytes(&meter, string->text, at, end)));
      at = end;
    }
  } else if (const auto* dict = value.dict()) {
    for (const auto& item : dict->items) {
      list.push(item.first);
    }
  } else if (!value.is_undefined()) {
    return invalid("'", type_name(value), "' object is not iterable");
  }
  return *std::move(list).build().get<SequencePtr>();
}

std::optional<std::int64_t> length_of(const Value& value) {
  std::size_t length = 0;
  if (const auto* text = value.text()) {
    length = text->length();
  } else if (const auto* sequence = value.sequence()) {
    if (sequence->kind == SequenceKind::kGenerator) {
      return std::nullopt;
    }
    length = sequence->items.size();
  } else if (const auto* dict = value.dict()) {
    length = dict->items.size();
  } else if (!value.is_undefined()) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(length);
}

bool truth(const Value& value) {
  if (const auto number = value.as_number()) {
    return *number != 0;
  }
  if (const auto* text = value.text()) {
    return text->size_bytes() != 0;
  }
  if (const auto* sequence = value.sequence()) {
    return sequence->kind == SequenceKind::kGenerator || !sequence->items.empty();
  }
  if (const auto* dict = value.dict()) {
    return !dict->items.empty();
  }
  return !value.is_undefined() && !value.is_none();
}

bool equal(Meter& meter, const Value& a, const Value& b) {
  if (!meter.step()) {
    return false;
  }
  if (a.as_number() && b.as_number()) {
    return order_numbers(a, b) == std::partial_ordering::equivalent;
  }
  if (a.data().index() != b.data().index()) {
    return false;
  }
  if (const auto *text_a = a.text(), *text_b = b.text(); text_a != nullptr) {
    return text_a->size_bytes() == text_b->size_bytes() && meter.step_bytes(text_a->size_bytes()) &&
           text_a->view() == text_b->view();
  }
  if (const auto *list_a = a.sequence(), *list_b = b.sequence(); list_a != nullptr) {
    return list_a == list_b ||
           (list_a->kind == list_b->kind && list_a->has_index() &&
            std::ranges::equal(list_a->items, list_b->items,
                               [&](const Value& x, const Value& y) { return equal(meter, x, y); }));
  }
  if (const auto* dict = a.dict()) {
    return equal_dicts(meter, *dict, *b.dict());
  }
  return std::visit(
      [&]<class T>(const T& left) {
        if constexpr (requires { left.get(); }) {
          return left == *b.get<T>();
        } else {
          return true;  // undefined or none
        }
      },
      a.data());
}

Result<std::partial_ordering> compare(Meter& meter, std::string_view sign, const Value& a,
                                      const Value& b) {
  QUIRE_TRY_STATUS(check_defined(a));
  QUIRE_TRY_STATUS(check_defined(b));
  const auto ordering = order(meter, a, b);
  if (!ordering) {
    return invalid("'", sign, "' not supported between ", type_name(a), " and ", type_name(b));
  }
  return *ordering;
}

Result<bool> contains(Meter& meter, const Value& container, const Value& item) {
  if (const auto* text = container.text()) {
    if (item.text() == nullptr) {
      return invalid("'in <string>' requires a string on the left, got ", type_name(item));
    }
    return find_bytes(meter, text->view(), item.text()->view(), 0) != std::string_view::npos;
  }
  if (const auto* dict = container.dict()) {
    QUIRE_TRY_STATUS(check_hashable(item));
    return find(meter, *dict, item) != nullptr;
  }
  if (container.sequence() == nullptr && !container.is_undefined()) {
    return invalid("'in' needs a container on the right, got ", type_name(container));
  }
  if (container.sequence() != nullptr && container.sequence()->kind == SequenceKind::kGenerator) {
    return unsupported("'in' of a generator");
  }
  QUIRE_TRY(const auto items, iterate(meter, container));
  return std::ranges::any_of(items->items,
                             [&](const Value& each) { return equal(meter, each, item); });
}

Status sort_keyed(Meter& meter, std::vector<Keyed>& items, bool reverse) {
  const auto levels = static_cast<std::size_t>(std::bit_width(items.size()));
  for (const auto& item : items) {
    // All keys have an order if each has one with the first: they are numbers, or they are texts.
    QUIRE_TRY(const auto order, compare(meter, "<", item.key, items.front().key));
    if (order == std::partial_ordering::unordered) {
      return invalid("nan cannot be sorted");
    }
    const auto* text = item.key.text();
    meter.step_bytes(levels * (text == nullptr ? 1 : text->size_bytes()));
  }
  QUIRE_TRY_STATUS(meter.status());
  std::ranges::stable_sort(items, [&](const Keyed& a, const Keyed& b) {
    return *order(meter, reverse ? b.key : a.key, reverse ? a.key : b.key) < 0;
  });
  return {};
}

const Value* find(Meter& meter, const Dict& dict, const Value& key) {
  const auto found = std::ranges::find_if(
      dict.items, [&](const auto& item) { return equal(meter, item.first, key); });
  return found == dict.items.end() ? nullptr : &found->second;
}

const Value* find(Meter& meter, const Dict& dict, std::string_view key) {
  meter.step((dict.items.size() / 8) + 1);
  const auto found = std::ranges::find_if(dict.items, [&](const auto& item) {
    const auto* text = item.first.text();
    return text != nullptr && text->view() == key;
  });
  return found == dict.items.end() ? nullptr : &found->second;
}

}  // namespace quire::text::jinja
