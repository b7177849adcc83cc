#include "quire/api/metrics.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "quire/base/resident_memory.h"
#include "quire/base/stopwatch.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/histogram.h"
#include "quire/stats.h"

namespace quire::api {
namespace {

using enum MetricKind;

constexpr Metric kMetrics[] = {
    {"blocks_total", kGauge, "KV blocks of the pool", &EngineStats::blocks_total},
    {"blocks_free", kGauge, "KV blocks that are free", &EngineStats::blocks_free},
    {"blocks_cached", kGauge, "KV blocks that the prefix cache knows and nobody uses",
     &EngineStats::blocks_cached},
    {"blocks_in_use", kGauge, "KV blocks in use, also by registered chunks",
     &EngineStats::blocks_in_use},
    {"block_bytes", kGauge, "Bytes of one KV block over all layers", &EngineStats::block_bytes},
    {"bytes_in_use", kGauge, "Bytes of the KV blocks in use", &EngineStats::bytes_in_use},
    {"bytes_free", kGauge, "Bytes of the KV budget not in use, cached ones included",
     &EngineStats::bytes_free},
    {"window_block_bytes", kGauge, "Bytes of a block that go before it, behind a window",
     &EngineStats::window_block_bytes},
    {"window_bytes_in_use", kGauge, "Bytes in use of layers with a window",
     &EngineStats::window_bytes_in_use},
    {"evictions", kCounter, "Cached blocks freed to make room", &EngineStats::evictions},
    {"evictions_closed", kCounter, "Evicted blocks of a session that was closed",
     &EngineStats::evictions_closed},
    {"evictions_expired", kCounter, "Evicted blocks of a session that was over its time",
     &EngineStats::evictions_expired},
    {"evictions_later", kCounter, "Evicted blocks of a session that was expected back later",
     &EngineStats::evictions_later},
    {"blocks_moved", kCounter, "Cached blocks copied elsewhere so that others lie side by side",
     &EngineStats::blocks_moved},
    {"blocks_coalesced", kCounter, "Blocks freed since chunks that rest share their last blocks",
     &EngineStats::blocks_coalesced},
    {"states_in_use", kGauge, "States of layers that carry one, held by sequences",
     &EngineStats::states_in_use},
    {"restore_points", kGauge, "States that are kept to go on from", &EngineStats::restore_points},
    {"states_total", kGauge, "States altogether", &EngineStats::states_total},
    {"host_restore_points", kGauge, "Restore points in host memory",
     &EngineStats::host_restore_points},
    {"host_kv_bytes", kGauge, "Bytes of restore points in host memory, with the KV before them",
     &EngineStats::host_kv_bytes},
    {"points_to_host", kCounter, "Restore points that the pool gave up to host memory",
     &EngineStats::points_to_host},
    {"points_from_host", kCounter, "Times a request went on from a restore point in host memory",
     &EngineStats::points_from_host},
    {"tokens_replayed", kCounter, "Known tokens computed again from a restore point on",
     &EngineStats::tokens_replayed},
    {"sessions", kGauge, "Open sessions", &EngineStats::sessions},
    {"tokens_computed", kCounter, "Rows that went through the model",
     &EngineStats::tokens_computed},
    {"tokens_reused", kGauge, "Tokens of prompts that were not computed",
     &EngineStats::tokens_reused},
    {"tokens_generated", kCounter, "Generated tokens", &EngineStats::tokens_generated},
    {"steps", kCounter, "Forward passes", &EngineStats::steps},
    {"steps_ahead", kCounter, "Forward passes launched while the one before still ran",
     &EngineStats::steps_ahead},
    {"tokens_drafted", kCounter, "Guessed tokens that were checked", &EngineStats::tokens_drafted},
    {"tokens_accepted", kCounter, "Guessed tokens that were right", &EngineStats::tokens_accepted},
    {"speculative_steps", kCounter, "Forward passes that checked guessed tokens",
     &EngineStats::speculative_steps},
    {"branches_linked", kCounter, "Branches of guesses that were right",
     &EngineStats::branches_linked},
    {"preemptions", kCounter, "Times a running request gave its blocks back",
     &EngineStats::preemptions},
    {"preemptions_swapped", kCounter, "Preemptions whose KV was copied to host memory",
     &EngineStats::preemptions_swapped},
    {"swaps_restored", kCounter, "Times such KV was copied back", &EngineStats::swaps_restored},
    {"admissions_slowed", kCounter,
     "Plans in which a request with room waited, as blocks were short",
     &EngineStats::admissions_slowed},
    {"requests_refused", kCounter, "Requests refused since the queue was full",
     &EngineStats::requests_refused},
    {"requests_expired", kCounter, "Requests ended by their deadline",
     &EngineStats::requests_expired},
    {"pressure_level", kGauge, "Pressure on blocks: 0 low, 1 medium, 2 high, 3 critical",
     &EngineStats::pressure_level},
    {"pressure_changes", kCounter, "Changes of the level of pressure",
     &EngineStats::pressure_changes},
    {"requests_finished", kCounter, "Finished requests, computed chunks included",
     &EngineStats::requests_finished},
    {"requests_running", kGauge, "Running requests", &EngineStats::requests_running},
    {"requests_waiting", kGauge, "Waiting requests", &EngineStats::requests_waiting},
    {"attention_entries", kCounter, "Runs of KV with the rows that attend to them, in all layers",
     &EngineStats::attention_entries},
    {"attention_rows", kCounter, "Rows of these runs", &EngineStats::attention_rows},
    {"attention_blocks_read", kCounter, "Visits to a KV block by one KV head in one layer",
     &EngineStats::attention_blocks_read},
    {"step_seconds", kCounter, "Time in steps", &EngineStats::step_seconds},
    {"forward_seconds", kCounter, "Time in the model", &EngineStats::forward_seconds},
    {"sample_seconds", kCounter, "Time choosing tokens", &EngineStats::sample_seconds},
    {"load_seconds", kGauge, "Time to open the model", &EngineStats::load_seconds},
    {"load_bytes", kGauge, "Bytes read to open the model", &EngineStats::load_bytes},
    {"weight_bytes", kGauge, "Bytes of packed weights", &EngineStats::weight_bytes},
    {"mapped_weight_bytes", kGauge, "Bytes of packed weights that are mapped from a store",
     &EngineStats::mapped_weight_bytes},
    {"token_read_seconds", kGauge, "Measured time to read a token of saved KV; 0 until measured",
     &EngineStats::token_read_seconds},
    {"token_compute_seconds", kGauge, "Measured time to compute a token; 0 until measured",
     &EngineStats::token_compute_seconds},
};

// Returns the shortest text that reads as this number.
std::string shown(double value) {
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

void add_head(std::string& text, const std::string& name, std::string_view help,
              std::string_view type) {
  text += "# HELP " + name + " ";
  text.append(help).append(".\n# TYPE ").append(name).append(" ").append(type).append("\n");
}

void add_number(std::string& text, std::string_view name, MetricKind kind, std::string_view help,
                double value) {
  const bool counts = kind == kCounter;
  const std::string full = "quire_" + std::string(name) + (counts ? "_total" : "");
  add_head(text, full, help, counts ? "counter" : "gauge");
  text += full + " " + shown(value) + "\n";
}

void add_histogram(std::string& text, const std::string& name, std::string_view help,
                   const engine::Histogram& histogram) {
  add_head(text, name, help, "histogram");
  std::int64_t total = 0;
  for (std::size_t i = 0; i <= engine::Histogram::kBounds; ++i) {
    total += histogram.count(i);
    const bool last = i == engine::Histogram::kBounds;
    text += name + "_bucket{le=\"" + (last ? "+Inf" : shown(engine::Histogram::bound(i))) + "\"} " +
            std::to_string(total) + "\n";
  }
  text += name + "_sum " + shown(histogram.sum()) + "\n";
  text += name + "_count " + std::to_string(total) + "\n";
}

}  // namespace

std::span<const Metric> metrics() { return kMetrics; }

std::string metrics_text(const EngineStats& stats, const engine::EngineStats& times) {
  std::string text;
  for (const Metric& metric : kMetrics) {
    std::visit(
        [&](auto member) {
          add_number(text, metric.name, metric.kind, metric.help,
                     static_cast<double>(stats.*member));
        },
        metric.member);
  }
  add_number(text, "oldest_waiting_seconds", kGauge,
             "Time since the oldest waiting request was submitted; 0 when none waits",
             times.waiting_since ? base::seconds_since(*times.waiting_since) : 0);
  add_number(text, "process_resident_memory_bytes", kGauge,
             "Bytes of the process in RAM, mapped weights included",
             static_cast<double>(base::resident_bytes()));
  add_histogram(text, "quire_time_to_first_token_seconds",
                "Time from submission to the first generated token", times.first_token_times);
  add_histogram(text, "quire_queue_time_seconds",
                "Time from submission until a request was first computed", times.queue_times);
  add_histogram(text, "quire_step_time_seconds", "Time of one step up to delivery",
                times.step_times);
  return text;
}

}  // namespace quire::api
