// The engine: owns ledger, scheduler and model, and computes step after step what callers of any
// thread have asked for.
//
// Invariants
//   1. Ledger, scheduler, paged KV and decoder are touched on the engine thread alone
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
#include <utility>
#include <vector>

#include "quire/device/accelerator.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/engine/active_request.h"
#include "quire/engine/engine_core.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/home_process.h"
#include "quire/engine/hooks.h"
#include "quire/engine/log.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/request_table.h"
#include "quire/engine/session_service.h"
#include "quire/engine/stats_snapshot.h"
#include "quire/engine/step_recovery.h"
#include "quire/engine/step_state.h"
#include "quire/engine/submission.h"
#include "quire/kernels/kernel_context.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/stats.h"
#include "quire/types.h"

namespace quire::engine {

class Engine final : private EngineThread::Worker {
 public:
  // Opens the model. Nothing runs before start().
  [[nodiscard]] static Result<std::unique_ptr<Engine>> open(const std::string& model,
                                                            const EngineOptions& options);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Sets the hooks, and the reference by which handles find the engine. Call it once, before
  // start().
  void attach(std::weak_ptr<Engine> self, Hooks hooks);
  // Starts the thread. kIo when the system grants none.
  [[nodiscard]] Status start() { return thread_.start(); }
  // Returns the reference for handles that may outlive the engine.
  [[nodiscard]] const std::weak_ptr<Engine>& self() const { return self_; }

  // Accepts all requests, or starts none and returns the first refusal. Composed requests go to
  // requests() instead.
  [[nodiscard]] Result<std::vector<std::shared_ptr<Channel>>> submit(
      std::vector<NewRequest> requests);
  // Accepts one request without waiting for the step that runs. Refuses at once what is wrong in
  // the request itself.
  [[nodiscard]] Result<std::shared_ptr<Submission>> submit_later(NewRequest request);
  // Ends the request; its blocks are free on return. False when it is not running.
  [[nodiscard]] Result<bool> abort(RequestId id);
  // Ends the request for a caller that may not fail, and waits until its blocks are free. Tries
  // again if memory is refused; if that fails too, the request runs to its own end.
  void abort_surely(RequestId id) noexcept;
  // Ends the request of a caller that leaves. Does not wait for the running step, which may itself
  // wait for files. Later calls, stats() too, find the request ended. Tries again if memory is
  // refused; if that fails too, the request runs to its own end.
  void abandon(RequestId id) noexcept;
  // Checks a prompt: kInvalidArgument for no tokens or ids outside of the vocabulary, kOverflow for
  // more than the model's context.
  [[nodiscard]] Status check_prompt(std::span<const TokenId> tokens) const;
  [[nodiscard]] Result<std::int64_t> clear_prefix_cache();
  // Returns the parts of a prompt as the prefix cache has them (LLM::explain).
  [[nodiscard]] Result<std::vector<ReusePart>> explain(std::span<const TokenId> tokens,
                                                       const std::string& salt);
  struct Cached {
    std::int64_t tokens = 0;
    std::string miss;  // why the token behind them is not, in words
  };
  [[nodiscard]] Result<Cached> cached_prefix(std::span<const TokenId> tokens,
                                             const std::string& salt);
  // Returns the length of the cached prefix of each salt that has one, the longest first. For the
  // operator.
  [[nodiscard]] Result<std::vector<std::int32_t>> cached_prefixes(std::span<const TokenId> tokens);
  // Returns the salt of a call that asks for `asked`: an empty one stands for the engine's own.
  [[nodiscard]] const std::string& salt_of(const std::string& asked) const;
  // Returns the counters, after all work that was posted before the call.
  [[nodiscard]] Result<EngineStats> stats();
  // Returns the pressure on blocks. Waits for nothing.
  [[nodiscard]] Result<Pressure> pressure() const;
  // Returns the last `count` decisions of the scheduler, the oldest first.
  [[nodiscard]] Result<std::vector<PlanDecision>> plan_log(std::size_t count);
  // Returns how many rows went through the model, those of the running step in part. Waits for
  // nothing. Any thread.
  [[nodiscard]] std::int64_t computed_tokens() const { return stats_.computed_tokens(); }
  // Ends the thread and all requests. Returns false when that was done before, or in a forked
  // child.
  bool close();
  // Returns the process whose threads compute here, for callers that wait for a request.
  [[nodiscard]] const HomeProcess& home() const { return home_; }

