#include "quire/engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "quire/attention/fixed_range.h"
#include "quire/attention/tile.h"
#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/device/cpu/isa.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine_thread.h"
#include "quire/engine/hooks.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/session_service.h"
#include "quire/engine/submission.h"
#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_store.h"
#include "quire/llm.h"
#include "quire/model/decoder.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sched/scheduler.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

int thread_count(std::int32_t wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// What requests with a common beginning read together.
std::int32_t shared_tokens(const EngineOptions& options) {
  return options.device != "cpu" && options.deterministic ? attention::kFixedRangeTokens
                                                          : attention::kPieceTokens;
}

Status check_ids(std::span<const TokenId> ids, std::int32_t vocab_size, std::string_view what) {
  const auto bad = std::find_if(ids.begin(), ids.end(),
                                [vocab_size](TokenId id) { return id < 0 || id >= vocab_size; });
  if (bad == ids.end()) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(what, " holds token id ", *bad, ", but the vocabulary ends at ",
                        vocab_size - 1)};
}

// A different stream of random numbers for every draw (splitmix64, Steele et al. 2014).
std::uint64_t drawn_seed(std::uint64_t engine_seed, std::uint64_t draw) {
  std::uint64_t z = engine_seed + draw * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// A task that ends a request may post another, which gives back what that held and posts none.
constexpr int kTaskGenerations = 2;

}  // namespace

Result<std::unique_ptr<Engine>> Engine::load(const std::string& model,
                                             const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(options, thread_count(options.threads)));
  QUIRE_TRY_STATUS(engine->load(model));
  return engine;
}

Engine::Engine(const EngineOptions& options, int threads)
    : options_(options),
      pool_(threads),
      context_{.table = &kernels::kernels_for(device::best_isa()), .pool = &pool_},
      builder_(options.share_reads, shared_tokens(options)),
      samplers_(static_cast<std::size_t>(threads)) {}

Engine::~Engine() { close(); }

void Engine::attach(std::weak_ptr<Engine> self, Hooks hooks) {
  self_ = std::move(self);
  kv_gate_ = hooks.kv_gate;
  holders_ = hooks.holders;
  listeners_ = std::move(hooks.listeners);
  sessions_->attach(*holders_);
}

const std::string& Engine::model_digest() const {
  std::call_once(digest_once_, [this] { digest_ = digest_of(core_->bundle); });
  return digest_;
}

Status Engine::load(const std::string& model) {
  if (options_.device != "cpu") {
    QUIRE_TRY(accelerator_, device::Accelerator::open(options_.device));
  }
  QUIRE_TRY(core_, load_core(model, options_, context_, accelerator_.get()));
  sessions_ = std::make_unique<SessionService>(thread_, core_->ledger, options_.chunks.salt);
  publish_stats();
  return {};
}

void Engine::begin_turn() { core_->ledger.set_time(Clock::now()); }

// A task may have got no further than half of its work. Requests that it began end first: they hold
// sequences, and some of them book what becomes of a chunk.
void Engine::give_up_since(kv::Ledger::Mark mark, std::uint64_t first_request) {
  for (std::uint64_t id = first_request; id < next_request_; ++id) {
    core_->scheduler.finish(RequestId{id});
    if (const auto begun = active_.find(id); begun != active_.end()) {
      begun->second.fail(base::no_memory("the call"));
      active_.erase(begun);
    }
  }
  core_->ledger.close_since(mark);
  core_->ledger.drop_segments_since(mark, [this](kv::SegmentId id) { return holders_->owns(id); });
  publish_stats();
}

Status Engine::run(const std::function<void()>& task) {
  const kv::Ledger::Mark mark = core_->ledger.mark();
  const std::uint64_t first_request = next_request_;
  try {
    task();
    return {};
  } catch (const std::bad_alloc&) {
    give_up_since(mark, first_request);
    return base::no_memory("the call");
  }
}

bool Engine::await_blocks() { return holders_->await_blocks(); }

void Engine::end() {
  drop_steps();
  fail_all(closed_error());
}

bool Engine::close() { return !home_.left() && thread_.close(); }

