#include "quire/text/jinja/loop.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/jinja/compare.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {
namespace {

Value cycle_method(Meter& meter, std::int64_t index0) {
  return Value::callable(
      meter, {.description = "loop.cycle",
              .printed = "",
              .call = [index0](Runtime&, const Arguments& arguments) -> Result<Value> {
                if (arguments.positional.empty()) {
                  return invalid("loop.cycle needs at least one item");
                }
                return arguments
                    .positional[static_cast<std::size_t>(index0) % arguments.positional.size()];
              }});
}

}  // namespace

Result<std::optional<Value>> LoopContext::take() {
  while (next_item_ < items_->items.size()) {
    const Value& item = items_->items[next_item_++];
    bool wanted = true;
    if (filter_) {
      QUIRE_TRY(wanted, filter_(item));
    }
    if (wanted) {
      return std::optional<Value>(item);
    }
  }
  return std::optional<Value>();
}

Result<std::optional<Value>> LoopContext::peek() {
  if (!peeked_) {
    QUIRE_TRY(after_, take());
    peeked_ = true;
  }
  return after_;
}

Result<std::optional<Value>> LoopContext::next() {
  QUIRE_TRY(auto item, peek());
  peeked_ = false;
  if (item) {
    ++index0_;
    before_ = std::move(current_);
    current_ = item;
  }
  return item;
}

Result<std::int64_t> LoopContext::length() {
  if (length_) {
    return *length_;
  }
  if (!filter_) {
    length_ = static_cast<std::int64_t>(items_->items.size());
    return *length_;
  }
  QUIRE_TRY(const auto ahead, peek());
  auto rest = std::make_shared<Sequence>();
  for (;;) {
    QUIRE_TRY(auto item, take());
    if (!item) {
      break;
    }
    rest->items.push_back(*std::move(item));
  }
  length_ = index0_ + 1 + (ahead ? 1 : 0) + static_cast<std::int64_t>(rest->items.size());
  items_ = std::move(rest);
  next_item_ = 0;
  filter_ = nullptr;
  return *length_;
}

Result<std::string> LoopContext::printed() {
  QUIRE_TRY(const auto count, length());
  return base::str_cat("<LoopContext ", index0_ + 1, "/", count, ">");
}

bool LoopContext::changed(Meter& meter, Value arguments) {
  if (last_changed_ && equal(&meter, *last_changed_, arguments)) {
    return false;
  }
  last_changed_ = std::move(arguments);
  return true;
}

Result<Value> LoopContext::attribute(Meter& meter, const std::shared_ptr<LoopContext>& loop,
                                     std::string_view name) {
  LoopContext& self = *loop;
  if (name == "index") {
    return Value::integer(self.index0_ + 1);
  }
  if (name == "index0") {
    return Value::integer(self.index0_);
  }
  if (name == "first") {
    return Value::boolean(self.index0_ == 0);
  }
  if (name == "last" || name == "nextitem") {
    QUIRE_TRY(auto after, self.peek());
    if (name == "last") {
      return Value::boolean(!after);
    }
    return after ? *std::move(after) : Value::undefined(meter, "there is no next item");
  }
  if (name == "previtem") {
    return self.before_ ? *self.before_ : Value::undefined(meter, "there is no previous item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    QUIRE_TRY(const auto count, self.length());
    const std::int64_t passed = name == "length"     ? 0
                                : name == "revindex" ? self.index0_
                                                     : self.index0_ + 1;
    return Value::integer(count - passed);
  }
  if (name == "depth" || name == "depth0") {
    return Value::integer(name == "depth" ? 1 : 0);
  }
  if (name == "cycle") {
    return cycle_method(meter, self.index0_);
  }
  if (name == "changed") {
    return Value::callable(meter, {.description = "loop.changed",
                                   .printed = "",
                                   .call = [loop, &meter](Runtime&, const Arguments& arguments) {
                                     SequenceBuilder tuple(&meter, SequenceKind::kTuple);
                                     for (const auto& argument : arguments.positional) {
                                       tuple.push(argument);
                                     }
                                     return Result<Value>(Value::boolean(
                                         loop->changed(meter, std::move(tuple).build())));
                                   }});
  }
  return Value::undefined(meter, base::str_cat("'loop' has no attribute '", name, "'"));
}

}  // namespace quire::text::jinja
