#include "api/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/labels.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/generation.h"
#include "engine.h"
#include "message.h"
#include "quire/chunk_types.h"
#include "quire/output.h"
#include "quire/stats.h"
#include "quire/tools.h"
#include "service.h"

namespace quire::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using Buckets = Histogram::BucketBoundaries;

// Returns the buckets of vLLM 0.32 for the time to the first token.
const Buckets& first_token_buckets() {
  static const Buckets buckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                  1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
  return buckets;
}
const Buckets& per_token_buckets() {
  static const Buckets buckets = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                  0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
  return buckets;
}
const Buckets& latency_buckets() {
  static const Buckets buckets = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                  30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
  return buckets;
}
const Buckets& choice_buckets() {
  static const Buckets buckets = {1, 2, 5, 10, 20};
  return buckets;
}
const Buckets& http_buckets() {
  static const Buckets buckets = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                  0.5,   1,      2.5,   5,    10,    30,   60};
  return buckets;
}

// Most values of a label that clients can choose; the rest is "other".
constexpr std::size_t kMostValues = 200;

// Returns 1, 2, 5, 10, ... up to a million.
Buckets token_buckets() {
  Buckets buckets;
  for (int decade = 1; decade <= 1'000'000; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      buckets.push_back(step * decade);
    }
  }
  return buckets;
}

// Returns a path without indices, as a label: "messages[3].name" gives "messages.name".
std::string without_indices(const std::string& path) {
  std::string name;
  bool inside = false;
  for (const char c : path) {
    inside = c == '[' || (inside && c != ']');
    if (!inside && c != ']') {
      name += c;
    }
  }
  return name;
}

std::string known_method(const std::string& method) {
  constexpr const char* kMethods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
  return std::ranges::find(kMethods, method) != std::end(kMethods) ? method : "OTHER";
}

// Words in the cause of a miss, and its kind. The first that fits counts.
constexpr std::pair<const char*, const char*> kMissKinds[] = {
    {"never seen", "never_seen"},
    {"not computed yet", "never_seen"},
    {"differs", "differs"},
    {"evicted", "evicted"},
    {"cleared", "cleared"},
    {"less than a block", "last_block"},
    {"a query", "query"},
    {"another anchor", "other_anchor"},
    {"on disk", "computing_is_faster"},
    {"cache is off", "cache_off"},
};

