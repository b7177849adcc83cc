#include "quire/engine/llm_options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "quire/base/str.h"
#include "quire/drafts/options.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/log.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sched/policy.h"

namespace quire::engine {

namespace {

Status out_of_range(std::string_view option, std::int64_t value, std::string_view range) {
  return {ErrorCode::kInvalidArgument, base::str_cat(option, " must be ", range, ", not ", value)};
}

Status check_name(std::string_view option, const std::string& value,
                  std::initializer_list<std::string_view> known) {
  std::string list;
  for (const std::string_view name : known) {
    if (value == name) {
      return {};
    }
    list += base::str_cat(list.empty() ? "" : ", ", '"', name, '"');
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(option, " must be one of ", list, ", not ", base::quoted(value))};
}

// Returns whether `device` is "cuda" or "cuda:N".
bool names_cuda(std::string_view device) {
  constexpr std::string_view kName = "cuda";
  if (!device.starts_with(kName)) {
    return false;
  }
  device.remove_prefix(kName.size());
  return device.empty() || (device.size() > 1 && device.front() == ':' &&
                            device.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

constexpr sched::PolicyKind kPolicies[] = {sched::PolicyKind::kFcfs, sched::PolicyKind::kPriority,
                                           sched::PolicyKind::kShortest, sched::PolicyKind::kFair,
                                           sched::PolicyKind::kAdaptive};

Status out_of_bounds(std::string_view option, double value, std::string_view range) {
  return {ErrorCode::kInvalidArgument, base::str_cat(option, " must be ", range, ", not ", value)};
}

Status check_scheduling(const LLMOptions& options) {
  QUIRE_TRY_STATUS(check_name("scheduler", options.scheduler,
                              {"fcfs", "priority", "shortest", "fair", "adaptive"}));
  QUIRE_TRY_STATUS(check_name("preemption", options.preemption, {"auto", "recompute", "swap"}));
  if (!(options.aging_seconds > 0) || !std::isfinite(options.aging_seconds)) {
    return out_of_bounds("aging_seconds", options.aging_seconds, "a number above 0");
  }
  if (!(options.decode_weight >= 0) || !std::isfinite(options.decode_weight)) {
    return out_of_bounds("decode_weight", options.decode_weight, "a number, 0 or more");
  }
  if (!(options.max_wait_seconds >= 0) || !std::isfinite(options.max_wait_seconds)) {
    return out_of_bounds("max_wait_seconds", options.max_wait_seconds, "a number, 0 or more");
  }
  if (!(options.max_decode_gap_ms >= 0) || !std::isfinite(options.max_decode_gap_ms)) {
    return out_of_bounds("max_decode_gap_ms", options.max_decode_gap_ms,
                         "a number above 0, or 0 for no bound");
  }
  if (options.max_waiting < -1) {
    return out_of_range("max_waiting", options.max_waiting, "0 or more, or -1 for any number");
  }
  return {};
}

SchedulingOptions scheduling_of(const LLMOptions& options) {
  constexpr double kMs = 1e-3;
  const auto* const policy = std::ranges::find_if(kPolicies, [&options](sched::PolicyKind kind) {
    return options.scheduler == sched::policy_name(kind);
  });
  SchedulingOptions scheduling{.policy = *policy,
                               .aging_seconds = options.aging_seconds,
                               .decode_weight = options.decode_weight,
                               .max_wait_seconds = options.max_wait_seconds,
                               .max_gap_seconds = options.max_decode_gap_ms * kMs,
                               .swap = options.preemption == "auto"   ? SwapMode::kAuto
                                       : options.preemption == "swap" ? SwapMode::kAlways
                                                                      : SwapMode::kNever,
                               .on_pressure = options.on_pressure};
  if (options.max_waiting >= 0) {
    scheduling.max_waiting = options.max_waiting;
  }
  return scheduling;
}

// Checks what a device can do of speculation.
Status check_speculation(const drafts::SpeculationOptions& speculation, std::string_view device) {
  if (device == "cpu") {
    return {};
  }
  if (speculation.method == drafts::Method::kDraft) {
    return {ErrorCode::kUnsupported,
            "speculate: the method \"draft\" computes on the CPU alone; use \"ngram\" or "
            "\"suffix\""};
  }
  if (speculation.width > 1) {
    return {ErrorCode::kUnsupported,
            "speculate: a \"width\" above 1 computes on the CPU alone; use 1"};
  }
  return {};
}

}  // namespace

Status check_options(const LLMOptions& options) {
  if (options.device != "cpu" && !names_cuda(options.device)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("device must be \"cpu\", \"cuda\" or \"cuda:N\", not ",
                          base::quoted(options.device))};
  }
  QUIRE_TRY_STATUS(check_name("dtype", options.dtype, {"auto", "float32", "bfloat16", "float16"}));
  QUIRE_TRY_STATUS(check_name("kv_dtype", options.kv_dtype,
                              {"auto", "float32", "bfloat16", "float16", "int8", "fp8", "int4"}));
  if (!options.quantize.empty()) {
    QUIRE_TRY_STATUS(check_name("quantize", options.quantize, {"auto", "q8g32", "q4g32", "fp8"}));
  }
  if (options.cache_weights && options.store.empty()) {
    return {ErrorCode::kInvalidArgument,
            "cache_weights needs a store to keep packed weights in; name a directory as store"};
  }
  if (options.cache_weights && options.device != "cpu") {
    return {
        ErrorCode::kUnsupported,
        base::str_cat("cache_weights is for weights that the CPU computes with, not for device ",
                      base::quoted(options.device), "; leave it out")};
  }
  if (options.block_tokens < 1 || options.block_tokens > 256) {
    return out_of_range("block_tokens", options.block_tokens, "1..256");
  }
  if (options.max_batch_tokens < 1 || options.max_batch_tokens > (1 << 20)) {
    return out_of_range("max_batch_tokens", options.max_batch_tokens, "1..1048576");
  }
  if (options.threads < 0 || options.threads > 1024) {
    return out_of_range("threads", options.threads, "0 (one per core) to 1024");
  }
  if (!(options.state_share > 0.0 && options.state_share <= 0.9)) {
    return {
        ErrorCode::kInvalidArgument,
        base::str_cat("state_share must be above 0 and at most 0.9, not ", options.state_share)};
  }
  if (options.kv_budget_bytes <= 0 && options.kv_budget_bytes != kAutoBudget) {
    return out_of_range("kv_budget", options.kv_budget_bytes, "a positive number of bytes");
  }
  if (options.host_kv_budget_bytes < 0) {
    return out_of_range("host_kv_budget", options.host_kv_budget_bytes, "0 (none) or more bytes");
  }
  QUIRE_TRY_STATUS(check_scheduling(options));
  QUIRE_TRY(const drafts::SpeculationOptions speculation, drafts::speculation_of(options));
  return check_speculation(speculation, options.device);
}

EngineOptions to_engine_options(const LLMOptions& options) {
  const auto speculation = drafts::speculation_of(options);  // check_options has refused others
  return {.device = options.device,
          .deterministic = options.deterministic,
          .block_tokens = options.block_tokens,
          .kv_budget_bytes = options.kv_budget_bytes,
          .host_kv_budget_bytes = options.host_kv_budget_bytes,
          .state_share = options.state_share,
          .max_batch_tokens = options.max_batch_tokens,
          .threads = options.threads,
          .seed = options.seed,
          .prefix_cache = options.prefix_cache,
          .share_reads = options.share_reads,
          .scheduling = scheduling_of(options),
          .speculation = speculation.ok() ? *speculation : drafts::SpeculationOptions(),
          .drafter = options.drafter,
          .log = Log(options.log),
          .model = {.dtype = options.dtype,
                    .quantize = options.quantize == "auto" ? "" : options.quantize,
                    .kv_dtype = options.kv_dtype,
                    .seed = options.seed,
                    .chat_template = options.chat_template,
                    .progress = options.progress,
                    .weights_store = options.cache_weights ? options.store : ""}};
}

}  // namespace quire::engine
