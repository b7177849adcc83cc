#include "quire/engine/sequence_service.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/chunks.h"
#include "quire/engine/active_request.h"
#include "quire/engine/block_run.h"
#include "quire/engine/channel.h"
#include "quire/engine/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/engine/tier_service.h"
#include "quire/interrupt.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

// Of runs that no chunk names: behind all that have a chunk's.
constexpr std::uint64_t kLastRank = ~std::uint64_t{0};

Status await(Engine& engine, Channel& channel, const Interrupt& interrupted) {
  for (int timeout_ms = interrupted ? 0 : -1; !channel.wait_end(timeout_ms);
       timeout_ms = kInterruptPollMs) {
    if (interrupted()) {
      engine.abandon(channel.id());
      return {ErrorCode::kCancelled, "the call was interrupted"};
    }
  }
  return channel.failure();
}

// Whether a request may go on from the state.
Status check_user(const RequestOptions& options, const SequenceState& state) {
  return SessionService::check_user(
      options, state.salt, "the sequence was made with another salt; give that one, or none");
}

// With the salt of what the request stands on: a handle is leave to use it.
Result<RequestOptions> with_salt_of(std::span<const BlockRun> runs, RequestOptions options) {
  bool known = !options.salt.empty();
  for (const BlockRun& run : runs) {
    if (!run.salt) {
      continue;
    }
    if (known && *run.salt != options.salt) {
      return {ErrorCode::kInvalidArgument,
              "blocks of chunks and sequences with another salt cannot be used; give blocks of one "
              "salt, and that one or none"};
    }
    options.salt = *run.salt;
    known = true;
  }
  return options;
}

}  // namespace

// Any thread, the engine's too; does not wait.
SequenceState::~SequenceState() {
  if (const auto owner = engine.lock()) {
    letter.front() = [raw = owner.get(), id = sequence] { raw->ledger_->close(id); };
    owner->post(std::move(letter));
  }
}

// Keeps what a request has computed as the next state.
class SequenceService::Next : public RequestObserver {
 public:
  using Keep = std::function<StateRef(SeqId)>;
  Next(Keep keep, Done done) : keep_(std::move(keep)), done_(std::move(done)) {}
  ~Next() override {
    if (done_) {
      done_(nullptr);
    }
  }

  void computed(SeqId sequence) override { std::exchange(done_, nullptr)(keep_(sequence)); }

 private:
  Keep keep_;
  Done done_;
};

kv::Ledger& SequenceService::ledger() const {
  auto& ledger = engine_.ledger_;
  QUIRE_CHECK(ledger.has_value(), "a running engine has a ledger");
  return *ledger;
}

// `end`: the position behind the last token.
Status SequenceService::check_end(std::int64_t end) const {
  const std::int64_t limit = engine_.model_config().max_positions;
  if (end <= limit) {
    return {};
  }
  return {
      ErrorCode::kOverflow,
      base::str_cat("the sequence would have ", end, " positions, the model's context ",
                    engine_.model_config().context_text(), "; roll back, or begin another one")};
}

// `tokens` are to stand behind `before` others.
Status SequenceService::check(std::int64_t before, std::span<const TokenId> tokens) const {
  if (tokens.empty()) {
    return {};
  }
  QUIRE_TRY_STATUS(engine_.check_prompt(tokens));
  return check_end(before + std::ssize(tokens));
}

// Takes over the sequence, which is closed where memory is refused.
StateRef SequenceService::keep(const Draft& draft) {
  try {
    return make_state(draft);
  } catch (const std::bad_alloc&) {
    ledger().close(draft.sequence);
    throw;
  }
}

StateRef SequenceService::make_state(const Draft& draft) {
  kv::Ledger& ledger = this->ledger();
  const SeqId id = draft.sequence;
  ledger.assign(id, {});  // a state is nobody's request
  if (draft.last) {
    ledger.append(id, *draft.last);
  }
  const std::span<const TokenId> own = ledger.tokens(id);
  if (!own.empty() && ledger.num_computed(id) == std::ssize(own)) {
    const TokenId last = own.back();
    const Status cut = ledger.rollback(id, ledger.num_computed(id) - 1);
    QUIRE_CHECK(cut.ok(), "the last token of a sequence is in its window");
    ledger.append(id, last);
  }
  auto state = std::make_shared<SequenceState>();
  state->tokens = ledger.joined_tokens(id);
  state->segment_tokens = ledger.segment_tokens(id);
  state->sampled = draft.sampled;
  state->grade = draft.grade;
  state->salt = draft.salt;
  state->computed_tokens = draft.computed_tokens;
  state->same_bits = engine_.same_bits();
  state->sequence = id;
  for (const kv::RunView& run : ledger.runs(id)) {
    for (const BlockId block : run.blocks) {
      state->blocks.push_back(block.value);
    }
  }
  if (states_.size() >= next_sweep_) {
    std::erase_if(states_, [](const auto& known) { return known.expired(); });
    next_sweep_ = std::max(kFirstSweep, 2 * states_.size());
  }
  states_.push_back(state);
  state->engine = engine_.weak_from_this();  // from now on it gives its sequence up itself
  return state;
}

