#include "quire/engine/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
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
#include "quire/device/cpu/start_thread.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/model_bundle.h"
#include "quire/engine/sequence_service.h"
#include "quire/engine/session_service.h"
#include "quire/engine/submission.h"
#include "quire/engine/tier_service.h"
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

// NOLINTBEGIN(bugprone-unchecked-optional-access): set_up fills them before the thread starts.
namespace quire::engine {
namespace {

Error closed_error() {
  return {.code = ErrorCode::kClosed, .message = "the engine is closed; open the model again"};
}

int thread_count(std::int32_t wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// As many as are read at full speed: the bytes of one head of one layer lie side by side.
std::int32_t blocks_of_an_extent(const tensor::KVGeometry& geometry) {
  constexpr std::int64_t kExtentBytes = std::int64_t{64} << 10;
  const std::int64_t bytes = geometry.head_block_bytes();
  return static_cast<std::int32_t>((kExtentBytes + bytes - 1) / bytes);
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

// A letter that ends a request may post another, which gives back what that held and posts none.
constexpr int kLetterGenerations = 2;

}  // namespace

Result<std::shared_ptr<Engine>> Engine::start(const std::string& model,
                                              const EngineOptions& options) {
  std::shared_ptr<Engine> engine(new Engine(options, thread_count(options.threads)),
                                 [](Engine* made) {
                                   if (!made->home_.left()) {
                                     delete made;
                                   }
                                 });
  QUIRE_TRY_STATUS(engine->set_up(model));
  engine->chunks_ = std::make_unique<ChunkService>(*engine, options.chunks);
  engine->sequences_ = std::make_unique<SequenceService>(*engine);
  engine->sessions_ = std::make_unique<SessionService>(*engine);
  engine->tiers_ = std::make_unique<TierService>(*engine);
  QUIRE_TRY_STATUS(engine->chunks_->open_store());
  engine->thread_ = device::start_thread([raw = engine.get()] { raw->run(); });
  if (!engine->thread_.joinable()) {
    return {ErrorCode::kIo, "the system grants no thread for the engine"};
  }
  return engine;
}

Engine::Engine(const EngineOptions& options, int threads)
    : options_(options),
      pool_(threads),
      context_{.table = &kernels::kernels_for(device::best_isa()), .pool = &pool_},
      builder_(options.share_reads, shared_tokens(options)),
      samplers_(static_cast<std::size_t>(threads)) {}

Engine::~Engine() { close(); }

Result<std::int64_t> Engine::kv_budget() const {
  if (options_.kv_budget_bytes != kAutoBudget) {
    return options_.kv_budget_bytes;
  }
  if (accelerator_ == nullptr) {
    return std::int64_t{::sysconf(_SC_AVPHYS_PAGES)} * ::sysconf(_SC_PAGESIZE) / 2;
  }
  QUIRE_TRY(const std::int64_t free, accelerator_->free_bytes());
  return free / 5 * 4;
}

Result<kv_store::PagedStore> Engine::make_store(const tensor::KVGeometry& geometry,
                                                std::int32_t num_blocks) const {
  return accelerator_ == nullptr
             ? kv_store::PagedStore::create(geometry, num_blocks)
             : kv_store::PagedStore::create_on(*accelerator_, geometry, num_blocks);
}

Status Engine::load(const std::string& model) {
  BundleOptions bundle = options_.model;
  if (options_.device != "cpu") {
    QUIRE_TRY(accelerator_, device::Accelerator::open(options_.device));
    bundle.placement = {accelerator_.get(), options_.deterministic};
  }
  QUIRE_TRY(bundle_, load_model(context_, model, bundle));
  return {};
}

Status Engine::set_up(const std::string& model) {
  QUIRE_TRY_STATUS(load(model));
  const auto geometry = model_config().kv_geometry(bundle_.kv_dtype, options_.block_tokens);
  QUIRE_TRY(const std::int64_t budget, kv_budget());
  const std::int32_t num_blocks = kv_store::blocks_in_budget(geometry, budget);
  if (num_blocks == 0) {
    return Error{.code = ErrorCode::kInvalidArgument,
                 .message = base::str_cat("kv_budget of ", base::format_bytes(budget),
                                          " is below one block of ", geometry.block_tokens,
                                          " tokens (", base::format_bytes(geometry.block_bytes()),
                                          "); raise kv_budget or lower block_tokens"),
                 .needed_bytes = geometry.block_bytes(),
                 .free_bytes = budget};
  }
  const kv::LedgerConfig ledger{.num_blocks = num_blocks,
                                .block_tokens = geometry.block_tokens,
                                .window_tokens = geometry.forget_after_tokens(),
                                .extent_blocks = blocks_of_an_extent(geometry),
                                .prefix_cache = options_.prefix_cache};
  const sched::SchedulerConfig scheduler{.max_batch_tokens = options_.max_batch_tokens,
                                         .max_running = options_.max_running,
                                         .block_bytes = geometry.block_bytes()};
  QUIRE_TRY_STATUS(ledger.validate());
  QUIRE_TRY_STATUS(scheduler.validate());
  QUIRE_TRY(auto store, make_store(geometry, num_blocks));
  store_.emplace(std::move(store));
  ledger_.emplace(ledger);
  scheduler_.emplace(scheduler, *ledger_);
  for (int layer = 0; layer < geometry.layers; ++layer) {
    views_.push_back(store_->view(layer));
  }
  const model::LoadReport& report = bundle_.decoder->load_report();
  counters_.block_bytes = geometry.block_bytes();
  counters_.load_seconds = report.seconds;
  counters_.load_bytes = report.bytes_read;
  counters_.weight_bytes = report.packed_bytes;
  counters_.mapped_weight_bytes = report.mapped_bytes;
  publish_stats();
  return {};
}

bool Engine::has_work() const {
  return closing_ || !mailbox_.empty() || !active_.empty() || !now_.runs.empty();
}

void Engine::give_up_ownership() {
  bool wanted = false;
  {
    const std::lock_guard lock(mutex_);
    owned_ = false;
    wanted = has_work();
  }
  if (wanted) {
    work_arrived_.notify_one();
  }
}

Status Engine::call(const std::function<void()>& work) {
  QUIRE_TRY_STATUS(home_.check());
  std::unique_lock lock(mutex_);
  if (closing_) {
    return closed_error();
  }
  if (!owned_ && !has_work()) {
    struct Turn {
      Engine& engine;
      ~Turn() { engine.give_up_ownership(); }
    };
    owned_ = true;
    lock.unlock();
    const Turn turn{*this};
    ledger_->set_time(Clock::now());
    return run_letter(work);
  }
  lock.unlock();
  std::promise<void> done;
  auto ended = done.get_future();
  Status outcome;
  Letters letter;
  letter.emplace_back([&] {
    outcome = run_letter(work);
    done.set_value();
  });
  if (!send(std::move(letter), true)) {
    return closed_error();
  }
  ended.wait();
  return outcome;
}

void Engine::call_surely(const std::function<void()>& work) {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    try {
      const Status done = call(work);
      if (done.ok() || done.error().code != ErrorCode::kOutOfBlocks) {
        return;  // or the engine is closed, and nothing is there any more
      }
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the next try is the answer
    }
  }
}

// Whoever made a letter may have got no further than half of it. Requests that it began end first:
// they hold sequences, and some of them book what becomes of a chunk.
void Engine::give_up_since(kv::Ledger::Mark mark, std::uint64_t first_request) {
  for (std::uint64_t id = first_request; id < next_request_; ++id) {
    scheduler_->finish(RequestId{id});
    if (const auto begun = active_.find(id); begun != active_.end()) {
      begun->second.fail(base::no_memory("the call"));
      active_.erase(begun);
    }
  }
  ledger_->close_since(mark);
  ledger_->drop_segments_since(mark, [this](kv::SegmentId id) { return chunks_->owns(id); });
  publish_stats();
}

Status Engine::run_letter(const std::function<void()>& work) {
  const kv::Ledger::Mark mark = ledger_->mark();
  const std::uint64_t first_request = next_request_;
  try {
    work();
    return {};
  } catch (const std::bad_alloc&) {
    give_up_since(mark, first_request);
    return base::no_memory("the call");
  }
}

bool Engine::post(std::function<void()> work) {
  Letters letter;
  letter.push_back(std::move(work));
  return post(std::move(letter));
}

bool Engine::post(Letters letter) noexcept { return send(std::move(letter), false); }

bool Engine::send(Letters letter, bool awaited) noexcept {
  if (home_.left()) {
    return false;
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      return false;
    }
    posted_ += awaited ? 0 : 1;
    mailbox_.splice(mailbox_.end(), letter);
  }
  work_arrived_.notify_one();
  return true;
}

void Engine::drain_mailbox() {
  {
    const std::lock_guard lock(mutex_);
    letters_.swap(mailbox_);
  }
  for (const auto& letter : letters_) {
    if (!run_letter(letter).ok()) {
      [[maybe_unused]] const Status again = run_letter(letter);  // nobody waits who would ask again
    }
  }
  letters_.clear();
}

void Engine::run() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      owned_ = false;
      work_arrived_.wait(lock, [this] { return !owned_ && has_work(); });
      owned_ = true;
      if (closing_ && mailbox_.empty()) {
        break;
      }
    }
    ledger_->set_time(Clock::now());
    if (now_.runs.empty()) {  // letters find no step that runs, and every token booked
      drain_mailbox();
    }
    if (!active_.empty() || !now_.runs.empty()) {
      step();
    }
  }
  drop_steps();
  fail_all(closed_error());
}

