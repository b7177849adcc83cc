// The engine: one thread that owns ledger, scheduler and model, and computes step after step what
// callers of any thread have asked for.
//
// Invariants
//   1. Ledger, scheduler, shelves and decoder are touched by one thread at a time: the engine's,
//      or, while that has nothing to do, a caller who runs a letter of its own (docs/adr/0026).
//      Callers hand closures to `call` and read results through channels. "Engine thread" below
//      is whichever of them it is.
//   2. A caller that sees the end of its request sees its blocks free in stats().
//   3. After close() every call returns kClosed and every open request has ended with kClosed.
//   4. In a forked child nothing waits and nothing is destroyed: every call returns kClosed.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/base/stopwatch.h"
#include "quire/chunks.h"
#include "quire/device/accelerator.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/active_request.h"
#include "quire/engine/arrivals.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/home_process.h"
#include "quire/engine/letters.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/submission.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/context.h"
#include "quire/kv/ledger.h"
#include "quire/kv_store/paged_store.h"
#include "quire/result.h"
#include "quire/sampling/sampler.h"
#include "quire/sched/scheduler.h"

namespace quire::engine {

class ChunkService;
class SequenceService;
class SessionService;
class TierService;

struct EngineOptions {
  std::string device = "cpu";  // or an accelerator's name
  bool deterministic = true;
  std::int32_t block_tokens = 32;
  std::int64_t kv_budget_bytes = std::int64_t{1} << 30;
  std::int32_t max_batch_tokens = 2048;
  std::int32_t max_running = 256;
  std::int32_t threads = 0;  // 0 = one per core
  std::uint64_t seed = 0;
  bool prefix_cache = true;
  bool share_reads = true;
  ChunkCacheOptions chunks;
  BundleOptions model;
};

// Counters of one moment, after a finished step.
struct EngineStats {
  kv::LedgerCounts ledger;
  std::int64_t block_bytes = 0;
  std::int64_t tokens_computed = 0;  // rows that went through the model
  std::int64_t tokens_reused = 0;    // of prompts, wherever their KV was: the sum of cached_tokens
  std::int64_t tokens_generated = 0;
  std::int64_t steps = 0;
  std::int64_t steps_ahead = 0;  // of them, those launched while the one before still ran
  std::int64_t preemptions = 0;
  std::int64_t requests_finished = 0;
  std::int64_t requests_running = 0;
  std::int64_t requests_waiting = 0;
  attention::PlanCounters attention;  // of all layers of all steps
  double step_seconds = 0;          // in steps, all together, up to delivery; one after the other:
  double schedule_seconds = 0;      // planning and committing
  double build_seconds = 0;         // the batch
  double forward_seconds = 0;       // inside the model
  double forward_host_seconds = 0;  // of these planning attention; with a device all that the
                                    // host does but wait for it
  double sample_seconds = 0;        // choosing tokens
  double settle_seconds = 0;        // booking KV and tokens, text
  double deliver_seconds = 0;       // to the callers; of the steps before the last
  [[nodiscard]] double overhead_seconds() const {  // what the engine costs beside the model
    return schedule_seconds + build_seconds + forward_host_seconds + settle_seconds +
           deliver_seconds;
  }
  double load_seconds = 0;
  std::int64_t load_bytes = 0;
  std::int64_t weight_bytes = 0;         // packed
  std::int64_t mapped_weight_bytes = 0;  // of those, what an earlier start has packed
};

// A step from its plan until its tokens are booked.
struct RunningStep {
  std::vector<sched::ScheduledRun> runs;  // empty: there is no such step
  std::vector<ActiveRequest*> requests;   // [runs]; null for one that has ended meanwhile
  std::vector<LogitRange> logits;         // [runs]
  bool launched = false;
  bool ahead = false;         // while the step before was still running
  bool chosen_apart = false;  // every run is to give a token that the device chooses, whatever the
                              // tokens before it are
  bool reads_files = false;   // KV that is still being read from them
  void clear();               // keeps its memory
  void forget(ActiveRequest* ended);
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  // Loads the model and starts the thread. In a forked child the last reference leaks the engine.
  [[nodiscard]] static Result<std::shared_ptr<Engine>> start(const std::string& model,
                                                             const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // All requests are accepted, or none starts and the first refusal is returned. Compositions come
  // from the chunk service.
  [[nodiscard]] Result<std::vector<std::shared_ptr<Channel>>> submit(
      std::vector<NewRequest> requests);
  // The same of one request, without waiting for the step that runs. What the request itself says
  // wrongly is refused here.
  [[nodiscard]] Result<std::shared_ptr<Submission>> submit_later(NewRequest request);
  // Ends the request; its blocks are free on return. False when it is not running.
  [[nodiscard]] Result<bool> abort(RequestId id);
  // The same for a caller who leaves, without waiting for the step that runs: it may itself wait
  // for files. What is asked afterwards, stats() too, finds the request ended. Tries again where
  // memory is refused; without any the request goes on to its own end.
  void abandon(RequestId id) noexcept;
  // kInvalidArgument for no tokens or ids outside of the vocabulary, kOverflow for more than the
  // model's context.
  [[nodiscard]] Status check_prompt(std::span<const TokenId> tokens) const;
  [[nodiscard]] Result<std::int64_t> clear_prefix_cache();
  struct Cached {
    std::int64_t tokens = 0;
    std::string miss;  // why the token behind them is not, in words
  };
  [[nodiscard]] Result<Cached> cached_prefix(std::span<const TokenId> tokens,
                                             const std::string& salt);
  // That of the request, else that of everybody here.
  [[nodiscard]] const std::string& salt_of(const std::string& asked) const;
  // With all that was posted before it.
  [[nodiscard]] Result<EngineStats> stats();
  void close();
  // Whose threads compute here. For who waits for a request.
  [[nodiscard]] const HomeProcess& home() const { return home_; }

  [[nodiscard]] ChunkService& chunks() { return *chunks_; }
  [[nodiscard]] SequenceService& sequences() { return *sequences_; }
  [[nodiscard]] SessionService& sessions() { return *sessions_; }
  [[nodiscard]] TierService& tiers() { return *tiers_; }

  [[nodiscard]] const std::shared_ptr<const TextBundle>& text() const { return bundle_.text; }
  [[nodiscard]] const std::string& text_error() const { return bundle_.text_error; }
  [[nodiscard]] const model::ModelConfig& model_config() const {
    return bundle_.decoder->config();  // NOLINT(bugprone-unchecked-optional-access): is set up
  }
  [[nodiscard]] const ModelBundle& bundle() const { return bundle_; }
  [[nodiscard]] const kernels::Context& context() const { return context_; }
  // Where it computes; null on the CPU.
  [[nodiscard]] device::Accelerator* accelerator() const { return accelerator_.get(); }
  // A request's bits do not depend on its batch, see graded().
  [[nodiscard]] bool same_bits() const { return accelerator_ == nullptr || options_.deterministic; }

 private:
  Engine(const EngineOptions& options, int threads);
  [[nodiscard]] Status set_up(const std::string& model);
  // Weights and text, where they are computed on.
  [[nodiscard]] Status load(const std::string& model);
  [[nodiscard]] Result<std::int64_t> kv_budget() const;  // bytes
  [[nodiscard]] Result<kv_store::PagedStore> make_store(const tensor::KVGeometry& geometry,
                                                        std::int32_t num_blocks) const;

  // Runs `work` between two steps, on the engine thread or, while that sleeps, here, and returns
  // when it is done; kClosed when closed.
  [[nodiscard]] Status call(const std::function<void()>& work);
  // The same for work that takes something back, and may be done twice: tries again where memory is
  // refused.
  void call_surely(const std::function<void()>& work);
  // The answer of `question` on the engine thread, shown in stats() before it comes back.
  template <class T>
  [[nodiscard]] Result<T> ask(const std::function<Result<T>()>& question) {
    std::optional<Result<T>> answer;
    QUIRE_TRY_STATUS(call([&] {
      answer = question();
      publish_stats();
    }));
    return *std::move(answer);  // NOLINT(bugprone-unchecked-optional-access): call has run it
  }
  // The same for what needs blocks: asks again while a chunk that is being written holds some.
  template <class T>
  [[nodiscard]] Result<T> ask_for_blocks(const std::function<Result<T>()>& question) {
    for (bool may_get = true;; may_get = await_write()) {
      Result<T> answer = ask<T>(question);
      if (answer.ok() || answer.error().code != ErrorCode::kOutOfBlocks || !may_get) {
        return answer;
      }
    }
  }
  // Waits for a chunk that is being written behind, which holds its blocks; false when none is. Any
  // thread; what was held is free for who asks afterwards.
  [[nodiscard]] bool await_write();
  // As `call`, without waiting. False when closed or in a forked child: then it is never run.
  bool post(std::function<void()> work);
  bool post(Letters letter) noexcept;
  // `awaited`: somebody waits until it has run.
  bool send(Letters letter, bool awaited) noexcept;
  // Runs what was sent. Where memory is refused, what it has begun is given up.
  [[nodiscard]] Status run_letter(const std::function<void()>& work);
  void give_up_since(kv::Ledger::Mark mark, std::uint64_t first_request);
  void run();
  // What the engine's thread wakes for. Under mutex_, while `owned_` is false.
  [[nodiscard]] bool has_work() const;
  void give_up_ownership();
  // Runs what callers have sent. Engine thread.
  void drain_mailbox();

  friend class ChunkService;  // parts of the engine: what they own lives on its thread
  friend class SequenceService;
  friend class SessionService;
  friend class TierService;
  friend struct HeldSegment;
  friend struct SequenceState;

  [[nodiscard]] Status check(const NewRequest& request) const;
  // Checks what Engine::submit takes, and cuts max_tokens to what the model's context holds.
  [[nodiscard]] Status prepare(NewRequest& request) const;
  [[nodiscard]] Status check(const SamplingParams& params) const;
  // Takes back the requests from `first` on that were queued, and the sequences of those that were
  // not.
  [[nodiscard]] std::uint64_t seed_of(const SamplingParams& params, RequestKind kind);
  void withdraw(std::uint64_t first, std::span<const NewRequest> refused);
  // As abort, on the engine thread.
  bool abort_now(RequestId id);
  [[nodiscard]] Status enqueue(std::vector<NewRequest> requests,
                               std::vector<std::shared_ptr<Channel>>& channels);
  void step();
  [[nodiscard]] Status try_step();
  [[nodiscard]] bool may_get_blocks();
  [[nodiscard]] bool plan_step();
  [[nodiscard]] Error no_room_for(const ActiveRequest& stuck) const;
  [[nodiscard]] Status compute(base::Stopwatch& watch);
  [[nodiscard]] Status begin(base::Stopwatch& watch);
  [[nodiscard]] Status launch(RunningStep& step, base::Stopwatch& watch);
  void launch_next(base::Stopwatch& watch);
  [[nodiscard]] bool may_run_ahead();
  void drop_steps();
  [[nodiscard]] Status await(std::span<float>& logits, base::Stopwatch& watch);
  [[nodiscard]] Status copy_blocks();
  [[nodiscard]] Status copy_blocks_now();
  [[nodiscard]] bool reaches_end(const sched::ScheduledRun& run) const;
  [[nodiscard]] std::vector<Arrivals::LoadRef> awaited_loads(
      std::span<const sched::ScheduledRun> runs) const;
  [[nodiscard]] Status check_arrived(const sched::ScheduledRun& run) const;
  [[nodiscard]] std::int32_t wanted_logits(const sched::ScheduledRun& run,
                                           const NewRequest& request) const;
  void offer_choices(RunningStep& step, model::ForwardBatch& batch);
  void take_tokens_from_device(model::ForwardBatch& batch);
  [[nodiscard]] sampling::SampledToken chosen_token(std::size_t row,
                                                    std::optional<std::int32_t> logprobs) const;
  void sample(std::span<float> logits);
  void settle(const sched::ScheduledRun& run, std::size_t index);
  void deliver_all();
  void fail_request(RequestId id, Error error);
  void fail_all(const Error& error);
  void publish_stats();

  const HomeProcess home_;
  const EngineOptions options_;
  device::ThreadPool pool_;
  kernels::Context context_;
  std::unique_ptr<device::Accelerator> accelerator_;  // before what lies on it
  ModelBundle bundle_;
  std::optional<kv::Ledger> ledger_;
  std::optional<kv_store::PagedStore> store_;
  std::vector<tensor::PagedKVView> views_;  // [layers]
  std::optional<sched::Scheduler> scheduler_;
  std::unique_ptr<ChunkService> chunks_;
  std::unique_ptr<SequenceService> sequences_;
  std::unique_ptr<SessionService> sessions_;
  std::unique_ptr<TierService> tiers_;

  // Engine thread only.
  std::unordered_map<std::uint64_t, ActiveRequest> active_;
  sched::StepPlan plan_;
  RunningStep now_;           // the step that ends next
  RunningStep next_;          // launched behind it
  bool copies_lost_ = false;  // what is cached may not be what it should be
  BatchBuilder builder_;
  std::vector<std::int32_t> ids_from_;                                  // [rows of next_]
  std::vector<kernels::Choice> choices_;                                // [logit rows of a step]
  std::vector<kernels::LogitChange> changes_;                           // of their logits
  std::vector<std::int32_t> wanted_logits_;                             // [runs of a step]
  std::vector<sampling::Sampler> samplers_;                             // [threads]
  std::vector<std::optional<Result<sampling::SampledToken>>> sampled_;  // [runs of now_]
  std::vector<ActiveRequest*> touched_;   // of the step that have something to deliver
  std::vector<ActiveRequest*> finished_;  // that end with it
  EngineStats counters_;
  Letters letters_;  // taken from the mailbox, worked off
  std::uint64_t next_request_ = 1;
  std::uint64_t next_draw_ = 1;  // of a seed for a request that brings none

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable work_arrived_;
  Letters mailbox_;
  bool closing_ = false;
  bool owned_ = true;         // a thread touches what invariant 1 names
  std::uint64_t posted_ = 0;  // letters without a caller who waits
  std::uint64_t shown_ = 0;   // of them, those that stats_ shows
  EngineStats stats_;
  std::thread thread_;
};

}  // namespace quire::engine
