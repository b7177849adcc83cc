// The numbers of an engine by name: as pairs, and as JSON.
#include "quire/stats.h"

#include <new>
#include <string>
#include <variant>

#include "quire/api/metrics.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/engine/json_values.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire {
namespace {

// Calls visit(name, value) for each number, in the order of the struct.
template <class Visit>
void visit_numbers(const EngineStats& stats, const Visit& visit) {
  for (const api::Metric& metric : api::metrics()) {
    std::visit([&](auto member) { visit(metric.name, stats.*member); }, metric.member);
  }
}

}  // namespace

Result<Stats> LLM::stats() const try {
  QUIRE_TRY(const EngineStats stats, engine_stats());
  Stats pairs;
  visit_numbers(stats, [&pairs](const char* name, auto value) {
    pairs.emplace_back(name, static_cast<double>(value));
  });
  return pairs;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> to_json(const EngineStats& stats) try {
  base::Json object = base::Json::object();
  visit_numbers(
      stats, [&object](const char* name, auto value) { object.set(name, engine::json_of(value)); });
  return base::write_json(object);
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of counters");
}

}  // namespace quire
