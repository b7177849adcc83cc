// The engine: owns ledger, scheduler and model, and computes step after step what callers of any
// thread have asked for.
//
// Invariants
//   1. Ledger, scheduler, shelves and decoder are touched on the engine thread alone
//      (engine_thread.h). Callers hand it closures and read results through channels.
//   2. A caller that sees the end of its request sees its blocks free in stats().
//   3. After close() every call returns kClosed and every open request has ended with kClosed.
//   4. In a forked child nothing waits and nothing is destroyed: every call returns kClosed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/base/stopwatch.h"
#include "quire/chunks.h"
#include "quire/device/accelerator.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/active_request.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/home_process.h"
#include "quire/engine/hooks.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/session_service.h"
#include "quire/engine/submission.h"
#include "quire/kernels/choice.h"
#include "quire/kernels/context.h"
#include "quire/kv/ledger.h"
#include "quire/kv_store/paged_store.h"
#include "quire/result.h"
#include "quire/sampling/sampler.h"
#include "quire/sched/scheduler.h"

namespace quire::engine {

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

class Engine : private EngineThread::Worker {
 public:
  // Loads the model. Nothing runs before start().
  [[nodiscard]] static Result<std::unique_ptr<Engine>> load(const std::string& model,
                                                            const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sets who is asked, and under what name handles find the engine. Before start(), once.
  void attach(std::weak_ptr<Engine> self, Hooks hooks);
  // Starts the thread. kIo when the system grants none.
  [[nodiscard]] Status start() { return thread_.start(); }
  // Returns the reference for handles that may outlive the engine.
  [[nodiscard]] const std::weak_ptr<Engine>& self() const { return self_; }

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
  // for files. What is asked afterwards, stats() too, finds the request ended.
  void abandon(RequestId id);
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
  // Ends the thread and all requests. Returns false when that was done before, or in a forked
  // child.
  bool close();
  // Whose threads compute here. For who waits for a request.
  [[nodiscard]] const HomeProcess& home() const { return home_; }

  // Where the services above run what they do to the parts of the engine.
  [[nodiscard]] EngineThread& thread() { return thread_; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }
  [[nodiscard]] device::ThreadPool& pool() { return pool_; }
  // Returns the error of parameters that this model does not take: kInvalidArgument.
  [[nodiscard]] Status check(const SamplingParams& params) const;

  // The following are for the engine thread alone.
  [[nodiscard]] EngineCore& core() { return *core_; }
  // Starts all requests or none, and appends a channel for each.
  [[nodiscard]] Status enqueue(std::vector<NewRequest> requests,
                               std::vector<std::shared_ptr<Channel>>& channels);
  // Ends the request. Returns false when it is not running.
  bool abort_now(RequestId id);
  // Makes the copies that the ledger has ordered, for what gets its blocks between two steps.
  // Clears the prefix cache when one fails.
  [[nodiscard]] Status copy_blocks_now();
  // Makes the counters visible to stats().
  void publish_stats();
  [[nodiscard]] bool has_requests() const { return !active_.empty(); }

  // The sessions that requests name. Any thread, but for SessionService::named.
  [[nodiscard]] SessionService& sessions() { return *sessions_; }
  // Returns what decides the KV of a token besides the tokens before it and the kernels: weights,
  // RoPE, KV format and tokenizer. The first call reads all weights. Any thread.
  [[nodiscard]] const std::string& model_digest() const;

  [[nodiscard]] const std::shared_ptr<const TextBundle>& text() const { return core_->bundle.text; }
  [[nodiscard]] const std::string& text_error() const { return core_->bundle.text_error; }
  [[nodiscard]] const model::ModelConfig& model_config() const { return core_->decoder().config(); }
  [[nodiscard]] const ModelBundle& bundle() const { return core_->bundle; }
  [[nodiscard]] const kernels::Context& context() const { return context_; }
  // Where it computes; null on the CPU.
  [[nodiscard]] device::Accelerator* accelerator() const { return accelerator_.get(); }
  // A request's bits do not depend on its batch, see graded().
  [[nodiscard]] bool same_bits() const { return accelerator_ == nullptr || options_.deterministic; }

 private:
  Engine(const EngineOptions& options, int threads);
  // Opens the device, and loads the model where it computes.
  [[nodiscard]] Status load(const std::string& model);

  // EngineThread::Worker.
  [[nodiscard]] bool has_work() const override { return !active_.empty() || !now_.runs.empty(); }
  [[nodiscard]] bool takes_tasks() const override { return now_.runs.empty(); }
  void begin_turn() override;
  void step() override;
  [[nodiscard]] Status run(const std::function<void()>& task) override;
  void publish() override { publish_stats(); }
  [[nodiscard]] bool await_blocks() override;
  void end() override;

  void give_up_since(kv::Ledger::Mark mark, std::uint64_t first_request);

  [[nodiscard]] Status check(const NewRequest& request) const;
  // Checks what Engine::submit takes, and cuts max_tokens to what the model's context holds.
  [[nodiscard]] Status prepare(NewRequest& request) const;
  // Takes back the requests from `first` on that were queued, and the sequences of those that were
  // not.
  [[nodiscard]] std::uint64_t seed_of(const SamplingParams& params, RequestKind kind);
  void withdraw(std::uint64_t first, std::span<const NewRequest> refused);
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
  [[nodiscard]] bool reaches_end(const sched::ScheduledRun& run) const;
  [[nodiscard]] std::vector<KvGate::LoadRef> awaited_loads(
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

  const HomeProcess home_;
  const EngineOptions options_;
  device::ThreadPool pool_;
  kernels::Context context_;
  std::unique_ptr<device::Accelerator> accelerator_;  // before what lies on it
  std::unique_ptr<EngineCore> core_;
  std::unique_ptr<SessionService> sessions_;
  std::weak_ptr<Engine> self_;
  KvGate no_gate_;
  BlockHolders no_holders_;
  KvGate* kv_gate_ = &no_gate_;
  BlockHolders* holders_ = &no_holders_;
  std::vector<StepListener*> listeners_;
  mutable std::once_flag digest_once_;
  mutable std::string digest_;

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
  std::uint64_t next_request_ = 1;
  std::uint64_t next_draw_ = 1;  // of a seed for a request that brings none

  std::mutex stats_mutex_;
  EngineStats stats_;        // guarded by stats_mutex_, as is
  std::uint64_t shown_ = 0;  // how many of the tasks that were posted stats_ shows
  EngineThread thread_{home_, *this};
};

}  // namespace quire::engine
