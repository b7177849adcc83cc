// Metrics: counters and histograms in Prometheus' text format.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine.h"
#include "loop.h"
#include "message.h"
#include "service.h"

namespace quire::server {

struct ChoiceState;
struct GenerationPlan;
struct RunReport;

// Values of the moment that a scrape shows beside the counters. Plain data.
struct Gauges {
  EngineCounts counts = {};
  LoopTurns turns = {};
  std::int64_t runs_waiting = 0, runs_running = 0;
  TransportStats transport = {};
  std::int64_t sequences = 0, holds = 0, held_tokens = 0;
  std::int64_t unix_seconds = 0;
  double last_step_age_seconds = 0;
};

// Counts events. Threads: the loop's thread.
class Metrics {
 public:
  explicit Metrics(std::string model_name);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  void set_model(const std::string& name, std::int64_t block_tokens, std::int64_t blocks);
  void observe_run(const GenerationPlan& plan, const std::vector<ChoiceState>& choices,
                   const RunReport& report);
  // Counts `tokens` that came `seconds` after the ones before.
  void observe_gap(double seconds, std::int64_t tokens);
  // Counts steps of the engine, and the tokens that they have computed. Each step of one call
  // counts with their mean.
  void observe_steps(std::int64_t steps, std::int64_t tokens);
  void count_rejection(int status, std::string_view code);
  void count_abort(Gone why);
  void count_ignored(const std::vector<std::string>& paths);
  void count_reload(bool ok);
  void observe(const AccessRecord& record);
  // Returns all numbers in the text format 0.0.4. Never waits.
  [[nodiscard]] std::string text(const Gauges& gauges);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::server
