// What one rendering shares: its bounds, its clock, and the objects that may refer to each other in
// a circle.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// Names are numbered by the parser.
using Symbol = int;

// Variables of a block; look-up goes on in the parent. A template's blocks nest, so that the chain
// is as long as the template is deep.
struct Scope {
  Scope(Meter& meter, std::shared_ptr<Scope> outer) : parent(std::move(outer)), charge(&meter) {}

  std::shared_ptr<Scope> parent;
  std::vector<std::pair<Symbol, Value>> variables;
  Charge charge;

  // Null when there is none here or in a parent.
  [[nodiscard]] const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);
};
using ScopePtr = std::shared_ptr<Scope>;

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

  // Every circle of references goes through a namespace or through a scope that a macro captured;
  // the runtime empties both when it ends.
  [[nodiscard]] std::shared_ptr<Namespace> make_namespace();
  void keep(ScopePtr captured);

 private:
  Meter meter_;
  std::tm now_;
  Charge charge_{&meter_};
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<ScopePtr> captured_;
};

}  // namespace quire::text::jinja