SequenceService::Draft SequenceService::draft_plain(std::span<const TokenId> tokens,
                                                    const RequestOptions& options) {
  Draft draft{.salt = engine_.salt_of(options.salt)};
  draft.sequence = ledger().open(tokens, true,
                                 engine_.sessions_->named(options.session, draft.salt), draft.salt);
  if (!tokens.empty()) {
    draft.last = tokens.back();
    const Status cut = ledger().rollback(draft.sequence, static_cast<int>(tokens.size()) - 1);
    QUIRE_CHECK(cut.ok(), "a cached prefix never has the last token");
  }
  return draft;
}

// The state's tokens and `tokens`, of which there is at least one. What the prefix cache knows of
// them beyond the state's own KV is taken from there.
SequenceService::Draft SequenceService::draft_next(const SequenceState& state,
                                                   std::span<const TokenId> tokens,
                                                   const RequestOptions& options) {
  kv::Ledger& ledger = this->ledger();
  if (ledger.is_plain(state.sequence)) {
    std::vector<TokenId> all = state.tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
    if (ledger.match(all, state.salt) > ledger.num_computed(state.sequence)) {
      return draft_plain(all, {.session = options.session, .salt = state.salt});
    }
  }
  Draft draft{.sequence = ledger.fork(state.sequence),
              .last = tokens.back(),
              .grade = state.grade,
              .salt = state.salt};
  for (const TokenId token : tokens.first(tokens.size() - 1)) {
    ledger.append(draft.sequence, token);
  }
  return draft;
}

// The state's first `length` tokens, of which there is at least one.
Result<SequenceService::Draft> SequenceService::draft_cut(const StateRef& from,
                                                          std::int64_t length) {
  kv::Ledger& ledger = this->ledger();
  const SequenceState& state = *from;
  const auto tokens = std::span(state.tokens).first(static_cast<std::size_t>(length));
  const std::int64_t own = length - state.segment_tokens;
  if (length == 1) {
    return draft_plain(tokens, {.salt = state.salt});
  }
  if (own < 1) {
    const BlockRun run{.engine = state.engine, .state = from, .tokens = length - 1};
    QUIRE_TRY(Draft draft, draft_behind({&run, 1}, {tokens.back()}));
    draft.grade = state.grade;
    draft.salt = state.salt;
    return draft;
  }
  Draft draft{.sequence = ledger.fork(state.sequence),
              .last = tokens.back(),
              .sampled = static_cast<std::int32_t>(
                  std::max<std::int64_t>(0, state.sampled - (std::ssize(state.tokens) - length))),
              .grade = state.grade,
              .salt = state.salt};
  const Status cut = ledger.rollback(draft.sequence, static_cast<std::int32_t>(own) - 1);
  if (cut.ok()) {
    return draft;
  }
  ledger.close(draft.sequence);
  if (!ledger.is_plain(state.sequence)) {
    return cut.error();
  }
  Draft anew = draft_plain(tokens, {.salt = state.salt});  // the window has freed what is needed
  anew.sampled = draft.sampled;
  return anew;
}

// Where the segments of a run stand when its first token is used at `position`.
Result<SequenceService::Segments> SequenceService::place(const BlockRun& run, std::int64_t position,
                                                         Segments& named) const {
  QUIRE_TRY(const Segments segments, segments_of(run, named));
  Segments uses;
  std::int64_t left = run.tokens;
  for (const kv::SegmentUse& part : segments) {
    const auto tokens = static_cast<std::int32_t>(
        std::min<std::int64_t>(left, ledger().segment(part.segment)->num_tokens()));
    if (tokens == 0) {
      break;
    }
    left -= tokens;
    const std::int64_t start = position + part.position - segments.front().position;
    QUIRE_TRY_STATUS(check_end(start + tokens));
    uses.push_back({.segment = part.segment,
                    .position = static_cast<std::int32_t>(start),
                    .rank = part.rank,
                    .tokens = tokens});
  }
  return uses;
}