const char* miss_kind(std::string_view reason) {
  const auto* const known = std::ranges::find_if(kMissKinds, [&](const auto& kind) {
    return reason.find(kind.first) != std::string_view::npos;
  });
  return known == std::end(kMissKinds) ? "other" : known->second;
}

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  Labels model;
  Histogram* gaps = nullptr;  // histogram of the registry; held here since every token is observed
  std::set<std::string> params;
  std::map<std::string, double> engine_counters;  // counters of the engine as last shown

  Family<Counter>& counter(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(registry);
  }
  Family<Gauge>& gauge(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Register(registry);
  }
  Family<Histogram>& histogram(const char* name, const char* help) {
    return BuildHistogram().Name(name).Help(help).Register(registry);
  }
  Labels with(const char* key, std::string value) const {
    Labels labels = model;
    labels.emplace(key, std::move(value));
    return labels;
  }
  // Adds to a counter of vLLM's labels.
  void add(const char* name, const char* help, double value) {
    counter(name, help).Add(model).Increment(value);
  }
  void observe(const char* name, const char* help, const Buckets& buckets, double value) {
    histogram(name, help).Add(model, buckets).Observe(value);
  }
  void set(const char* name, const char* help, double value) {
    gauge(name, help).Add(model).Set(value);
  }
  // Shows how many guesses were checked, and how many were right.
  void raise_guesses(const EngineStats& engine) {
    const auto count = [this](const char* name, const char* help, std::int64_t now) {
      raise(counter(name, help), {}, static_cast<double>(now), name);
    };
    count("quire_tokens_drafted_total", "Guessed tokens that were checked.", engine.tokens_drafted);
    count("quire_tokens_accepted_total", "Guessed tokens that were right.", engine.tokens_accepted);
    count("quire_speculative_steps_total", "Steps that checked guessed tokens.",
          engine.speculative_steps);
  }
  // Shows how short blocks are, and what came of it.
  void raise_pressure(const EngineStats& engine) {
    const auto count = [this](const char* name, const char* help, std::int64_t now) {
      raise(counter(name, help), {}, static_cast<double>(now), name);
    };
    gauge("quire_pressure_level", "Pressure on blocks: 0 low, 1 medium, 2 high, 3 critical.")
        .Add({})
        .Set(static_cast<double>(engine.pressure_level));
    count("quire_pressure_changes_total", "Changes of this level.", engine.pressure_changes);
    count("quire_admissions_slowed_total", "Plans in which a request with room waited.",
          engine.admissions_slowed);
    count("quire_requests_refused_total", "Requests beyond --max-waiting.",
          engine.requests_refused);
    count("quire_requests_expired_total", "Requests that a deadline ended.",
          engine.requests_expired);
    count("quire_preemptions_swapped_total", "Preemptions whose KV was copied to host memory.",
          engine.preemptions_swapped);
  }
  void raise(Family<Counter>& family, const Labels& labels, double now, const std::string& key) {
    double& shown = engine_counters[key];
    family.Add(labels).Increment(std::max(now - shown, 0.0));
    shown = std::max(now, shown);
  }

  void count_usage(const RunReport& report);
  void observe_times(const RunReport& report, std::int64_t tokens);
  void begin();
};

// Shows counters at 0 from the start, so that rates can be computed.
void Metrics::Impl::begin() {
  gaps = &histogram("vllm:inter_token_latency_seconds", "Seconds between tokens.")
              .Add(model, per_token_buckets());
  add("vllm:prompt_tokens_total", "Tokens of prompts.", 0);
  add("vllm:prompt_tokens_cached_total", "Tokens of prompts that were not computed.", 0);
  add("vllm:generation_tokens_total", "Tokens generated.", 0);
  add("vllm:prefix_cache_queries_total", "Tokens looked up in the cache.", 0);
  add("vllm:prefix_cache_hits_total", "Tokens found in the cache.", 0);
  for (const char* const reason : {"stop", "length", "abort"}) {
    counter("vllm:request_success_total", "Choices that have ended.")
        .Add(with("finished_reason", reason));
  }
  for (const char* const kind : {"computed", "reused", "recomputed", "generated"}) {
    counter("quire_tokens_total", "Tokens of answers, by what was done for them.")
        .Add({{"kind", kind}});
  }
  for (const char* const grade : {"exact", "equal_math", "approximate"}) {
    counter("quire_requests_total", "Answers by grade of reuse.").Add({{"grade", grade}});
  }
  counter("quire_requests_expired_total", "Requests that a deadline ended.").Add({});
  for (const char* const reason : {"client_gone", "slow_reader", "deadline", "shutdown"}) {
    counter("quire_requests_aborted_total", "Requests that ended early.").Add({{"reason", reason}});
  }
  for (const char* const result : {"ok", "error"}) {
    counter("quire_config_reloads_total", "Reloads of the configuration.")
        .Add({{"result", result}});
  }
  for (const auto& [words, kind] : kMissKinds) {
    counter("quire_misses_total", "Parts of prompts that were not cached, by the cause.")
        .Add({{"reason", kind}});
  }
  gauge("quire_build_info", "1, with the version.").Add({{"version", version()}}).Set(1);
}

Metrics::Metrics(std::string model_name) : impl_(std::make_unique<Impl>()) {
  impl_->model = {{"model_name", std::move(model_name)}, {"engine", "0"}};
  impl_->begin();
}
Metrics::~Metrics() = default;

