#include "quire/engine/engine.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/attention/fixed_range.h"
#include "quire/attention/tile.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/device/accelerator.h"
#include "quire/device/cpu/isa.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/hooks.h"
#include "quire/engine/host_tier.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/prompt_parts.h"
#include "quire/engine/request_table.h"
#include "quire/engine/session_service.h"
#include "quire/engine/speculation.h"
#include "quire/engine/step.h"
#include "quire/engine/step_loads.h"
#include "quire/engine/step_state.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kv/types.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

int thread_count(std::int32_t wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Returns the tokens that requests with a common beginning read together.
std::int32_t shared_tokens(const EngineOptions& options) {
  return options.device != "cpu" && options.deterministic ? attention::kFixedRangeTokens
                                                          : attention::kPieceTokens;
}

// A task that ends a request may post another, which gives back what that held and posts none.
constexpr int kTaskGenerations = 2;

// Returns what to say of a number of threads that only get into each other's way; else "".
std::string remark_on_threads(int threads) {
  constexpr int kTooMany = 4;  // for each processor
  const int processors = static_cast<int>(std::thread::hardware_concurrency());
  return processors == 0 || threads <= kTooMany * processors
             ? ""
             : base::str_cat("threads is ", threads, ", but this machine has ", processors,
                             processors == 1 ? " processor" : " processors",
                             ": more threads than that are slower; leave threads out");
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::open(const std::string& model,
                                             const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(options, thread_count(options.threads)));
  QUIRE_TRY_STATUS(engine->open(model));
  return engine;
}

Engine::Engine(const EngineOptions& options, int threads)
    : options_(options),
      pool_(threads),
      context_{.table = &kernels::kernels_for(device::best_isa()), .pool = &pool_} {}

Engine::~Engine() { close(); }

void Engine::attach(std::weak_ptr<Engine> self, Hooks hooks) {
  self_ = std::move(self);
  hooks_ = std::move(hooks);
  sessions_->attach(*hooks_.holders);
}

const std::string& Engine::model_digest() const {
  std::call_once(digest_once_, [this] { digest_ = digest_of(core_->bundle); });
  return digest_;
}

Status Engine::open(const std::string& model) {
  if (options_.device != "cpu") {
    QUIRE_TRY(accelerator_, device::Accelerator::open(options_.device));
  }
  QUIRE_TRY(core_, open_core(model, options_, context_, accelerator_.get()));
  QUIRE_TRY_STATUS(open_host_points(*core_, options_.host_kv_budget_bytes));
  if (std::string remark = remark_on_threads(options_.threads); !remark.empty()) {
    core_->bundle.remarks.push_back(std::move(remark));
  }
  sessions_ =
      std::make_unique<SessionService>(thread_, core_->ledger.cache(), options_.chunks.salt);
  sessions_->attach(*hooks_.holders);
  requests_ = std::make_unique<RequestTable>(*core_, *sessions_, stats_, options_, same_bits());
  stats_.on_pressure(options_.scheduling.on_pressure);
  step_ = std::make_unique<Step>(*core_, *requests_, stats_, thread_, pool_,
                                 StepOptions{.share_reads = options_.share_reads,
                                             .shared_tokens = shared_tokens(options_),
                                             .swap = options_.scheduling.swap});
  step_->hooks = &hooks_;
  step_->speculation =
      Speculation::make(options_.speculation, options_.drafter, std::move(core_->draft));
  if (step_->speculation != nullptr) {
    requests_->on_end([this](RequestId id) { step_->speculation->source().forget(id); });
  }
  refresh_stats();
  return {};
}

void Engine::tell_opened(const std::string& model) const {
  const EngineStats& counters = core_->counters;
  log().tell(LogLevel::kInfo, base::str_cat("opened ", model, " in ", counters.load_seconds, " s: ",
                                            counters.weight_bytes, " bytes of weights, blocks of ",
                                            counters.block_bytes, " bytes"));
  for (const std::string& remark : core_->bundle.remarks) {
    log().tell(LogLevel::kWarning, remark);
  }
}

void Engine::begin_turn() { core_->ledger.cache().set_time(Clock::now()); }

Status Engine::run(const std::function<void()>& task) {
  const kv::LedgerMark mark = core_->ledger.mark();
  const std::uint64_t first_request = requests_->next();
  try {
    task();
    return {};
  } catch (const std::bad_alloc&) {
    // It may have got no further than half of its work. Requests that it began end first: they hold
    // sequences, and some of them book what becomes of a chunk.
    requests_->fail_since(first_request);
    core_->ledger.sequences().close_since(mark);
    core_->ledger.segments().drop_since(
        mark, [this](kv::SegmentId id) { return hooks_.holders->owns(id); });
    refresh_stats();
    return base::no_memory("the call");
  }
}

void Engine::end() {
  drop_steps(*step_);
  requests_->fail_all(closed_error());
}

bool Engine::close() { return !home_.left() && thread_.close(); }

Result<std::int64_t> Engine::clear_prefix_cache() {
  std::int64_t cleared = 0;
  QUIRE_TRY_STATUS(thread_.call([&] {
    cleared = core_->ledger.cache().clear();
    refresh_stats();
  }));
  return cleared;
}

Result<std::vector<ReusePart>> Engine::explain(std::span<const TokenId> tokens,
                                               const std::string& salt) {
  std::vector<ReusePart> parts;
  QUIRE_TRY_STATUS(thread_.call([&] {
    parts = prompt_parts(core_->ledger.cache(), tokens, salt_of(salt),
                         prompt_reuse(*core_, tokens, salt_of(salt)));
  }));
  return parts;
}

Result<Engine::Cached> Engine::cached_prefix(std::span<const TokenId> tokens,
                                             const std::string& salt) {
  Cached cached;
  QUIRE_TRY_STATUS(thread_.call([&] {
    const PromptReuse reuse = prompt_reuse(*core_, tokens, salt_of(salt));
    const std::int32_t usable = std::max(reuse.cached, reuse.host);
    cached = {.tokens = usable,
              .miss = kv::to_text(core_->ledger.cache().explain(tokens, salt_of(salt), usable))};
  }));
  return cached;
}

Result<std::vector<std::int32_t>> Engine::cached_prefixes(std::span<const TokenId> tokens) {
  std::vector<std::int32_t> lengths;
  QUIRE_TRY_STATUS(thread_.call([&] { lengths = core_->ledger.cache().match_each_salt(tokens); }));
  return lengths;
}

const std::string& Engine::salt_of(const std::string& asked) const {
  return options_.salt_of(asked);
}

Result<EngineStats> Engine::stats() {
  for (int generation = 0; generation < kTaskGenerations; ++generation) {
    const std::uint64_t posted = thread_.posted();
    if (stats_.shows(posted)) {
      break;
    }
    QUIRE_TRY_STATUS(thread_.call([this] { refresh_stats(); }));  // behind those tasks
    stats_.note_shown(posted);
  }
  if (thread_.closed()) {
    return closed_error();
  }
  return stats_.get();
}

Result<Pressure> Engine::pressure() const {
  QUIRE_TRY_STATUS(home_.check());
  if (thread_.closed()) {
    return closed_error();
  }
  return stats_.pressure(Clock::now());
}

Result<std::vector<PlanDecision>> Engine::plan_log(std::size_t count) {
  return thread_.ask<std::vector<PlanDecision>>(
      [this, count]() -> Result<std::vector<PlanDecision>> { return core_->plan_log.last(count); });
}

Status Engine::copy_blocks_now() { return engine::copy_blocks_now(*step_); }

}  // namespace quire::engine
