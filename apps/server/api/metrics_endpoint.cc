// GET /metrics.
#include "api/metrics_endpoint.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "api/call.h"
#include "api/endpoints.h"
#include "api/generation.h"
#include "api/holds.h"
#include "api/metrics.h"
#include "api/router.h"
#include "api/stall.h"
#include "engine.h"
#include "loop.h"
#include "message.h"
#include "objects/objects.h"

namespace quire::server {
namespace {

// Time for which a scrape waits for numbers of now.
constexpr std::chrono::milliseconds kPatience{3};

Gauges gauges_of(const Services& services, const EngineCounts& counts) {
  Gauges gauges{.counts = counts, .turns = services.loop.turns()};
  for (const auto& [id, run] : services.runs) {
    const auto count = static_cast<std::int64_t>(run->choices().size());
    (run->state() == RunState::kQueued ? gauges.runs_waiting : gauges.runs_running) += count;
  }
  if (services.transport_stats) {
    gauges.transport = services.transport_stats();
  }
  if (services.objects != nullptr) {
    services.objects->fill(gauges);
  }
  gauges.holds = services.holds->count();
  gauges.held_tokens = services.holds->tokens();
  gauges.unix_seconds = unix_seconds();
  gauges.last_step_age_seconds = services.stall->last_step_age();
  return gauges;
}

void metrics(Services& services, CallPtr call) { scrape(services, call->answer); }

constexpr Endpoint kMetricsEndpoints[] = {
    {.method = "GET",
     .pattern = "/metrics",
     .summary = "Shows counters as text, for Prometheus.",
     .access = Access::kAdmin,
     .content = "text/plain",
     .handle = metrics},
};

}  // namespace

// Answers with the engine's numbers of now, or those of the last second, whichever come first.
void scrape(Services& services, const std::shared_ptr<Answer>& answer) {
  struct Scrape {
    bool answered = false;
    Loop::Timer timer = 0;
  };
  const auto state = std::make_shared<Scrape>();
  const auto send = [&services, answer, state](const EngineCounts& counts) {
    if (std::exchange(state->answered, true)) {
      return;
    }
    services.loop.cancel(state->timer);
    Response response{.content_type = "text/plain; version=0.0.4; charset=utf-8"};
    response.body = services.metrics->text(gauges_of(services, counts));
    answer->send(std::move(response));
  };
  state->timer =
      services.loop.after(kPatience, [&services, send] { send(services.stall->last_counts()); });
  if (services.engine == nullptr) {
    return;
  }
  services.loop.work([&loop = services.loop, send, engine = services.engine] {
    auto counts = engine->counts();
    loop.post([send, counts = std::move(counts)] {
      if (counts.ok()) {
        send(*counts);
      }
    });
  });
}

std::span<const Endpoint> metrics_endpoints() { return kMetricsEndpoints; }

}  // namespace quire::server
