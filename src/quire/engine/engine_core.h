// EngineCore: the parts that every step works on, made when the model is opened.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/attention/attention_plan.h"
#include "quire/chunk_types.h"
#include "quire/device/accelerator.h"
#include "quire/drafter.h"
#include "quire/drafts/options.h"
#include "quire/engine/draft_model.h"
#include "quire/engine/histogram.h"
#include "quire/engine/log.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/plan_log.h"
#include "quire/engine/swap_space.h"
#include "quire/engine/turn_marks.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv_store/host_points.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/state_pool.h"
#include "quire/model/decoder.h"
#include "quire/result.h"
#include "quire/sched/policy.h"
#include "quire/sched/scheduler.h"
#include "quire/sched/types.h"
#include "quire/stats.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::engine {

// Says when a preempted request's KV goes to host memory. kAuto: where that is measured to be
// faster.
enum class SwapMode : std::uint8_t { kAuto, kNever, kAlways };

// The scheduling part of LLMOptions.
struct SchedulingOptions {
  sched::PolicyKind policy = sched::PolicyKind::kFcfs;
  double aging_seconds = 30;
  double decode_weight = 2;
  double max_wait_seconds = 5;
  std::optional<std::int32_t> max_waiting;  // absent: any number
  double max_gap_seconds = 0;               // 0: no bound
  SwapMode swap = SwapMode::kAuto;
  std::function<void(const Pressure&)> on_pressure;
};

struct EngineOptions {
  std::string device = "cpu";  // "cpu" or an accelerator's name
  bool deterministic = true;
  std::int32_t block_tokens = 32;
  std::int64_t kv_budget_bytes = std::int64_t{1} << 30;
  std::int64_t host_kv_budget_bytes = 0;  // for restore points of models that have some
  double state_share = 0.25;              // of the budget, for states of models that have some
  std::int32_t max_batch_tokens = 2048;
  std::int32_t max_running = 256;
  std::int32_t threads = 0;  // 0 = one per core
  std::uint64_t seed = 0;
  bool prefix_cache = true;
  bool share_reads = true;
  bool mixes_formats = true;  // false: chunks have the pool's own format alone, for comparison
  SchedulingOptions scheduling;
  drafts::SpeculationOptions speculation;
  std::shared_ptr<Drafter> drafter;  // of the method kCustom
  Log log;
  ChunkCacheOptions chunks;
  BundleOptions model;
  // Returns the salt of a call that asks for this one: an empty one is everybody's here.
  [[nodiscard]] const std::string& salt_of(const std::string& asked) const {
    return asked.empty() ? chunks.salt : asked;
  }
};

// Counters of one moment, after a finished step.
struct EngineStats {
  kv::LedgerCounts ledger;
  kv::LedgerCounts draft;  // of a draft model, whose blocks are its own
  std::int64_t block_bytes = 0;
  std::int64_t tokens_computed = 0;  // rows that went through the model
  // Reused tokens of prompts, wherever their KV was: the sum of cached_tokens.
  std::int64_t tokens_reused = 0;
  std::int64_t tokens_generated = 0;
  std::int64_t steps = 0;
  std::int64_t steps_ahead = 0;     // steps that were launched while the one before still ran
  std::int64_t tokens_drafted = 0;  // assumed rows that steps have computed
  std::int64_t tokens_accepted = 0;
  std::int64_t branches_linked = 0;  // that were right, whose blocks their requests took
  std::int64_t speculative_steps = 0;
  std::int64_t preemptions = 0;
  std::int64_t preemptions_swapped = 0;
  std::int64_t swaps_restored = 0;
  std::int64_t host_points = 0;        // restore points in host memory
  std::int64_t host_kv_bytes = 0;      // of them, with the KV before them
  std::int64_t points_to_host = 0;     // copied there since the pool gave them up
  std::int64_t points_from_host = 0;   // from which requests have gone on
  std::int64_t admissions_slowed = 0;  // plans in which a request with room waited (sched::slows)
  std::int64_t requests_refused = 0;   // for want of a place in the queue
  std::int64_t requests_expired = 0;   // ended by their deadlines
  std::int64_t pressure_level = 0;
  std::int64_t pressure_changes = 0;
  std::int64_t requests_finished = 0;
  std::int64_t requests_running = 0;
  std::int64_t requests_waiting = 0;
  std::optional<std::chrono::steady_clock::time_point> waiting_since;  // the oldest of them
  Histogram queue_times;  // times of requests until they were first computed
  Histogram
      first_token_times;  // times from submission to the first token of requests that generate
  Histogram step_times;   // up to delivery
  attention::PlanCounters attention;  // counters of all layers of all steps
  // Seconds of all steps, up to delivery. The next ones are its phases, in their order.
  double step_seconds = 0;
  double schedule_seconds = 0;  // planning and committing
  double build_seconds = 0;     // making the batch
  double forward_seconds = 0;   // inside the model
  // Seconds of forward_seconds in which attention is planned. With a device: all work of the host
  // but waiting for it.
  double forward_host_seconds = 0;
  double sample_seconds = 0;   // choosing tokens
  double settle_seconds = 0;   // booking KV and tokens, text
  double deliver_seconds = 0;  // delivering to the callers, in the steps before the last
  [[nodiscard]] double overhead_seconds() const {  // seconds that the engine costs beside the model
    return schedule_seconds + build_seconds + forward_host_seconds + settle_seconds +
           deliver_seconds;
  }
  // Returns the counts of both models, in blocks of the large one. Those in use are rounded up.
  [[nodiscard]] kv::LedgerCounts counts_of_both() const;
  double load_seconds = 0;
  std::int64_t load_bytes = 0;
  std::int64_t weight_bytes = 0;         // packed, those of a draft model too
  std::int64_t mapped_weight_bytes = 0;  // packed weight bytes that an earlier start has packed
};