void Engine::close() {
  if (home_.left()) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (closing_) {
      return;
    }
    closing_ = true;
  }
  work_arrived_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
    tiers_->arrivals().stop();  // its letters need the mailbox
    chunks_->stop_writing();    // before the last one who holds the engine lets it go
  }
}

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
  if (!params.stop.empty() && bundle_.text == nullptr) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("stop strings need a tokenizer: ", bundle_.text_error)};
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
  QUIRE_TRY_STATUS(call([&] { accepted = enqueue(std::move(requests), channels); }));
  QUIRE_TRY_STATUS(accepted);
  return channels;
}

Result<std::shared_ptr<Submission>> Engine::submit_later(NewRequest request) {
  QUIRE_TRY_STATUS(home_.check());
  QUIRE_TRY_STATUS(prepare(request));
  auto submission = std::make_shared<Submission>(request.notify);
  const auto enqueue_now = [this, submission,
                            kept =
                                std::make_shared<std::optional<NewRequest>>(std::move(request))] {
    std::optional<NewRequest> taken = std::exchange(*kept, std::nullopt);
    if (!taken) {
      return;  // the letter comes again, for it was refused memory, and has answered so
    }
    if (submission->unwanted()) {
      submission->answer(Error{.code = ErrorCode::kCancelled, .message = "the stream was closed"});
      return;
    }
    std::vector<std::shared_ptr<Channel>> channels;
    try {
      std::vector<NewRequest> requests;
      requests.push_back(*std::move(taken));
      if (Status accepted = enqueue(std::move(requests), channels); !accepted.ok()) {
        submission->answer(std::move(accepted).error());
        return;
      }
    } catch (const std::bad_alloc&) {
      submission->answer(base::no_memory("the request"));
      throw;  // what was begun of it is given up
    }
    submission->answer(channels.front());
    if (submission->unwanted()) {  // since it was asked above
      abort_now(channels.front()->id());
    }
  };
  if (!post(enqueue_now)) {
    return closed_error();
  }
  return submission;
}

