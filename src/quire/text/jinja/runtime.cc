#include "quire/text/jinja/runtime.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "quire/result.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"

namespace quire::text::jinja {

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
  for (const auto& scope : kept_) {
    scope->variables.clear();
  }
}

void Runtime::keep(ScopePtr scope) {
  if (charge_.add(sizeof(Scope) + sizeof(scope))) {
    kept_.push_back(std::move(scope));
  }
}

}  // namespace quire::text::jinja
