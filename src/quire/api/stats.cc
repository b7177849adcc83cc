// The numbers of an engine by name: as pairs, and as JSON.
#include "quire/stats.h"

#include <cstdint>
#include <new>
#include <string>
#include <variant>

#include "quire/api/llm_impl.h"  // IWYU pragma: keep (the members of an LLM)
#include "quire/api/metrics.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/engine/engine.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/json_values.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/tiers/reload_policy.h"
#include "quire/tiers/tier_service.h"

namespace quire {
namespace {

// Calls visit(name, value) for each number, in the order of the struct.
template <class Visit>
void visit_numbers(const EngineStats& stats, const Visit& visit) {
  for (const api::Metric& metric : api::metrics()) {
    std::visit([&](auto member) { visit(metric.name, stats.*member); }, metric.member);
  }
}

EngineStats public_stats(runtime::Runtime& runtime, const engine::EngineStats& stats) {
  const tiers::ReloadPolicy::Measured pace = runtime.tiers().reload_policy().measured();
  const auto ledger = stats.counts_of_both();
  return {.blocks_total = ledger.blocks_total,
          .blocks_free = ledger.blocks_free,
          .blocks_cached = ledger.blocks_cached,
          .blocks_in_use = ledger.blocks_in_use,
          .block_bytes = stats.block_bytes,
          .bytes_in_use = ledger.bytes_in_use,
          .bytes_free = ledger.bytes_total - ledger.bytes_in_use,
          .window_block_bytes = ledger.window_block_bytes,
          .window_bytes_in_use = ledger.bytes_window_in_use,
          .evictions = ledger.evictions,
          .evictions_closed = ledger.evictions_closed,
          .evictions_expired = ledger.evictions_expired,
          .evictions_later = ledger.evictions_later,
          .blocks_moved = ledger.blocks_moved,
          .blocks_coalesced = ledger.blocks_coalesced,
          .states_in_use = ledger.states_in_use,
          .restore_points = ledger.restore_points,
          .states_total = ledger.states_total,
          .host_restore_points = stats.host_points,
          .host_kv_bytes = stats.host_kv_bytes,
          .points_to_host = stats.points_to_host,
          .points_from_host = stats.points_from_host,
          .tokens_replayed = ledger.tokens_replayed,
          .sessions = ledger.sessions,
          .tokens_computed = stats.tokens_computed,
          .tokens_reused = stats.tokens_reused,
          .tokens_generated = stats.tokens_generated,
          .steps = stats.steps,
          .steps_ahead = stats.steps_ahead,
          .tokens_drafted = stats.tokens_drafted,
          .tokens_accepted = stats.tokens_accepted,
          .speculative_steps = stats.speculative_steps,
          .branches_linked = stats.branches_linked,
          .preemptions = stats.preemptions,
          .preemptions_swapped = stats.preemptions_swapped,
          .swaps_restored = stats.swaps_restored,
          .admissions_slowed = stats.admissions_slowed,
          .requests_refused = stats.requests_refused,
          .requests_expired = stats.requests_expired,
          .pressure_level = stats.pressure_level,
          .pressure_changes = stats.pressure_changes,
          .requests_finished = stats.requests_finished,
          .requests_running = stats.requests_running,
          .requests_waiting = stats.requests_waiting,
          .attention_entries = stats.attention.entries,
          .attention_rows = stats.attention.rows,
          .attention_blocks_read = stats.attention.blocks_read,
          .step_seconds = stats.step_seconds,
          .forward_seconds = stats.forward_seconds,
          .sample_seconds = stats.sample_seconds,
          .load_seconds = stats.load_seconds,
          .load_bytes = stats.load_bytes,
          .weight_bytes = stats.weight_bytes,
          .mapped_weight_bytes = stats.mapped_weight_bytes,
          .token_read_seconds = pace.read.value_or(0),
          .token_compute_seconds = pace.computed.value_or(0)};
}

}  // namespace

Result<EngineStats> LLM::engine_stats() const try {
  QUIRE_TRY(const auto runtime, impl_->open());
  QUIRE_TRY(const auto stats, runtime->engine().stats());
  return public_stats(*runtime, stats);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::int64_t> LLM::tokens_computed() const {
  QUIRE_TRY(const auto runtime, impl_->open());
  return runtime->engine().computed_tokens();
}

Result<std::string> LLM::metrics_text() const try {
  QUIRE_TRY(const auto runtime, impl_->open());
  QUIRE_TRY(const auto stats, runtime->engine().stats());
  return api::metrics_text(public_stats(*runtime, stats), stats);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

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