// Behind the KV of the runs. Its own tokens are those of `tail`, of which there is at least one.
// States are named as segments for it, which go to `named`.
Result<SequenceService::Draft> SequenceService::draft_behind(std::span<const BlockRun> runs,
                                                             std::vector<TokenId> tail,
                                                             Segments& named) {
  Segments uses;
  std::int64_t position = 0;
  for (const BlockRun& run : runs) {
    QUIRE_TRY(const Segments placed, place(run, position, named));
    for (kv::SegmentUse use : placed) {
      if (runs.size() > 1) {  // several runs merge in their order
        use.rank = {kLastRank, static_cast<std::uint32_t>(uses.size())};
      }
      position = std::max<std::int64_t>(position, use.position + use.tokens.value_or(0));
      uses.push_back(use);
    }
  }
  QUIRE_TRY_STATUS(check_end(position + std::ssize(tail)));
  Draft draft{.last = tail.back(), .grade = ReuseGrade::kApproximate};
  tail.pop_back();
  QUIRE_TRY(
      draft.sequence,
      ledger().compose(uses, {.tokens = tail, .position = static_cast<std::int32_t>(position)}));
  return draft;
}

Result<SequenceService::Draft> SequenceService::draft_behind(std::span<const BlockRun> runs,
                                                             std::vector<TokenId> tail) {
  Segments named;
  auto draft = draft_behind(runs, std::move(tail), named);
  for (const kv::SegmentUse& use : named) {
    ledger().drop_segment(use.segment);  // the sequence has it
  }
  return draft;
}

Result<std::shared_ptr<Channel>> SequenceService::start(NewRequest request) {
  std::vector<NewRequest> requests;
  requests.push_back(std::move(request));
  std::vector<std::shared_ptr<Channel>> channels;
  QUIRE_TRY_STATUS(engine_.enqueue(std::move(requests), channels));
  return channels.front();
}

Result<StateRef> SequenceService::compute(const std::function<Result<Draft>()>& make,
                                          const Interrupt& interrupted,
                                          const RequestOptions& options) {
  QUIRE_TRY_STATUS(SessionService::check_user(options));
  const auto state = std::make_shared<StateRef>();
  const auto begin = [&]() -> Result<std::shared_ptr<Channel>> {
    QUIRE_TRY(Draft draft, make());
    draft.computed_tokens =
        std::ssize(ledger().tokens(draft.sequence)) - ledger().num_computed(draft.sequence);
    if (draft.computed_tokens == 0) {
      ledger().assign(draft.sequence, engine_.sessions_->named(options.session, draft.salt));
      *state = keep(draft);
      return std::shared_ptr<Channel>();
    }
    const auto keep_fork = [this, draft](SeqId computed) {
      Draft next = draft;
      next.sequence = ledger().fork(computed);
      return keep(next);
    };
    NewRequest request{
        .kind = RequestKind::kPrefill, .session = options.session, .salt = draft.salt};
    request.params.max_tokens = 0;
    request.composed.emplace().sequence = draft.sequence;
    request.observer = std::make_shared<Next>(
        keep_fork, [state](StateRef computed) { *state = std::move(computed); });
    return start(std::move(request));
  };
  QUIRE_TRY(const auto channel, engine_.ask<std::shared_ptr<Channel>>(begin));
  if (channel != nullptr) {
    QUIRE_TRY_STATUS(await(engine_, *channel, interrupted));
  }
  return *state;
}

Result<StateRef> SequenceService::open(std::span<const TokenId> tokens,
                                       const Interrupt& interrupted,
                                       const RequestOptions& options) {
  QUIRE_TRY_STATUS(check(0, tokens));
  return compute([&] { return draft_plain(tokens, options); }, interrupted, options);
}

Result<StateRef> SequenceService::open(const CompositionSpec& spec, const Interrupt& interrupted,
                                       const RequestOptions& options) {
  ChunkService& chunks = *engine_.chunks_;
  ChunkService::Run run{.spec = &spec, .kind = RequestKind::kPrefill, .options = options};
  QUIRE_TRY(run.options.salt, chunks.salt_of(run));
  CompositionSpec own = spec;
  own.salt = run.options.salt;
  run.spec = &own;
  QUIRE_TRY(const CompositionInfo info, chunks.preview(own));
  if (info.mode == ReuseMode::kExact) {
    return open(info.token_ids(), interrupted, run.options);
  }
  const auto state = std::make_shared<StateRef>();
  const auto keep_fork = [this, grade = info.grade, salt = own.salt](SeqId computed) {
    return keep({.sequence = ledger().fork(computed), .grade = grade, .salt = salt});
  };
  run.observer = std::make_shared<Next>(
      keep_fork, [state](StateRef computed) { *state = std::move(computed); });
  QUIRE_TRY(const auto channels, chunks.submit({&run, 1}, interrupted));
  QUIRE_TRY_STATUS(await(engine_, *channels.front(), interrupted));
  return *state;
}

