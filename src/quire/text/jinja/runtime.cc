#include "quire/text/jinja/runtime.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

template <class Variables>
auto find_symbol(Variables& variables, Symbol symbol) {
  return std::find_if(variables.begin(), variables.end(),
                      [&](const auto& variable) { return variable.first == symbol; });
}

}  // namespace

const Value* Scope::find(Symbol symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    charge.meter()->step((scope->variables.size() / 8) + 1);
    const auto found = find_symbol(scope->variables, symbol);
    if (found != scope->variables.end()) {
      return &found->second;
    }
  }
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  const auto found = find_symbol(variables, symbol);
  if (found != variables.end()) {
    found->second = std::move(value);
  } else if (charge.add(sizeof(variables[0]))) {
    variables.emplace_back(symbol, std::move(value));
  }
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
