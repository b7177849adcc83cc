// The numbers of an engine: one table for pairs, JSON and Prometheus' text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "quire/engine/engine_core.h"
#include "quire/stats.h"

namespace quire::api {

// A counter only grows; a gauge is a value of now.
enum class MetricKind : std::uint8_t { kCounter, kGauge };

struct Metric {
  const char* name;
  MetricKind kind;
  const char* help;  // one line
  std::variant<std::int64_t EngineStats::*, double EngineStats::*> member;
};

// Returns all numbers, in the order of EngineStats.
[[nodiscard]] std::span<const Metric> metrics();

// Returns the numbers in Prometheus' text format, version 0.0.4, with the histograms of `times`.
// Adds queue age and memory of the process as they are now, since both change while nothing is
// computed.
[[nodiscard]] std::string metrics_text(const EngineStats& stats, const engine::EngineStats& times);

}  // namespace quire::api