Result<StateRef> SequenceService::open(std::span<const BlockRun> runs,
                                       std::span<const TokenId> tokens,
                                       const Interrupt& interrupted, ReuseGrade grade,
                                       const RequestOptions& options) {
  std::vector<BlockRun> parts;
  std::ranges::copy_if(runs, std::back_inserter(parts),
                       [](const BlockRun& run) { return run.tokens > 0; });
  if (parts.empty()) {
    return open(tokens, interrupted, options);
  }
  std::vector<StateRef> states;  // of the parts that are one
  for (BlockRun& part : parts) {
    StateRef state = part.state.lock();
    if (part.engine.lock().get() != &engine_) {
      return Error{.code = ErrorCode::kInvalidComposition,
                   .message = "the blocks are another LLM's; use them there"};
    }
    const bool all = state != nullptr && part.tokens == std::ssize(state->tokens);
    if (all && &part != &parts.back()) {  // the KV of its last token is wanted too
      QUIRE_TRY(state, append(state, std::array<TokenId, 1>{}, interrupted));
      part.state = state;
    }
    states.push_back(std::move(state));
  }
  QUIRE_TRY(const RequestOptions whose, with_salt_of(parts, options));
  if (parts.size() == 1 && states.front() != nullptr) {
    QUIRE_TRY(const StateRef state, cut(states.front(), parts.front().tokens));
    return append(state, tokens, interrupted, whose);
  }
  const auto make = [&]() -> Result<Draft> {
    std::vector<TokenId> tail(tokens.begin(), tokens.end());
    BlockRun& last = parts.back();
    const StateRef& state = states.back();
    const bool computed = state == nullptr || last.tokens < std::ssize(state->tokens);
    if (tail.empty() || !computed) {
      QUIRE_TRY(const std::vector<TokenId> known, tokens_of(last));
      tail.insert(tail.begin(), known.back());
      --last.tokens;
    }
    QUIRE_TRY(Draft draft, draft_behind(parts, std::move(tail)));
    draft.grade = grade;
    draft.salt = engine_.salt_of(whose.salt);
    return draft;
  };
  return compute(make, interrupted, whose);
}

Result<StateRef> SequenceService::append(const StateRef& state, std::span<const TokenId> tokens,
                                         const Interrupt& interrupted,
                                         const RequestOptions& options) {
  QUIRE_TRY_STATUS(check_user(options, *state));
  if (tokens.empty()) {
    return state;
  }
  QUIRE_TRY_STATUS(check(std::ssize(state->tokens), tokens));
  return compute([&] { return draft_next(*state, tokens, options); }, interrupted, options);
}

Result<StateRef> SequenceService::cut(const StateRef& state, std::int64_t length) {
  const std::int64_t all = std::ssize(state->tokens);
  if (length < 0 || length > all) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot roll back to ", length, " tokens: the sequence has ", all)};
  }
  if (length == all) {
    return state;
  }
  if (length == 0) {
    return open(std::span<const TokenId>(), {}, {.salt = state->salt});
  }
  return compute([&] { return draft_cut(state, length); }, {});
}

Result<StateRef> SequenceService::replace(const StateRef& state, std::int64_t start,
                                          std::int64_t stop, std::span<const TokenId> tokens,
                                          const Interrupt& interrupted,
                                          const RequestOptions& options) {
  const std::int64_t all = std::ssize(state->tokens);
  if (start < 0 || stop < start || stop > all) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot replace tokens ", start, " to ", stop, ": the sequence has ", all,
                          "; give 0 <= start <= stop <= ", all)};
  }
  std::vector<TokenId> changed(tokens.begin(), tokens.end());
  changed.insert(changed.end(), state->tokens.begin() + stop, state->tokens.end());
  if (start >= state->segment_tokens || changed.empty()) {
    QUIRE_TRY(const StateRef kept, cut(state, start));
    return append(kept, changed, interrupted, options);
  }
  QUIRE_TRY_STATUS(check_user(options, *state));
  changed.insert(changed.begin(), state->tokens.begin(), state->tokens.begin() + start);
  return open(changed, interrupted, {.session = options.session, .salt = state->salt});
}

