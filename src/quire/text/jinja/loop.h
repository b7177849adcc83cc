// The variable `loop` of a for statement, and the taking of its items.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// Takes items one by one, as late as Python's generators do: the filter of `for x in y if z` sees
// what earlier iterations did, unless loop.last, nextitem or length asked for items ahead.
class LoopContext {
 public:
  using Filter = std::function<Result<bool>(const Value&)>;

  // `filter` may be empty.
  LoopContext(SequencePtr items, Filter filter)
      : items_(std::move(items)), filter_(std::move(filter)) {}

  // Moves to the next item; nullopt after the last.
  [[nodiscard]] Result<std::optional<Value>> next();

  [[nodiscard]] Result<std::int64_t> length();
  [[nodiscard]] Result<std::string> printed();

  // The attribute `name` of `loop`; undefined when it has none.
  [[nodiscard]] static Result<Value> attribute(Meter& meter,
                                               const std::shared_ptr<LoopContext>& loop,
                                               std::string_view name);

 private:
  [[nodiscard]] Result<std::optional<Value>> take();
  [[nodiscard]] Result<std::optional<Value>> peek();
  [[nodiscard]] bool changed(Meter& meter, Value arguments);

  SequencePtr items_;
  Filter filter_;
  std::size_t next_item_ = 0;  // in items_
  std::int64_t index0_ = -1;
  std::optional<std::int64_t> length_;
  bool peeked_ = false;
  std::optional<Value> after_;  // valid if peeked_
  std::optional<Value> current_;
  std::optional<Value> before_;
  std::optional<Value> last_changed_;
};

}  // namespace quire::text::jinja
