#include "quire/text/jinja/runtime.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

const Value* Scope::find(Symbol symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    charge.meter()->step((scope->variables.size() / 8) + 1);
    for (const auto& [name, value] : scope->variables) {
      if (name == symbol) {
        return &value;
      }
    }
  }
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  const auto found = std::ranges::find_if(
      variables, [&](const auto& variable) { return variable.first == symbol; });
  if (found != variables.end()) {
    found->second = std::move(value);
  } else if (charge.add(sizeof(variables[0]))) {
    variables.emplace_back(symbol, std::move(value));
  }
}

Result<const Value*> Loop::item_at(std::size_t index) {
  while (taken_.size() <= index && next_ < items_->items.size()) {
    const Value& item = items_->items[next_++];
    bool wanted = true;
    if (filter_) {
      QUIRE_TRY(wanted, filter_(item));
    }
    if (wanted) {
      taken_.push_back(&item);
    }
  }
  return index < taken_.size() ? taken_[index] : nullptr;
}

Result<const Value*> Loop::next() {
  QUIRE_TRY(const auto* item, item_at(passed_));
  passed_ += item == nullptr ? 0 : 1;
  return item;
}

Result<Value> Loop::attribute(Meter& meter, std::string_view name) {
  const std::size_t index0 = passed_ - 1;
  const auto integer = [](std::size_t count) {
    return Value::integer(static_cast<std::int64_t>(count));
  };
  if (name == "index" || name == "index0") {
    return integer(name == "index" ? passed_ : index0);
  }
  if (name == "first") {
    return Value::boolean(index0 == 0);
  }
  if (name == "last" || name == "nextitem") {
    QUIRE_TRY(const auto* item, item_at(passed_));
    return name == "last"    ? Value::boolean(item == nullptr)
           : item != nullptr ? *item
                             : Value::undefined(meter, "there is no next item");
  }
  if (name == "previtem") {
    return index0 > 0 ? *taken_[index0 - 1] : Value::undefined(meter, "there is no previous item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    QUIRE_TRY_STATUS(item_at(std::numeric_limits<std::size_t>::max()));
    const std::size_t before = name == "length" ? 0 : name == "revindex" ? index0 : passed_;
    return integer(taken_.size() - before);
  }
  return unsupported("loop.", name);
}

Runtime::~Runtime() {
  for (const auto& space : namespaces_) {
    space->attributes.clear();
  }
  for (const auto& scope : captured_) {
    scope->variables.clear();
  }
}

std::shared_ptr<Namespace> Runtime::make_namespace() {
  auto space = std::make_shared<Namespace>();
  space->charge = Charge(&meter_);
  if (charge_.add(sizeof(Namespace) + sizeof(space))) {
    namespaces_.push_back(space);
  }
  return space;
}

void Runtime::keep(ScopePtr captured) {
  if (charge_.add(sizeof(Scope) + sizeof(captured))) {
    captured_.push_back(std::move(captured));
  }
}

}  // namespace quire::text::jinja