void Engine::withdraw(std::uint64_t first, std::span<const NewRequest> refused) {
  for (std::uint64_t undo = first; undo + 1 < next_request_; ++undo) {
    scheduler_->finish(RequestId{undo});
    active_.erase(undo);
  }
  for (const NewRequest& request : refused) {
    if (request.composed) {
      ledger_->close(request.composed->sequence);
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
      ledger_->assign(*sequence, session);
    }
    const sched::Request scheduled{.id = id,
                                   .prompt = request.prompt,
                                   .sequence = sequence,
                                   .max_new_tokens = request.params.max_tokens,
                                   .reuse = request.reuse,
                                   .session = session,
                                   .salt = salt_of(request.salt)};
    if (Status status = scheduler_->submit(scheduled); !status.ok()) {
      withdraw(first, std::span(requests).subspan(id.value - first));
      next_draw_ = first_draw;
      channels.clear();
      return status;
    }
    request.same_bits = same_bits();
    const std::uint64_t seed = seed_of(request.params, request.kind);
    ActiveRequest active(id, std::move(request), seed,
                         bundle_.text == nullptr ? nullptr : &bundle_.text->tokenizer,
                         bundle_.eos_token_ids);
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
  QUIRE_TRY_STATUS(call([&] { found = abort_now(id); }));
  return found;
}

void Engine::abandon(RequestId id) noexcept {
  constexpr int kTries = 3;
  for (int i = 0; i < kTries; ++i) {
    try {
      post([this, id] { abort_now(id); });  // a closed engine has ended it already
      return;
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the next try is the answer
    }
  }
}

bool Engine::abort_now(RequestId id) {
  const auto it = active_.find(id.value);
  if (it == active_.end()) {
    return false;
  }
  scheduler_->finish(id);
  publish_stats();
  it->second.end(FinishReason::kCancelled);
  active_.erase(it);
  return true;
}

Result<std::int64_t> Engine::clear_prefix_cache() {
  std::int64_t cleared = 0;
  QUIRE_TRY_STATUS(call([&] {
    cleared = ledger_->clear_cache();
    publish_stats();
  }));
  return cleared;
}

Result<Engine::Cached> Engine::cached_prefix(std::span<const TokenId> tokens,
                                             const std::string& salt) {
  Cached cached;
  QUIRE_TRY_STATUS(call([&] {
    cached = {.tokens = ledger_->match(tokens, salt_of(salt)),
              .miss = kv::to_text(ledger_->explain(tokens, salt_of(salt)))};
  }));
  return cached;
}

const std::string& Engine::salt_of(const std::string& asked) const {
  return asked.empty() ? options_.chunks.salt : asked;
}

Result<EngineStats> Engine::stats() {
  for (int generation = 0; generation < kLetterGenerations; ++generation) {
    std::uint64_t posted = 0;
    {
      const std::lock_guard lock(mutex_);
      posted = posted_;
      if (shown_ == posted) {
        break;
      }
    }
    QUIRE_TRY_STATUS(call([this] { publish_stats(); }));  // behind those letters
    const std::lock_guard lock(mutex_);
    shown_ = std::max(shown_, posted);
  }
  const std::lock_guard lock(mutex_);
  return closing_ ? Result<EngineStats>(closed_error()) : stats_;
}

void Engine::publish_stats() {
  counters_.ledger = ledger_->counts();
  counters_.requests_running = scheduler_->num_running();
  counters_.requests_waiting = scheduler_->num_waiting();
  const std::lock_guard lock(mutex_);
  stats_ = counters_;
}

}  // namespace quire::engine
// NOLINTEND(bugprone-unchecked-optional-access)