// Engine thread only, but for the text and the configuration in `bundle`, which do not change.
struct EngineCore {
  // Takes over all parts. `staged` is there where a format is written block by block
  // (open_format.h).
  EngineCore(ModelBundle opened, kv_store::PagedPool blocks,
             std::optional<kv_store::PagedPool> staged, const kv::LedgerConfig& ledger_config,
             const sched::SchedulerConfig& scheduler_config);
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  [[nodiscard]] model::Decoder& decoder() {
    return *bundle.decoder;  // NOLINT(bugprone-unchecked-optional-access): open_model sets it
  }

  // Returns how many formats the pool has, its own one included. Any thread, as for the next two.
  [[nodiscard]] std::uint8_t num_formats() const { return ledger.config().num_formats(); }
  // Returns what a format is as a kv_dtype. Precondition: the pool has the format.
  [[nodiscard]] const char* kv_name(kv::FormatId format = {}) const {
    const tensor::KVGeometry& geometry = paged_pool.geometry(format);
    return tensor::kv_format_name(geometry.format, geometry.dtype);
  }
  // Returns the views for a batch that names so many formats.
  [[nodiscard]] std::span<const tensor::PagedKVView> views_of(std::uint8_t formats) const {
    const auto layers = static_cast<std::size_t>(paged_pool.geometry().layers);
    return std::span(views).first(layers * formats);
  }
  // Returns the format that a kv_dtype names; nullopt where the pool has none of this name.
  [[nodiscard]] std::optional<kv::FormatId> find_format(std::string_view kv_name) const;

  ModelBundle bundle;
  kv_store::PagedPool paged_pool;
  std::optional<kv_store::PagedPool> staging;
  kv_store::StatePool states;              // of models whose layers carry a state
  TurnMarks turns;                         // likewise
  std::vector<tensor::PagedKVView> views;  // [formats, and staging if it is there][layers]
  kv::Ledger ledger;
  sched::Scheduler scheduler;
  std::unique_ptr<DraftModel> draft;      // of the method kDraft, until the engine has it
  const DraftModel* drafts_by = nullptr;  // the same, for its counts
  PlanLog plan_log;
  SwapSpace swap_space;
  std::unique_ptr<kv_store::HostPoints> host_points;  // null: none is kept in host memory
  EngineStats counters;
};

// Opens the model and allocates its KV blocks on `accelerator`, or in host memory without one.
// kInvalidArgument for options that do not fit the model, kOutOfBlocks for refused memory.
[[nodiscard]] Result<std::unique_ptr<EngineCore>> open_core(const std::string& model,
                                                            const EngineOptions& options,
                                                            const kernels::KernelContext& context,
                                                            device::Accelerator* accelerator);

}  // namespace quire::engine