void Metrics::set_model(const std::string& /*name*/, std::int64_t block_tokens,
                        std::int64_t blocks) {
  Labels labels = impl_->with("block_size", std::to_string(block_tokens));
  labels.emplace("num_gpu_blocks", std::to_string(blocks));
  impl_->gauge("vllm:cache_config_info", "1, with the size of the pool of KV.").Add(labels).Set(1);
}

void Metrics::Impl::count_usage(const RunReport& report) {
  const auto prompt = static_cast<double>(report.usage.prompt_tokens);
  const auto cached = static_cast<double>(report.usage.cached_tokens);
  const auto generated = static_cast<double>(report.usage.completion_tokens);
  add("vllm:prompt_tokens_total", "", prompt);
  add("vllm:prompt_tokens_cached_total", "", cached);
  add("vllm:generation_tokens_total", "", generated);
  add("vllm:prefix_cache_queries_total", "", prompt);
  add("vllm:prefix_cache_hits_total", "", cached);
  auto& tokens = counter("quire_tokens_total", "");
  tokens.Add({{"kind", "computed"}}).Increment(static_cast<double>(report.computed_tokens));
  tokens.Add({{"kind", "reused"}}).Increment(cached);
  tokens.Add({{"kind", "generated"}}).Increment(generated);
  double recomputed = 0;
  auto& reused = counter("quire_reused_tokens_total", "Tokens that were reused, by their source.");
  for (const auto& [source, count] : report.reuse.sources) {
    const std::string kind = source.substr(0, source.find(' '));
    if (!source.starts_with("computed")) {
      reused.Add({{"source", kind}}).Increment(static_cast<double>(count));
    } else if (source.find("again") != std::string::npos ||
               source.find("blend") != std::string::npos) {
      recomputed += static_cast<double>(count);
    }
  }
  tokens.Add({{"kind", "recomputed"}}).Increment(recomputed);
  counter("quire_requests_total", "")
      .Add({{"grade", reuse_grade_name(report.reuse.grade)}})
      .Increment();
}

void Metrics::Impl::observe_times(const RunReport& report, std::int64_t tokens) {
  const double first = report.first_token_ms / 1000;
  const double queue = report.queue_ms / 1000;
  const double total = report.total_ms / 1000;
  observe("vllm:time_to_first_token_seconds", "Seconds until the first token.",
          first_token_buckets(), first);
  observe("vllm:e2e_request_latency_seconds", "Seconds until the answer.", latency_buckets(),
          total);
  observe("vllm:request_queue_time_seconds", "Seconds of waiting.", latency_buckets(), queue);
  observe("vllm:request_inference_time_seconds", "Seconds of running.", latency_buckets(),
          total - queue);
  observe("vllm:request_prefill_time_seconds", "Seconds of prefill.", latency_buckets(),
          first - queue);
  observe("vllm:request_decode_time_seconds", "Seconds behind the first token.", latency_buckets(),
          std::max(total - first, 0.0));
  if (tokens > 1) {
    observe("vllm:request_time_per_output_token_seconds", "Seconds for each further token.",
            per_token_buckets(), std::max(total - first, 0.0) / static_cast<double>(tokens - 1));
  }
}