Status Engine::check_prompt(std::span<const TokenId> tokens) const {
  const std::int32_t max_positions = model_config().max_positions;
  if (tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "the prompt is empty; give at least one token"};
  }
  QUIRE_TRY_STATUS(check_ids(tokens, model_config().vocab_size, "the prompt"));
  if (std::ssize(tokens) > max_positions) {
    return {ErrorCode::kOverflow,
            base::str_cat("the prompt has ", tokens.size(), " tokens, the model's context ",
                          model_config().context_text(), "; shorten the prompt")};
  }
  return {};
}

Status Engine::check(const NewRequest& request) const {
  QUIRE_TRY_STATUS(check_prompt(request.prompt));
  return request.kind == RequestKind::kGenerate ? check(request.params) : Status();
}

Status Engine::check(const SamplingParams& params) const {
  const std::int32_t vocab_size = model_config().vocab_size;
  QUIRE_TRY_STATUS(params.validate());
  QUIRE_TRY_STATUS(check_ids(params.stop_token_ids, vocab_size, "stop_token_ids"));
  for (const auto& [id, bias] : params.logit_bias) {
    QUIRE_TRY_STATUS(check_ids({&id, 1}, vocab_size, "logit_bias"));
  }
  if (!params.stop.empty() && core_->bundle.text == nullptr) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("stop strings need a tokenizer: ", core_->bundle.text_error)};
  }
  return {};
}

Status Engine::prepare(NewRequest& request) const {
  QUIRE_CHECK(!request.composed, "compositions come from the chunk service");
  QUIRE_TRY_STATUS(check(request));
  QUIRE_TRY_STATUS(SessionService::check_user({.session = request.session, .salt = request.salt}));
  // The KV of the last sampled token is never needed, so one more token than positions fits.
  const std::int64_t room =
      model_config().max_positions - std::ssize(request.prompt) + std::int64_t{1};
  request.params.max_tokens =
      static_cast<std::int32_t>(request.kind == RequestKind::kGenerate
                                    ? std::min<std::int64_t>(request.params.max_tokens, room)
                                    : 0);
  return {};
}

Result<std::vector<std::shared_ptr<Channel>>> Engine::submit(std::vector<NewRequest> requests) {
  for (NewRequest& request : requests) {
    QUIRE_TRY_STATUS(prepare(request));
  }
  std::vector<std::shared_ptr<Channel>> channels;
  Status accepted;
  QUIRE_TRY_STATUS(thread_.call([&] { accepted = enqueue(std::move(requests), channels); }));
  QUIRE_TRY_STATUS(accepted);
  return channels;
}

Result<std::shared_ptr<Submission>> Engine::submit_later(NewRequest request) {
  QUIRE_TRY_STATUS(home_.check());
  QUIRE_TRY_STATUS(prepare(request));
  auto submission = std::make_shared<Submission>(request.notify);
  const auto enqueue_now = [this, submission,
                            kept = std::make_shared<NewRequest>(std::move(request))] {
    if (submission->unwanted()) {
      submission->answer(Error{.code = ErrorCode::kCancelled, .message = "the stream was closed"});
      return;
    }
    std::vector<NewRequest> requests;
    requests.push_back(std::move(*kept));
    std::vector<std::shared_ptr<Channel>> channels;
    if (const Status accepted = enqueue(std::move(requests), channels); !accepted.ok()) {
      submission->answer(accepted.error());
      return;
    }
    submission->answer(channels.front());
    if (submission->unwanted()) {  // since it was asked above
      abort_now(channels.front()->id());
    }
  };
  if (!thread_.post(enqueue_now)) {
    return closed_error();
  }
  return submission;
}

void Engine::withdraw(std::uint64_t first, std::span<const NewRequest> refused) {
  for (std::uint64_t undo = first; undo + 1 < next_request_; ++undo) {
    core_->scheduler.finish(RequestId{undo});
    active_.erase(undo);
  }
  for (const NewRequest& request : refused) {
    if (request.composed) {
      core_->ledger.close(request.composed->sequence);
    }
  }
}

