#include "quire/sequences/sequence_service.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_service.h"
#include "quire/chunks/composition_planner.h"
#include "quire/chunks/mapped_run.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/engine/engine.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/ledger.h"
#include "quire/kv/restore_points.h"
#include "quire/kv/states.h"
#include "quire/kv/types.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/sequence_drafts.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/moved_rows.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::sequences {

namespace {

Status await(engine::Engine& engine, engine::Channel& channel, const Interrupt& interrupted) {
  for (int timeout_ms = interrupted ? 0 : -1; !channel.wait_end(timeout_ms);
       timeout_ms = kInterruptPollMs) {
    if (interrupted()) {
      engine.abandon(channel.id());
      return {ErrorCode::kCancelled, "the call was interrupted"};
    }
  }
  return channel.failure();
}

// Returns the error of a request that may not go on from the state.
Status check_user(const RequestOptions& options, const SequenceState& state) {
  return engine::SessionService::check_user(
      options, state.salt, "the sequence was made with another salt; give that one, or none");
}

// Returns the options with the salt of the runs: a handle is leave to use what it names.
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

// Keeps what a request has computed as the next state.
class SequenceService::Next : public engine::RequestObserver {
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

Result<std::shared_ptr<engine::Channel>> SequenceService::start(engine::NewRequest request) {
  std::vector<engine::NewRequest> requests;
  requests.push_back(std::move(request));
  std::vector<std::shared_ptr<engine::Channel>> channels;
  QUIRE_TRY_STATUS(engine_.requests().enqueue(std::move(requests), channels));
  return channels.front();
}

Result<StateRef> SequenceService::compute(const std::function<Result<SequenceDraft>()>& make,
                                          const Interrupt& interrupted,
                                          const RequestOptions& options) {
  QUIRE_TRY_STATUS(engine::SessionService::check_user(options));
  const auto state = std::make_shared<StateRef>();
  const auto begin = [&]() -> Result<std::shared_ptr<engine::Channel>> {
    QUIRE_TRY(SequenceDraft draft, make());
    kv::Ledger& ledger = engine_.core().ledger;
    draft.computed_tokens =
        std::ssize(ledger.sequences().tokens(draft.sequence)) - drafts_.at_hand(draft.sequence);
    if (draft.computed_tokens == 0) {
      ledger.cache().assign(draft.sequence, engine_.sessions().named(options.session, draft.salt));
      *state = drafts_.keep(draft);
      return std::shared_ptr<engine::Channel>();
    }
    const auto keep_fork = [this, draft](SeqId computed) {
      SequenceDraft next = draft;
      next.sequence = engine_.core().ledger.sequences().fork(computed);
      return drafts_.keep(next);
    };
    engine::NewRequest request{.kind = engine::RequestKind::kPrefill,
                               .session = options.session,
                               .salt = draft.salt,
                               .urgency = engine::urgency_of(options)};
    request.params.max_tokens = 0;
    request.composed.emplace().sequence = draft.sequence;
    request.observer = std::make_shared<Next>(
        keep_fork, [state](StateRef computed) { *state = std::move(computed); });
    return start(std::move(request));
  };
  QUIRE_TRY(const auto channel, engine_.thread().ask<std::shared_ptr<engine::Channel>>(begin));
  if (channel != nullptr) {
    QUIRE_TRY_STATUS(await(engine_, *channel, interrupted));
  }
  return *state;
}

Result<StateRef> SequenceService::open(std::span<const TokenId> tokens,
                                       const Interrupt& interrupted,
                                       const RequestOptions& options) {
  QUIRE_TRY_STATUS(drafts_.check(0, tokens));
  return compute([&] { return drafts_.plain(tokens, options); }, interrupted, options);
}

Result<StateRef> SequenceService::open(const CompositionSpec& spec, const Interrupt& interrupted,
                                       const RequestOptions& options) {
  chunks::ComposedRun run{.spec = &spec, .kind = engine::RequestKind::kPrefill, .options = options};
  QUIRE_TRY(run.options.salt, chunks_.salt_of(run));
  CompositionSpec own = spec;
  own.salt = run.options.salt;
  run.spec = &own;
  QUIRE_TRY(const CompositionInfo info, chunks_.preview(own));
  const bool one_format = std::ranges::all_of(info.segments, [&](const auto& segment) {
    return segment.kv_dtype == info.segments.back().kv_dtype;
  });
  if (info.mode == ReuseMode::kExact && one_format) {  // a plain prompt
    return open_marked(info, interrupted, run.options);
  }
  const auto state = std::make_shared<StateRef>();
  const auto keep_fork = [this, grade = info.grade, salt = own.salt](SeqId computed) {
    return drafts_.keep({.sequence = engine_.core().ledger.sequences().fork(computed),
                         .grade = grade,
                         .salt = salt});
  };
  run.observer = std::make_shared<Next>(
      keep_fork, [state](StateRef computed) { *state = std::move(computed); });
  QUIRE_TRY(const auto channels, chunks_.submit({&run, 1}, interrupted));
  QUIRE_TRY_STATUS(await(engine_, *channels.front(), interrupted));
  return *state;
}

// Opens a plain prompt of chunks. Restore points are wanted where they end.
Result<StateRef> SequenceService::open_marked(const CompositionInfo& info,
                                              const Interrupt& interrupted,
                                              const RequestOptions& options) {
  const std::vector<TokenId> tokens = info.token_ids();
  std::vector<kv::PointMark> marks;
  std::int32_t end = 0;
  for (const auto& segment : info.segments) {
    end += static_cast<std::int32_t>(segment.num_tokens);
    marks.push_back({.tokens = end, .stays = true});
  }
  marks.resize(marks.empty() ? 0 : marks.size() - 1);  // the query is not likely to come again
  QUIRE_TRY_STATUS(drafts_.check(0, tokens));
  const auto make = [&] {
    SequenceDraft draft = drafts_.plain(tokens, options);
    engine_.core().ledger.points().mark(draft.sequence, marks,
                                        static_cast<std::int32_t>(tokens.size()));
    return draft;
  };
  return compute(make, interrupted, options);
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
  std::vector<StateRef> states;  // states of those parts that are states
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
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (states[i] != nullptr) {
      QUIRE_TRY(states[i], whole(states[i], interrupted));
      parts[i].state = states[i];
    }
  }
  const auto make = [&]() -> Result<SequenceDraft> {
    std::vector<TokenId> tail(tokens.begin(), tokens.end());
    BlockRun& last = parts.back();
    const StateRef& state = states.back();
    const bool computed = state == nullptr || last.tokens < std::ssize(state->tokens);
    if (tail.empty() || !computed) {
      QUIRE_TRY(const std::vector<TokenId> known, runs_.tokens_of(last));
      tail.insert(tail.begin(), known.back());
      --last.tokens;
    }
    QUIRE_TRY(SequenceDraft draft, drafts_.behind(parts, std::move(tail)));
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
  QUIRE_TRY_STATUS(drafts_.check(std::ssize(state->tokens), tokens));
  return compute([&] { return drafts_.next(*state, tokens, options); }, interrupted, options);
}

Result<tiers::HeldRef> SequenceService::hold(std::span<const BlockRun> runs,
                                             std::span<const TokenId> tokens,
                                             const Interrupt& interrupted,
                                             const RequestOptions& options) {
  if (!chunks_.core().has_states()) {
    QUIRE_TRY(const StateRef state,
              open(runs, tokens, interrupted, ReuseGrade::kApproximate, options));
    return hold(state, interrupted);
  }
  QUIRE_TRY_STATUS(engine::SessionService::check_user(options));
  QUIRE_TRY_STATUS(engine_.check_prompt(tokens));
  QUIRE_TRY(const RequestOptions whose, with_salt_of(runs, options));
  QUIRE_TRY(const auto mapped, chunks::MappedRun::make(engine_, tiers_, std::ssize(tokens)));
  const auto begin = [&]() -> Result<std::shared_ptr<engine::Channel>> {
    std::vector<TokenId> tail(tokens.begin(), tokens.end());
    tail.push_back(tokens.back());  // a draft leaves its last token to whoever goes on
    QUIRE_TRY(const SequenceDraft draft, drafts_.behind(runs, std::move(tail)));
    if (const Status room = mapped->hold_room(draft.sequence); !room.ok()) {
      engine_.core().ledger.sequences().close(draft.sequence);
      return room.error();
    }
    engine::NewRequest request{.kind = engine::RequestKind::kPrefill,
                               .session = whose.session,
                               .salt = engine_.salt_of(whose.salt),
                               .urgency = engine::urgency_of(whose)};
    request.params.max_tokens = 0;
    request.composed.emplace().sequence = draft.sequence;
    request.observer = mapped;
    return start(std::move(request));
  };
  QUIRE_TRY(const auto channel,
            engine_.thread().ask_for_blocks<std::shared_ptr<engine::Channel>>(begin));
  QUIRE_TRY_STATUS(await(engine_, *channel, interrupted));
  return mapped->kept();
}

Result<tiers::HeldRef> SequenceService::hold(const StateRef& state, const Interrupt& interrupted) {
  // Whatever follows the last token makes its KV necessary.
  QUIRE_TRY(StateRef followed, append(state, std::array<TokenId, 1>{}, interrupted));
  QUIRE_TRY(followed, whole(followed, interrupted));
  return engine_.thread().ask<tiers::HeldRef>([&]() -> Result<tiers::HeldRef> {
    auto id = engine_.core().ledger.segments().seal(followed->sequence);
    if (!id.ok()) {  // a window has passed over the first tokens
      Error error = std::move(id).error();
      error.message += "; use mode exact, which keeps no KV of items";
      return error;
    }
    return tiers_.keep(*id);
  });
}

Result<StateRef> SequenceService::pay(const StateRef& state, const Interrupt& interrupted) {
  if (state->owed_tokens == 0) {
    return state;
  }
  const auto make = [&]() -> Result<SequenceDraft> {
    SequenceDraft draft{.sequence = drafts_.resume(*state),
                        .last = state->tokens.back(),
                        .sampled = state->sampled,
                        .grade = state->grade,
                        .salt = state->salt};
    kv::Sequences& sequences = engine_.core().ledger.sequences();
    const auto own = static_cast<std::int32_t>(sequences.tokens(draft.sequence).size());
    const Status cut = sequences.rollback(draft.sequence, own - 1);
    QUIRE_CHECK(cut.ok(), "the last token of a sequence has no KV");
    return draft;
  };
  return compute(make, interrupted, {.salt = state->salt});
}

Result<StateRef> SequenceService::whole(const StateRef& owing, const Interrupt& interrupted) {
  QUIRE_TRY(const StateRef state, pay(owing, interrupted));
  QUIRE_TRY(const StateRef there,
            engine_.thread().ask<StateRef>([&] { return Result(drafts_.whole(state)); }));
  return there != nullptr ? Result<StateRef>(there)
                          : compute_again(state, kv::BehindWindow::kKeeps, interrupted);
}

Result<StateRef> SequenceService::compute_again(const StateRef& state, kv::BehindWindow past,
                                                const Interrupt& interrupted) {
  const auto make = [&] {
    SequenceDraft draft = drafts_.plain(state->tokens, {.salt = state->salt}, past);
    draft.sampled = state->sampled;
    draft.grade = state->grade;
    return draft;
  };
  return compute(make, interrupted, {.salt = state->salt});
}

Result<std::vector<tiers::HeldRef>> SequenceService::copy_out(const StateRef& whose,
                                                              std::int64_t first,
                                                              std::int64_t last) {
  QUIRE_TRY(const StateRef state, whole(whose, {}));
  using Parts = std::vector<tiers::RunRows>;
  QUIRE_TRY(const Parts parts, engine_.thread().ask<Parts>([&]() -> Result<Parts> {
    Parts found;
    std::int64_t begin = 0;
    for (const kv::RunView& run : engine_.core().ledger.sequences().runs(state->sequence)) {
      const auto from = static_cast<std::int32_t>(std::max<std::int64_t>(first - begin, 0));
      const auto to =
          static_cast<std::int32_t>(std::min<std::int64_t>(last - begin, run.num_tokens));
      if (from < to) {
        auto& rows = found.emplace_back();
        for (const kv::BlockPart& part : kv::parts_of(run)) {
          rows.parts.emplace_back(std::vector(part.blocks.begin(), part.blocks.end()), part.format);
        }
        rows.first = from;
        rows.stored_from = run.stored_from + from;
        rows.tokens = {state->tokens.begin() + begin + from, state->tokens.begin() + begin + to};
      }
      begin += run.num_tokens;
    }
    return found;
  }));
  std::vector<tiers::HeldRef> copies;
  for (const tiers::RunRows& rows : parts) {
    for (const auto& [blocks, format] : rows.parts) {
      QUIRE_TRY_STATUS(tiers_.await_arrival(blocks, format));
    }
    QUIRE_TRY(copies.emplace_back(), tiers::copy_rows(engine_, tiers_, rows));
  }
  return copies;
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
  return engine_.thread().ask<StateRef>([&]() -> Result<StateRef> {
    QUIRE_TRY(const SequenceDraft draft, drafts_.cut(state, length));
    return drafts_.keep(draft);
  });
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
  if (chunks_.core().has_states()) {
    return {ErrorCode::kIncompatible,
            "an approximate edit moves KV, and the layers of this model that carry a state cannot "
            "follow; edit in mode exact"};
  }
  QUIRE_TRY_STATUS(drafts_.check(with_kv + 1 - (stop - start), tokens));
  QUIRE_TRY(StateRef head, cut(state, start));
  QUIRE_TRY(head, append(head, tokens, interrupted, options));
  std::vector<BlockRun> runs;
  if (!head->tokens.empty()) {
    runs.push_back(run_of(head));
  }
  QUIRE_TRY(const auto moved, copy_out(state, stop, with_kv));
  std::ranges::transform(moved, std::back_inserter(runs),
                         [](const tiers::HeldRef& held) { return run_of(held); });
  return open(runs, {&state->tokens.back(), 1}, interrupted, ReuseGrade::kApproximate,
              {.session = options.session, .salt = state->salt});
}

// Returns a request on a fork of the state. Engine thread.
engine::NewRequest SequenceService::request_for(engine::RequestKind kind, const StateRef& state) {
  engine::NewRequest request{.kind = kind, .salt = state->salt, .sampled_before = state->sampled};
  const SeqId sequence = drafts_.resume(*state);
  const std::int64_t cached = state->segment_tokens + drafts_.at_hand(sequence);
  request.composed = engine::ComposedPrompt{
      .sequence = sequence,
      .pieces = {std::shared_ptr<const std::vector<TokenId>>(state, &state->tokens)},
      .cached_tokens = cached,
      .reuse = {.grade = state->grade}};
  return request;
}

Result<std::shared_ptr<engine::Channel>> SequenceService::generate(const StateRef& state,
                                                                   const Generate& how, Done done) {
  QUIRE_TRY_STATUS(engine_.check(*how.params));
  QUIRE_TRY_STATUS(check_user(how.options, *state));
  if (state->tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "the sequence is empty; append at least one token"};
  }
  return engine_.thread().ask<std::shared_ptr<engine::Channel>>(
      [&]() -> Result<std::shared_ptr<engine::Channel>> {
        const kv::RunView own = engine_.core().ledger.sequences().runs(state->sequence).back();
        const auto known = std::ssize(engine_.core().ledger.sequences().tokens(state->sequence));
        // The KV of the last sampled token is never needed, so one more token than positions fits.
        const std::int64_t room =
            engine_.model_config().context_length - (own.start_position + known) + std::int64_t{1};
        engine::NewRequest request = request_for(engine::RequestKind::kGenerate, state);
        const std::int32_t before = how.sampler_goes_on ? state->sampled : 0;
        request.sampled_before = before;
        request.params = *how.params;
        request.params.max_tokens =
            static_cast<std::int32_t>(std::min<std::int64_t>(how.params->max_tokens, room));
        request.session = how.options.session;
        request.streaming = how.streaming;
        request.notify = how.options.notify;
        request.submitted = how.submitted;
        request.urgency = engine::urgency_of(how.options, how.submitted);
        engine::ComposedPrompt& prompt = *request.composed;
        prompt.cached_tokens =
            std::min(how.cached.value_or(prompt.cached_tokens), prompt.cached_tokens);
        prompt.reuse.sources = {{how.source, prompt.cached_tokens}};
        const auto keep_fork = [this, state, known, before](SeqId computed) {
          const auto sampled =
              std::ssize(engine_.core().ledger.sequences().tokens(computed)) - known;
          // Where no token was added the run has computed the last one, whose window may be gone by
          // now.
          return drafts_.keep({.sequence = engine_.core().ledger.sequences().fork(
                                   sampled == 0 ? state->sequence : computed),
                               .sampled = before + static_cast<std::int32_t>(sampled),
                               .grade = state->grade,
                               .salt = state->salt});
        };
        request.observer = std::make_shared<Next>(keep_fork, std::move(done));
        return start(std::move(request));
      });
}

Result<std::shared_ptr<engine::Channel>> SequenceService::logits(const StateRef& state) {
  if (state->tokens.empty()) {
    return {ErrorCode::kInvalidArgument, "the sequence is empty; append at least one token"};
  }
  return engine_.thread().ask<std::shared_ptr<engine::Channel>>([&] {
    engine::NewRequest request = request_for(engine::RequestKind::kForwardLast, state);
    request.params.max_tokens = 0;
    return start(std::move(request));
  });
}

}  // namespace quire::sequences