  // Returns the thread on which the services above touch the parts of the engine.
  [[nodiscard]] EngineThread& thread() { return thread_; }
  [[nodiscard]] const EngineOptions& options() const { return options_; }
  [[nodiscard]] const Log& log() const { return options_.log; }
  // Tells the log that the model is open, and the remarks of opening.
  void tell_opened(const std::string& model) const;
  [[nodiscard]] device::ThreadPool& pool() { return pool_; }
  // Returns the error of parameters that this model does not take: kInvalidArgument.
  [[nodiscard]] Status check(const SamplingParams& params) const;

  // Returns the core. Only the engine thread calls this and the next functions.
  [[nodiscard]] EngineCore& core() { return *core_; }
  [[nodiscard]] RequestTable& requests() { return *requests_; }
  // Makes the copies that the ledger has ordered, for a call that got its blocks between two steps.
  // Clears the prefix cache if a copy fails.
  [[nodiscard]] Status copy_blocks_now();
  // Makes the counters visible to stats().
  void refresh_stats() override { stats_.refresh(*core_, requests_->waiting_since()); }

  // Returns the sessions that requests name. Any thread, but for SessionService::named.
  [[nodiscard]] SessionService& sessions() { return *sessions_; }
  // Returns a digest of weights, RoPE, KV format and tokenizer. Beside the tokens before it and the
  // kernels, these decide the KV of a token. The first call reads all weights. Any thread.
  [[nodiscard]] const std::string& model_digest() const;

  [[nodiscard]] const std::shared_ptr<const TextBundle>& text() const { return core_->bundle.text; }
  [[nodiscard]] const std::string& text_error() const { return core_->bundle.text_error; }
  [[nodiscard]] const model::ModelConfig& model_config() const { return core_->decoder().config(); }
  [[nodiscard]] const ModelBundle& bundle() const { return core_->bundle; }
  [[nodiscard]] const kernels::KernelContext& context() const { return context_; }
  // Returns the device that computes; null on the CPU.
  [[nodiscard]] device::Accelerator* accelerator() const { return accelerator_.get(); }
  // Returns true if a request's bits do not depend on its batch (see graded()).
  [[nodiscard]] bool same_bits() const { return accelerator_ == nullptr || options_.deterministic; }

 private:
  Engine(const EngineOptions& options, int threads);
  // Opens the device, and the model where it computes.
  [[nodiscard]] Status open(const std::string& model);

  // Implements EngineThread::Worker, as the next functions do.
  [[nodiscard]] bool has_work() const override {
    return !requests_->empty() || !step_->now.runs.empty();
  }
  [[nodiscard]] bool takes_tasks() const override { return step_->now.runs.empty(); }
  void begin_turn() override;
  void step() override { compute_next_or_fail(*step_); }
  [[nodiscard]] Status run(const std::function<void()>& task) override;
  [[nodiscard]] bool await_blocks() override { return hooks_.holders->await_blocks(); }
  void end() override;

  [[nodiscard]] Status check(const NewRequest& request) const;
  // Checks a request of Engine::submit, and cuts max_tokens to the room in the model's context.
  [[nodiscard]] Status prepare(NewRequest& request) const;

  const HomeProcess home_;
  const EngineOptions options_;
  device::ThreadPool pool_;
  kernels::KernelContext context_;
  std::unique_ptr<device::Accelerator> accelerator_;  // before what lies on it
  std::unique_ptr<EngineCore> core_;
  std::unique_ptr<SessionService> sessions_;
  std::weak_ptr<Engine> self_;
  KvGate no_gate_;
  BlockHolders no_holders_;
  Hooks hooks_{.kv_gate = &no_gate_, .holders = &no_holders_, .listeners = {}};
  mutable std::once_flag digest_once_;
  mutable std::string digest_;

  StatsSnapshot stats_;
  std::unique_ptr<RequestTable> requests_;
  EngineThread thread_{home_, *this};
  std::unique_ptr<Step> step_;
};

}  // namespace quire::engine
