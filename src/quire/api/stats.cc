// The counters of an engine by name: as pairs, and as JSON.
#include "quire/stats.h"

#include <cstdint>
#include <new>
#include <string>
#include <variant>

#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/engine/json_values.h"
#include "quire/llm.h"
#include "quire/result.h"

namespace quire {
namespace {

struct Counter {
  const char* name;
  std::variant<std::int64_t EngineStats::*, double EngineStats::*> member;
};

constexpr Counter kCounters[] = {
    {"blocks_total", &EngineStats::blocks_total},
    {"blocks_free", &EngineStats::blocks_free},
    {"blocks_cached", &EngineStats::blocks_cached},
    {"blocks_in_use", &EngineStats::blocks_in_use},
    {"block_bytes", &EngineStats::block_bytes},
    {"bytes_in_use", &EngineStats::bytes_in_use},
    {"evictions", &EngineStats::evictions},
    {"evictions_closed", &EngineStats::evictions_closed},
    {"evictions_expired", &EngineStats::evictions_expired},
    {"evictions_later", &EngineStats::evictions_later},
    {"blocks_moved", &EngineStats::blocks_moved},
    {"sessions", &EngineStats::sessions},
    {"tokens_computed", &EngineStats::tokens_computed},
    {"tokens_reused", &EngineStats::tokens_reused},
    {"tokens_generated", &EngineStats::tokens_generated},
    {"steps", &EngineStats::steps},
    {"steps_ahead", &EngineStats::steps_ahead},
    {"preemptions", &EngineStats::preemptions},
    {"requests_finished", &EngineStats::requests_finished},
    {"requests_running", &EngineStats::requests_running},
    {"requests_waiting", &EngineStats::requests_waiting},
    {"attention_entries", &EngineStats::attention_entries},
    {"attention_rows", &EngineStats::attention_rows},
    {"attention_blocks_read", &EngineStats::attention_blocks_read},
    {"step_seconds", &EngineStats::step_seconds},
    {"forward_seconds", &EngineStats::forward_seconds},
    {"sample_seconds", &EngineStats::sample_seconds},
    {"load_seconds", &EngineStats::load_seconds},
    {"load_bytes", &EngineStats::load_bytes},
    {"weight_bytes", &EngineStats::weight_bytes},
    {"mapped_weight_bytes", &EngineStats::mapped_weight_bytes},
    {"token_read_seconds", &EngineStats::token_read_seconds},
    {"token_compute_seconds", &EngineStats::token_compute_seconds},
};

// Calls visit(name, value) for each counter, in the order of the struct.
template <class Visit>
void visit_counters(const EngineStats& stats, const Visit& visit) {
  for (const Counter& counter : kCounters) {
    std::visit([&](auto member) { visit(counter.name, stats.*member); }, counter.member);
  }
}

}  // namespace

Result<Stats> LLM::stats() const try {
  QUIRE_TRY(const EngineStats stats, engine_stats());
  Stats pairs;
  visit_counters(stats, [&pairs](const char* name, auto value) {
    pairs.emplace_back(name, static_cast<double>(value));
  });
  return pairs;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> to_json(const EngineStats& stats) try {
  base::Json object = base::Json::object();
  visit_counters(
      stats, [&object](const char* name, auto value) { object.set(name, engine::json_of(value)); });
  return base::write_json(object);
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of counters");
}

}  // namespace quire