void Metrics::observe_run(const GenerationPlan& plan, const std::vector<ChoiceState>& choices,
                          const RunReport& report) {
  static const Buckets lengths = token_buckets();
  Impl& impl = *impl_;
  impl.count_usage(report);
  impl.observe_times(report, report.usage.completion_tokens);
  impl.observe("vllm:request_prompt_tokens", "Tokens of the prompt.", lengths,
               static_cast<double>(report.usage.prompt_tokens));
  impl.observe("vllm:request_generation_tokens", "Tokens of the answer.", lengths,
               static_cast<double>(report.usage.completion_tokens));
  impl.observe("vllm:request_params_n", "Choices asked for.", choice_buckets(),
               static_cast<double>(plan.prompts.front().choices));
  impl.observe("vllm:request_params_max_tokens", "Most tokens asked for.", lengths,
               static_cast<double>(plan.prompts.front().sampling.max_tokens));
  auto& success = impl.counter("vllm:request_success_total", "");
  for (const ChoiceState& choice : choices) {
    success.Add(impl.with("finished_reason", finish_reason_name(choice.output.finish_reason)))
        .Increment();
  }
  auto& misses = impl.counter("quire_misses_total", "");
  for (const ChoiceState& choice : choices) {
    for (const ReusePart& part : choice.parts) {
      if (!part.hit) {
        misses.Add({{"reason", miss_kind(part.reason)}}).Increment();
      }
    }
  }
}

void Metrics::observe_gap(double seconds, std::int64_t tokens) {
  for (std::int64_t i = 0; i < tokens; ++i) {
    impl_->gaps->Observe(i == 0 ? seconds : 0);
  }
}

void Metrics::observe_steps(std::int64_t steps, std::int64_t tokens) {
  static const Buckets buckets = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
  auto& histogram = impl_
                        ->histogram("vllm:iteration_tokens_total",
                                    "Tokens of a step; means of the steps of a second.")
                        .Add(impl_->model, buckets);
  if (steps <= 0) {
    return;
  }
  const double mean = static_cast<double>(tokens) / static_cast<double>(steps);
  std::vector<double> increments(buckets.size() + 1);
  const auto bucket = std::ranges::lower_bound(buckets, mean) - buckets.begin();
  increments[static_cast<std::size_t>(bucket)] = static_cast<double>(steps);
  histogram.ObserveMultiple(increments, static_cast<double>(tokens));
}

void Metrics::count_rejection(int status, std::string_view code) {
  const std::string reason(code);
  if (status == 429 || code == "draining" || code == "loading" || code == "out_of_blocks") {
    impl_->counter("quire_admission_rejections_total", "Requests that were not admitted.")
        .Add({{"reason", reason}})
        .Increment();
    impl_->counter("vllm:admission_rejections_total", "Requests that were not admitted.")
        .Add(impl_->with("reason", reason))
        .Increment();
  }
  if (code == "deadline_exceeded") {
    impl_->counter("quire_requests_aborted_total", "").Add({{"reason", "deadline"}}).Increment();
    impl_->counter("quire_requests_expired_total", "").Add({}).Increment();  // by its own clock
  }
}

void Metrics::count_abort(Gone why) {
  const char* const reason = why == Gone::kClient       ? "client_gone"
                             : why == Gone::kSlowReader ? "slow_reader"
                                                        : "shutdown";
  impl_->counter("quire_requests_aborted_total", "").Add({{"reason", reason}}).Increment();
  impl_->counter("vllm:request_success_total", "")
      .Add(impl_->with("finished_reason", "abort"))
      .Increment();
}

void Metrics::count_ignored(const std::vector<std::string>& paths) {
  auto& family =
      impl_->counter("quire_ignored_parameters_total", "Fields without effect that were sent.");
  for (const std::string& path : paths) {
    std::string param = without_indices(path);
    if (impl_->params.size() >= kMostValues && !impl_->params.contains(param)) {
      param = "other";
    }
    impl_->params.insert(param);
    family.Add({{"param", param}}).Increment();
  }
}

void Metrics::count_reload(bool ok) {
  impl_->counter("quire_config_reloads_total", "")
      .Add({{"result", ok ? "ok" : "error"}})
      .Increment();
}

void Metrics::observe(const AccessRecord& record) {
  const std::string route = record.facts.route.empty() ? "other" : record.facts.route;
  impl_->counter("quire_http_requests_total", "Requests that were answered.")
      .Add({{"route", route},
            {"method", known_method(record.method)},
            {"code", std::to_string(record.status)}})
      .Increment();
  impl_->histogram("quire_http_request_seconds", "Seconds until the end of the answer.")
      .Add({{"route", route}}, http_buckets())
      .Observe(record.total_ms / 1000);
}

