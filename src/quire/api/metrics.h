// The numbers that operators see of an engine: as pairs, or as Prometheus reads them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/engine/engine_core.h"
#include "quire/tiers/reload_policy.h"

namespace quire::api {

// A counter only grows; a gauge is a value of now.
enum class MetricKind : std::uint8_t { kCounter, kGauge };

struct Metric {
  const char* name;
  MetricKind kind;
  const char* help;  // one line
  double value;
};

// Returns the numbers of LLM::stats, in their order.
[[nodiscard]] std::vector<Metric> metrics_of(const engine::EngineStats& stats,
                                             const tiers::ReloadPolicy::Measured& pace);

// Returns these numbers and the histograms in Prometheus' text format, version 0.0.4.
[[nodiscard]] std::string metrics_text(const engine::EngineStats& stats,
                                       const tiers::ReloadPolicy::Measured& pace);

}  // namespace quire::api
