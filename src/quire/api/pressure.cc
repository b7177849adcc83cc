// Pressure and scheduling decisions for callers.
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/llm_impl.h"  // IWYU pragma: keep (used through impl_)
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/engine.h"  // IWYU pragma: keep (used through impl_)
#include "quire/engine/json_values.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/types.h"

namespace quire {

const char* pressure_level_name(PressureLevel level) {
  constexpr const char* kNames[] = {"low", "medium", "high", "critical"};
  return kNames[static_cast<std::size_t>(level)];
}

const char* pressure_action(PressureLevel level) {
  constexpr const char* kNames[] = {"none", "slow admission", "preempt", "reject"};
  return kNames[static_cast<std::size_t>(level)];
}

Result<Pressure> LLM::pressure() const {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->pressure();
}

Result<std::vector<PlanDecision>> LLM::plan_log(std::int64_t count) const try {
  if (count < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("the number of decisions must be 0 or more, not ", count)};
  }
  QUIRE_TRY(const auto engine, impl_->open_engine());
  return engine->plan_log(static_cast<std::size_t>(count));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> to_json(const Pressure& pressure) try {
  base::Json object = base::Json::object();
  object.set("level", engine::json_of(std::string(pressure_level_name(pressure.level))));
  object.set("blocks_free_share", engine::json_of(pressure.blocks_free_share));
  object.set("waiting", engine::json_of(pressure.waiting));
  object.set("preemptions_per_minute", engine::json_of(pressure.preemptions_per_minute));
  object.set("action", engine::json_of(std::string(pressure_action(pressure.level))));
  return base::write_json(object);
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of a pressure");
}

Result<std::string> to_json(const PlanDecision& decision) try {
  base::Json object = base::Json::object();
  base::Json admitted = base::Json::array();
  for (const RequestId id : decision.admitted) {
    admitted.push(engine::json_of(static_cast<std::int64_t>(id.value)));
  }
  base::Json preempted = base::Json::array();
  for (const PreemptedRequest& lost : decision.preempted) {
    base::Json pair = base::Json::array();
    pair.push(engine::json_of(static_cast<std::int64_t>(lost.request.value)));
    pair.push(engine::json_of(lost.reason));
    preempted.push(std::move(pair));
  }
  object.set("step", engine::json_of(decision.step));
  object.set("admitted", std::move(admitted));
  object.set("preempted", std::move(preempted));
  object.set("rows", engine::json_of(decision.rows));
  object.set("ms", engine::json_of(decision.ms));
  return base::write_json(object);
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of a decision");
}

}  // namespace quire