std::string Metrics::text(const Gauges& gauges) {
  Impl& impl = *impl_;
  const EngineStats& engine = gauges.counts.engine;
  const ChunkStats& registered = gauges.counts.chunks;
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  impl.set("vllm:num_requests_waiting", "Generations that wait.", number(gauges.runs_waiting));
  impl.set("vllm:num_requests_running", "Generations that run.", number(gauges.runs_running));
  impl.set(
      "vllm:kv_cache_usage_perc", "Share of KV blocks in use, without cached ones.",
      engine.blocks_total > 0 ? number(engine.blocks_in_use) / number(engine.blocks_total) : 0);
  impl.gauge("vllm:lora_requests_info", "Time of the scrape; there are no adapters.")
      .Add({{"max_lora", "0"}, {"running_lora_adapters", ""}, {"waiting_lora_adapters", ""}})
      .Set(number(gauges.unix_seconds));
  impl.raise(impl.counter("vllm:num_preemptions_total", "Requests that gave their blocks back."),
             impl.model, number(engine.preemptions), "preemptions");
  impl.raise_pressure(engine);
  impl.raise_guesses(engine);
  auto& blocks = impl.gauge("quire_blocks", "KV blocks by state.");
  blocks.Add({{"state", "free"}}).Set(number(engine.blocks_free));
  blocks.Add({{"state", "cached"}}).Set(number(engine.blocks_cached));
  blocks.Add({{"state", "in_use"}}).Set(number(engine.blocks_in_use));
  auto& points = impl.gauge("quire_restore_points", "States that are kept to go on from, by tier.");
  points.Add({{"tier", "device"}}).Set(number(engine.restore_points));
  points.Add({{"tier", "host"}}).Set(number(engine.host_restore_points));
  auto& connections = impl.gauge("quire_http_connections", "Connections by state.");
  connections.Add({{"state", "active"}}).Set(number(gauges.transport.active));
  connections.Add({{"state", "idle"}}).Set(number(gauges.transport.idle));
  auto& chunks = impl.gauge("quire_chunks", "Registered chunks of all tenants, by type.");
  chunks.Add({{"type", "system_prompt"}}).Set(number(registered.system_chunks));
  chunks.Add({{"type", "context"}}).Set(number(registered.context_chunks));
  chunks.Add({{"type", "query"}}).Set(number(registered.query_chunks));
  impl.raise(impl.counter("quire_chunk_evictions_total", "Chunks that made room for others."), {},
             number(registered.evictions), "chunk_evictions");
  impl.raise(impl.counter("quire_io_blocked_total",
                          "Tasks that held the thread of all connections for more than 1 ms."),
             {}, number(gauges.turns.blocked), "io_blocked");
  impl.raise(impl.counter("quire_io_blocked_seconds_total", "Seconds of these tasks."), {},
             gauges.turns.blocked_seconds, "io_blocked_seconds");
  const auto plain = [&](const char* name, const char* help, double value) {
    impl.gauge(name, help).Add({}).Set(value);
  };
  plain("quire_host_kv_bytes", "Bytes of restore points in host memory, with the KV before them.",
        number(engine.host_kv_bytes));
  plain("quire_holds", "Prompts that are held.", number(gauges.holds));
  plain("quire_held_tokens", "Tokens that are held.", number(gauges.held_tokens));
  plain("quire_sequences", "Sequences that are there.", number(gauges.sequences));
  plain("quire_stored_responses", "Responses that are kept.", 0);
  plain("quire_engine_last_step_age_seconds", "Seconds since the last step while something runs.",
        gauges.last_step_age_seconds);
  return prometheus::TextSerializer().Serialize(impl.registry.Collect());
}

}  // namespace quire::server
