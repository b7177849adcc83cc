// State of one rendering: its bounds, its clock, its loops, and the scopes that may refer to each
// other in a circle.
#pragma once

#include <cstddef>
#include <ctime>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/jinja/value.h"
#include "quire/text/render_meter.h"

namespace quire::text::jinja {

// Holds the variable `loop` of a for statement, and takes its items one by one, as late as Python's
// generators do. The filter of `for x in y if z` sees what earlier iterations did, unless
// loop.last, nextitem or length asked for items ahead.
class Loop {
 public:
  using Filter = std::function<Result<bool>(const Value&)>;

  // Makes the loop over `items`. `filter` may be empty.
  Loop(SequencePtr items, Filter filter) : items_(std::move(items)), filter_(std::move(filter)) {}

  // Moves to the next item and returns it; null after the last. Lives as long as the loop.
  Result<const Value*> next();
  // Returns the attribute `name` of `loop`; undefined when it has none.
  Result<Value> attribute(Meter& meter, std::string_view name);

 private:
  // Returns the item at `index` of those that the filter lets through; null behind the last.
  Result<const Value*> item_at(std::size_t index);

  SequencePtr items_;
  Filter filter_;
  std::vector<const Value*> taken_;  // items taken of items_
  std::size_t next_ = 0;             // index of the next item in items_
  std::size_t passed_ = 0;           // items that next() has returned
};

// Thread rule: one rendering, one thread. All values of the rendering die before it.
class Runtime {
 public:
  Runtime(const Limits& limits, const std::tm& now, base::WorkMeter* work)
      : meter_(limits, work), now_(now) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] Meter& meter() { return meter_; }
  [[nodiscard]] const std::tm& now() const { return now_; }

  // Keeps a scope, which the runtime empties when it ends. Every circle of references goes through
  // a namespace or through a scope that a macro captured.
  void keep(ScopePtr scope);

 private:
  Meter meter_;
  std::tm now_;
  Charge charge_{&meter_};
  std::vector<ScopePtr> kept_;
};

}  // namespace quire::text::jinja
