#include "quire/text/jinja/value.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/text.h"

namespace quire::text::jinja {
namespace {

int depth_of(const Value& value) {
  if (const auto* sequence = value.sequence()) {
    return sequence->depth;
  }
  if (const auto* dict = value.dict()) {
    return dict->depth;
  }
  return 0;
}

// Whether a container of `charge` may hold `value`, one level deeper; raises `depth` if so.
bool admit(const Value& value, std::size_t bytes, Charge& charge, int& depth) {
  const int needed = depth_of(value) + 1;
  if (needed > kMaxContainerDepth) {
    if (charge.meter() != nullptr) {
      charge.meter()->fail_container_depth();
    }
    return false;
  }
  if (charge.meter() != nullptr && (!charge.meter()->step() || !charge.add(bytes))) {
    return false;
  }
  depth = std::max(depth, needed);
  return true;
}

}  // namespace

Value Value::undefined(Meter& meter, std::string message) {
  Undefined::Reason reason{std::move(message), Charge(&meter)};
  reason.charge.add(sizeof(reason) + reason.message.size());
  return {Undefined{std::make_shared<const Undefined::Reason>(std::move(reason))}, kFromTemplate};
}

Value Value::callable(Meter& meter, Callable callable) {
  callable.charge = Charge(&meter);
  callable.charge.add(sizeof(callable) + callable.description.size() + callable.printed.size());
  return {std::make_shared<const Callable>(std::move(callable)), kFromTemplate};
}

const Text* Value::text() const {
  const auto* string = get<String>();
  return string == nullptr ? nullptr : string->text.get();
}

Sequence* Value::sequence() const {
  const auto* sequence = get<SequencePtr>();
  return sequence == nullptr ? nullptr : sequence->get();
}

const Dict* Value::dict() const {
  const auto* dict = get<DictPtr>();
  return dict == nullptr ? nullptr : dict->get();
}

std::optional<std::int64_t> Value::as_integer() const {
  if (const auto* integer = get<std::int64_t>()) {
    return *integer;
  }
  if (const auto* boolean = get<bool>()) {
    return *boolean ? 1 : 0;
  }
  return std::nullopt;
}

std::optional<double> Value::as_number() const {
  if (const auto* real = get<double>()) {
    return *real;
  }
  if (const auto integer = as_integer()) {
    return static_cast<double>(*integer);
  }
  return std::nullopt;
}

const Value* Namespace::find(std::string_view name) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& attribute) { return attribute.first == name; });
  return found == attributes.end() ? nullptr : &found->second;
}

void Namespace::set(std::string_view name, Value value) {
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& attribute) { return attribute.first == name; });
  if (found != attributes.end()) {
    found->second = std::move(value);
  } else if (charge.add(sizeof(attributes[0]) + name.size())) {
    attributes.emplace_back(name, std::move(value));
  }
}

SequenceBuilder::SequenceBuilder(Meter* meter, SequenceKind kind) {
  sequence_.kind = kind;
  sequence_.charge = Charge(meter);
}

void SequenceBuilder::push(Value value) {
  if (admit(value, sizeof(Value), sequence_.charge, sequence_.depth)) {
    hashable_ = hashable_ && is_hashable(value);
    sequence_.items.push_back(std::move(value));
  }
}

Value SequenceBuilder::build() && {
  sequence_.hashable = hashable_ && sequence_.kind == SequenceKind::kTuple;
  sequence_.charge.add(sizeof(Sequence));
  return {std::make_shared<Sequence>(std::move(sequence_)), kFromTemplate};
}

DictBuilder::DictBuilder(Meter* meter) { dict_.charge = Charge(meter); }

void DictBuilder::push(Value key, Value value) {
  if (admit(key, 0, dict_.charge, dict_.depth) &&
      admit(value, sizeof(dict_.items[0]), dict_.charge, dict_.depth)) {
    dict_.items.emplace_back(std::move(key), std::move(value));
  }
}

bool DictBuilder::set(const Value& key, Value value) {
  if (dict_.charge.meter() != nullptr && dict_.charge.meter()->failed()) {
    return false;
  }
  for (auto& item : dict_.items) {
    if (equal(dict_.charge.meter(), item.first, key)) {
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

bool is_hashable(const Value& value) {
  const auto* sequence = value.sequence();
  if (sequence == nullptr) {
    return value.dict() == nullptr;
  }
  switch (sequence->kind) {
    case SequenceKind::kTuple:
      return sequence->hashable;
    case SequenceKind::kRange:
    case SequenceKind::kValues:
    case SequenceKind::kGenerator:
      return true;
    default:
      return false;
  }
}

std::string_view type_name(const Value& value) {
  if (const auto* sequence = value.sequence()) {
    constexpr std::string_view kNames[] = {"list",        "tuple",      "range",    "dict_keys",
                                           "dict_values", "dict_items", "generator"};
    return kNames[static_cast<std::size_t>(sequence->kind)];
  }
  if (const auto* string = value.get<String>(); string != nullptr && string->markup) {
    return "Markup";
  }
  constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",       "int",
                                         "float",     "str",      "",           "dict",
                                         "Namespace", "function", "LoopContext"};
  return kNames[value.data().index()];
}

std::string object_name(const Value& value) {
  if (value.is_none()) {
    return "None";
  }
  return std::string(type_name(value)) + " object";
}

}  // namespace quire::text::jinja
