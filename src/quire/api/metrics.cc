#include "quire/api/metrics.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/resident_memory.h"
#include "quire/base/stopwatch.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/histogram.h"
#include "quire/tiers/reload_policy.h"

namespace quire::api {
namespace {

using enum MetricKind;

template <class Number>
double count(Number value) {
  return static_cast<double>(value);
}

std::vector<Metric> block_metrics(const engine::EngineStats& stats) {
  const auto& ledger = stats.ledger;
  return {
      {"blocks_total", kGauge, "KV blocks of the pool", count(ledger.blocks_total)},
      {"blocks_free", kGauge, "KV blocks that are free", count(ledger.blocks_free)},
      {"blocks_cached", kGauge, "KV blocks that the prefix cache knows and nobody uses",
       count(ledger.blocks_cached)},
      {"blocks_in_use", kGauge, "KV blocks in use, also by registered chunks",
       count(ledger.blocks_in_use)},
      {"block_bytes", kGauge, "Bytes of one KV block over all layers", count(stats.block_bytes)},
      {"bytes_in_use", kGauge, "Bytes of the KV blocks in use",
       count(ledger.blocks_in_use) * count(stats.block_bytes)},
      {"evictions", kCounter, "Cached blocks freed to make room", count(ledger.evictions)},
      {"evictions_closed", kCounter, "Evicted blocks of a session that was closed",
       count(ledger.evictions_closed)},
      {"evictions_expired", kCounter, "Evicted blocks of a session that was over its time",
       count(ledger.evictions_expired)},
      {"evictions_later", kCounter, "Evicted blocks of a session that was expected back later",
       count(ledger.evictions_later)},
      {"blocks_moved", kCounter, "Cached blocks copied elsewhere so that others lie side by side",
       count(ledger.blocks_moved)},
      {"sessions", kGauge, "Open sessions", count(ledger.sessions)},
  };
}

std::vector<Metric> work_metrics(const engine::EngineStats& stats) {
  return {
      {"tokens_computed", kCounter, "Rows that went through the model",
       count(stats.tokens_computed)},
      {"tokens_reused", kGauge, "Tokens of prompts that were not computed",
       count(stats.tokens_reused)},
      {"tokens_generated", kCounter, "Generated tokens", count(stats.tokens_generated)},
      {"steps", kCounter, "Forward passes", count(stats.steps)},
      {"steps_ahead", kCounter, "Forward passes launched while the one before still ran",
       count(stats.steps_ahead)},
      {"preemptions", kCounter, "Times a running request gave its blocks back",
       count(stats.preemptions)},
      {"requests_finished", kCounter, "Finished requests, computed chunks included",
       count(stats.requests_finished)},
      {"requests_running", kGauge, "Running requests", count(stats.requests_running)},
      {"requests_waiting", kGauge, "Waiting requests", count(stats.requests_waiting)},
      {"attention_entries", kCounter, "Runs of KV with the rows that attend to them, in all layers",
       count(stats.attention.entries)},
      {"attention_rows", kCounter, "Rows of these runs", count(stats.attention.rows)},
      {"attention_blocks_read", kCounter, "Visits to a KV block by one KV head in one layer",
       count(stats.attention.blocks_read)},
      {"step_seconds", kCounter, "Time in steps", stats.step_seconds},
      {"forward_seconds", kCounter, "Time in the model", stats.forward_seconds},
      {"sample_seconds", kCounter, "Time choosing tokens", stats.sample_seconds},
  };
}

std::vector<Metric> other_metrics(const engine::EngineStats& stats,
                                  const tiers::ReloadPolicy::Measured& pace) {
  return {
      {"load_seconds", kGauge, "Time to open the model", stats.load_seconds},
      {"load_bytes", kGauge, "Bytes read to open the model", count(stats.load_bytes)},
      {"weight_bytes", kGauge, "Bytes of packed weights", count(stats.weight_bytes)},
      {"mapped_weight_bytes", kGauge, "Bytes of packed weights that are mapped from a store",
       count(stats.mapped_weight_bytes)},
      {"token_read_seconds", kGauge, "Measured time to read a token of saved KV; 0 until measured",
       pace.read.value_or(0)},
      {"token_compute_seconds", kGauge, "Measured time to compute a token; 0 until measured",
       pace.computed.value_or(0)},
      {"oldest_waiting_seconds", kGauge,
       "Time since the oldest waiting request was submitted; 0 when none waits",
       stats.waiting_since ? base::seconds_since(*stats.waiting_since) : 0},
      {"process_resident_memory_bytes", kGauge,
       "Bytes of the process in RAM, mapped weights included", count(base::resident_bytes())},
  };
}

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

void add_metric(std::string& text, const Metric& metric) {
  const bool counts = metric.kind == kCounter;
  const std::string name = std::string("quire_") + metric.name + (counts ? "_total" : "");
  add_head(text, name, metric.help, counts ? "counter" : "gauge");
  text += name + " " + shown(metric.value) + "\n";
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

std::vector<Metric> metrics_of(const engine::EngineStats& stats,
                               const tiers::ReloadPolicy::Measured& pace) {
  std::vector<Metric> all = block_metrics(stats);
  for (const std::vector<Metric>& more : {work_metrics(stats), other_metrics(stats, pace)}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

std::string metrics_text(const engine::EngineStats& stats,
                         const tiers::ReloadPolicy::Measured& pace) {
  std::string text;
  for (const Metric& metric : metrics_of(stats, pace)) {
    add_metric(text, metric);
  }
  add_histogram(text, "quire_time_to_first_token_seconds",
                "Time from submission to the first generated token", stats.first_token_times);
  add_histogram(text, "quire_queue_time_seconds",
                "Time from submission until a request was first computed", stats.queue_times);
  add_histogram(text, "quire_step_time_seconds", "Time of one step up to delivery",
                stats.step_times);
  return text;
}

}  // namespace quire::api