Status Engine::enqueue(std::vector<NewRequest> requests,
                       std::vector<std::shared_ptr<Channel>>& channels) {
  const std::uint64_t first = next_request_;
  const std::uint64_t first_draw = next_draw_;
  channels.reserve(channels.size() + requests.size());
  for (NewRequest& request : requests) {
    const RequestId id{next_request_++};
    const std::optional<SeqId> sequence =
        request.composed ? std::optional(request.composed->sequence) : std::nullopt;
    const kv::SessionRef session = sessions_->named(request.session, request.salt);
    if (sequence) {
      core_->ledger.assign(*sequence, session);
    }
    const sched::Request scheduled{.id = id,
                                   .prompt = request.prompt,
                                   .sequence = sequence,
                                   .max_new_tokens = request.params.max_tokens,
                                   .reuse = request.reuse,
                                   .session = session,
                                   .salt = salt_of(request.salt)};
    if (Status status = core_->scheduler.submit(scheduled); !status.ok()) {
      withdraw(first, std::span(requests).subspan(id.value - first));
      next_draw_ = first_draw;
      channels.clear();
      return status;
    }
    request.same_bits = same_bits();
    const std::uint64_t seed = seed_of(request.params, request.kind);
    ActiveRequest active(id, std::move(request), seed,
                         core_->bundle.text == nullptr ? nullptr : &core_->bundle.text->tokenizer,
                         core_->bundle.eos_token_ids);
    channels.push_back(active.channel());
    active_.emplace(id.value, std::move(active));
  }
  publish_stats();
  return {};
}

// Only a request that chooses at random, and brings no seed, draws one: prefill and greedy requests
// leave those that do as they are.
std::uint64_t Engine::seed_of(const SamplingParams& params, RequestKind kind) {
  const bool draws = kind == RequestKind::kGenerate && params.temperature > 0 &&
                     params.max_tokens > 0 && !params.seed;
  return draws ? drawn_seed(options_.seed, next_draw_++) : params.seed.value_or(0);
}

Result<bool> Engine::abort(RequestId id) {
  bool found = false;
  QUIRE_TRY_STATUS(thread_.call([&] { found = abort_now(id); }));
  return found;
}

void Engine::abandon(RequestId id) {
  thread_.post([this, id] { abort_now(id); });  // a closed engine has ended it already
}

bool Engine::abort_now(RequestId id) {
  const auto it = active_.find(id.value);
  if (it == active_.end()) {
    return false;
  }
  core_->scheduler.finish(id);
  publish_stats();
  it->second.end(FinishReason::kCancelled);
  active_.erase(it);
  return true;
}

Result<std::int64_t> Engine::clear_prefix_cache() {
  std::int64_t cleared = 0;
  QUIRE_TRY_STATUS(thread_.call([&] {
    cleared = core_->ledger.clear_cache();
    publish_stats();
  }));
  return cleared;
}

Result<Engine::Cached> Engine::cached_prefix(std::span<const TokenId> tokens,
                                             const std::string& salt) {
  Cached cached;
  QUIRE_TRY_STATUS(thread_.call([&] {
    cached = {.tokens = core_->ledger.match(tokens, salt_of(salt)),
              .miss = kv::to_text(core_->ledger.explain(tokens, salt_of(salt)))};
  }));
  return cached;
}

const std::string& Engine::salt_of(const std::string& asked) const {
  return asked.empty() ? options_.chunks.salt : asked;
}

Result<EngineStats> Engine::stats() {
  for (int generation = 0; generation < kTaskGenerations; ++generation) {
    const std::uint64_t posted = thread_.posted();
    {
      const std::lock_guard lock(stats_mutex_);
      if (shown_ == posted) {
        break;
      }
    }
    QUIRE_TRY_STATUS(thread_.call([this] { publish_stats(); }));  // behind those tasks
    const std::lock_guard lock(stats_mutex_);
    shown_ = std::max(shown_, posted);
  }
  if (thread_.closed()) {
    return closed_error();
  }
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void Engine::publish_stats() {
  core_->counters.ledger = core_->ledger.counts();
  core_->counters.requests_running = core_->scheduler.num_running();
  core_->counters.requests_waiting = core_->scheduler.num_waiting();
  const std::lock_guard lock(stats_mutex_);
  stats_ = core_->counters;
}

}  // namespace quire::engine