Result<StateRef> SequenceService::replace_only(const StateRef& state, std::int64_t start,
                                               std::int64_t stop, std::span<const TokenId> tokens,
                                               const Interrupt& interrupted,
                                               const RequestOptions& options) {
  const std::int64_t with_kv = std::ssize(state->tokens) - 1;
  if (start < 0 || start > stop || stop >= with_kv || (start == stop && tokens.empty())) {
    return replace(state, start, stop, tokens, interrupted,
                   options);  // refused, or nothing stands behind
  }
  if (engine_.chunks().windowed()) {
    return {ErrorCode::kIncompatible,
            "an approximate edit moves KV, which has no meaning for a model with a sliding window, "
            "which has forgotten a part; edit in mode exact"};
  }
  QUIRE_TRY_STATUS(check(with_kv + 1 - (stop - start), tokens));
  QUIRE_TRY(StateRef head, cut(state, start));
  QUIRE_TRY(head, append(head, tokens, interrupted, options));
  std::vector<BlockRun> runs;
  if (!head->tokens.empty()) {
    runs.push_back(run_of(head));
  }
  QUIRE_TRY(const auto moved, engine_.tiers().copy_out(state, stop, with_kv));
  std::ranges::transform(moved, std::back_inserter(runs), &TierService::run_of);
  return open(runs, {&state->tokens.back(), 1}, interrupted, ReuseGrade::kApproximate,
              {.session = options.session, .salt = state->salt});
}

// A request on a fork of the state. Engine thread.
NewRequest SequenceService::request_for(RequestKind kind, const StateRef& state) const {
  const std::int64_t cached = std::ssize(state->tokens) - 1;
  NewRequest request{.kind = kind, .salt = state->salt, .sampled_before = state->sampled};
  request.composed =
      ComposedPrompt{.sequence = ledger().fork(state->sequence),
                     .pieces = {std::shared_ptr<const std::vector<TokenId>>(state, &state->tokens)},
                     .cached_tokens = cached,
                     .reuse = {.grade = state->grade}};
  return request;
}

Result<std::shared_ptr<Channel>> SequenceService::generate(const StateRef& state,
                                                           const Generate& how, Done done) {
  QUIRE_TRY_STATUS(engine_.check(*how.params));
  QUIRE_TRY_STATUS(check_user(how.options, *state));
  if (state->tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "the sequence is empty; append at least one token"};
  }
  return engine_.ask<std::shared_ptr<Channel>>([&]() -> Result<std::shared_ptr<Channel>> {
    const kv::RunView own = ledger().runs(state->sequence).back();
    const auto known = std::ssize(ledger().tokens(state->sequence));
    // The KV of the last sampled token is never needed, so one more token than positions fits.
    const std::int64_t room =
        engine_.model_config().max_positions - (own.start_position + known) + std::int64_t{1};
    NewRequest request = request_for(RequestKind::kGenerate, state);
    const std::int32_t before = how.sampler_goes_on ? state->sampled : 0;
    request.sampled_before = before;
    request.params = *how.params;
    request.params.max_tokens =
        static_cast<std::int32_t>(std::min<std::int64_t>(how.params->max_tokens, room));
    request.session = how.options.session;
    request.streaming = how.streaming;
    request.notify = how.options.notify;
    request.submitted = how.submitted;
    ComposedPrompt& prompt = *request.composed;
    prompt.cached_tokens = how.cached.value_or(prompt.cached_tokens);
    prompt.reuse.sources = {{how.source, prompt.cached_tokens}};
    const auto keep_fork = [this, state, known, before](SeqId computed) {
      const auto sampled = std::ssize(ledger().tokens(computed)) - known;
      // Where no token was added the run has computed the last one, whose window may be gone by
      // now.
      return keep({.sequence = ledger().fork(sampled == 0 ? state->sequence : computed),
                   .sampled = before + static_cast<std::int32_t>(sampled),
                   .grade = state->grade,
                   .salt = state->salt});
    };
    request.observer = std::make_shared<Next>(keep_fork, std::move(done));
    return start(std::move(request));
  });
}

Result<std::shared_ptr<Channel>> SequenceService::logits(const StateRef& state) {
  if (state->tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "the sequence is empty; append at least one token"};
  }
  return engine_.ask<std::shared_ptr<Channel>>([&] {
    NewRequest request = request_for(RequestKind::kForwardLast, state);
    request.params.max_tokens = 0;
    return start(std::move(request));
  });
}

}  // namespace quire::engine
