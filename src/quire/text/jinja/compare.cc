#include "quire/text/jinja/compare.h"

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <variant>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/string_ops.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

// Exact also between integers and doubles where long double holds 64 bits of mantissa.
std::partial_ordering order_numbers(const Value& a, const Value& b) {
  const auto int_a = a.as_integer();
  const auto int_b = b.as_integer();
  if (int_a && int_b) {
    return *int_a <=> *int_b;
  }
  const auto wide = [](const Value& value, const std::optional<std::int64_t>& integer) {
    return integer ? static_cast<long double>(*integer)
                   : static_cast<long double>(*value.as_number());
  };
  return wide(a, int_a) <=> wide(b, int_b);
}

bool equal_items(Meter* meter, const Sequence& a, const Sequence& b) {
  return a.items.size() == b.items.size() &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(),
                    [&](const Value& x, const Value& y) { return equal(meter, x, y); });
}

bool equal_dicts(Meter* meter, const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() &&
         std::all_of(a.items.begin(), a.items.end(), [&](const auto& item) {
           return std::any_of(b.items.begin(), b.items.end(), [&](const auto& other) {
             return equal(meter, item.first, other.first) &&
                    equal(meter, item.second, other.second);
           });
         });
}

bool has_item_equality(const Sequence& sequence) {
  return sequence.kind == SequenceKind::kList || sequence.kind == SequenceKind::kTuple ||
         sequence.kind == SequenceKind::kRange;
}

// Order of two values, or nullopt when their types have none.
std::optional<std::partial_ordering> order(Meter& meter, const Value& a, const Value& b) {
  meter.step();
  if (is_number(a) && is_number(b)) {
    return order_numbers(a, b);
  }
  if (const auto *text_a = a.text(), *text_b = b.text(); text_a != nullptr && text_b != nullptr) {
    meter.step_bytes(std::min(text_a->size_bytes(), text_b->size_bytes()));
    return text_a->view() <=> text_b->view();
  }
  const auto *list_a = a.sequence(), *list_b = b.sequence();
  if (list_a == nullptr || list_b == nullptr || list_a->kind != list_b->kind ||
      list_a->kind > SequenceKind::kTuple) {
    return std::nullopt;
  }
  const std::size_t common = std::min(list_a->items.size(), list_b->items.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (!equal(&meter, list_a->items[i], list_b->items[i])) {
      return order(meter, list_a->items[i], list_b->items[i]);
    }
  }
  return list_a->items.size() <=> list_b->items.size();
}

bool contains_item(Meter& meter, Sequence& sequence, const Value& item) {
  for (std::size_t i = sequence.next; i < sequence.items.size(); ++i) {
    if (sequence.kind == SequenceKind::kGenerator) {
      sequence.next = i + 1;
    }
    if (equal(&meter, sequence.items[i], item)) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool truth(const Value& value) {
  if (const auto* boolean = value.get<bool>()) {
    return *boolean;
  }
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

bool equal(Meter* meter, const Value& a, const Value& b) {
  if (meter != nullptr && !meter->step()) {
    return false;
  }
  if (is_number(a) && is_number(b)) {
    return order_numbers(a, b) == std::partial_ordering::equivalent;
  }
  if (const auto *text_a = a.text(), *text_b = b.text(); text_a != nullptr && text_b != nullptr) {
    if (text_a->size_bytes() != text_b->size_bytes()) {
      return false;
    }
    return (meter == nullptr || meter->step_bytes(text_a->size_bytes())) &&
           text_a->view() == text_b->view();
  }
  if (a.data().index() != b.data().index()) {
    return false;
  }
  if (const auto *list_a = a.sequence(), *list_b = b.sequence();
      list_a != nullptr && list_a->kind == list_b->kind && has_item_equality(*list_a)) {
    return equal_items(meter, *list_a, *list_b);
  }
  if (const auto *dict_a = a.dict(), *dict_b = b.dict(); dict_a != nullptr) {
    return equal_dicts(meter, *dict_a, *dict_b);
  }
  if (a.is_undefined() || a.is_none()) {
    return true;
  }
  return std::visit(
      [&](const auto& left) {
        using T = std::decay_t<decltype(left)>;
        if constexpr (requires { left.get(); }) {
          return left.get() == b.get<T>()->get();
        } else {
          return false;
        }
      },
      a.data());
}

Result<bool> compare_order(Meter& meter, std::string_view op, const Value& a, const Value& b) {
  if (a.is_undefined() || b.is_undefined()) {
    return invalid((a.is_undefined() ? a : b).get<Undefined>()->message());
  }
  const auto ordering = order(meter, a, b);
  if (!ordering) {
    return invalid("'", op, "' not supported between ", type_name(a), " and ", type_name(b));
  }
  if (op == "<") {
    return *ordering < 0;
  }
  if (op == "<=") {
    return *ordering <= 0;
  }
  return op == ">" ? *ordering > 0 : *ordering >= 0;
}

Result<bool> contains(Meter& meter, const Value& container, const Value& item) {
  if (const auto* text = container.text()) {
    if (item.text() == nullptr) {
      return invalid("'in <string>' requires a string on the left, got ", type_name(item));
    }
    return find_bytes(meter, text->view(), item.text()->view(), 0) != std::string_view::npos;
  }
  if (auto* sequence = container.sequence()) {
    return contains_item(meter, *sequence, item);
  }
  if (const auto* dict = container.dict()) {
    if (!is_hashable(item)) {
      return invalid("unhashable type: ", type_name(item));
    }
    return find(meter, *dict, item) != nullptr;
  }
  if (container.is_undefined()) {
    return false;
  }
  return invalid("'in' needs a container on the right, got ", type_name(container));
}

const Value* find(Meter& meter, const Dict& dict, const Value& key) {
  const auto found = std::find_if(dict.items.begin(), dict.items.end(),
                                  [&](const auto& item) { return equal(&meter, item.first, key); });
  return found == dict.items.end() ? nullptr : &found->second;
}

const Value* find(Meter& meter, const Dict& dict, std::string_view key) {
  meter.step((dict.items.size() / 8) + 1);
  const auto found = std::find_if(dict.items.begin(), dict.items.end(), [&](const auto& item) {
    const auto* text = item.first.text();
    return text != nullptr && text->view() == key;
  });
  return found == dict.items.end() ? nullptr : &found->second;
}

}  // namespace quire::text::jinja
