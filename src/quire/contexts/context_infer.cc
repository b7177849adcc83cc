// Asking a context. Its items and their KV: context.cc.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_service.h"
#include "quire/context_types.h"
#include "quire/contexts/context.h"
#include "quire/contexts/item_list.h"
#include "quire/engine/call_deadline.h"
#include "quire/engine/channel.h"
#include "quire/engine/sampling_json.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/sampling/sampling_params.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/sequence_service.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tiers/held_segment.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::contexts {
namespace {

// Returns whether each item has seen all before it, so that together they equal one prompt.
bool sees_all(std::span<Item* const> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i]->info.parents != ids_of(items.first(i))) {
      return false;
    }
  }
  return true;
}

// Returns the part of `closing` that the tokens do not end with yet.
std::span<const TokenId> rest_of(std::span<const TokenId> closing,
                                 std::span<const TokenId> tokens) {
  for (std::size_t have = std::min(closing.size(), tokens.size()); have > 0; --have) {
    if (std::ranges::equal(closing.first(have), tokens.last(have))) {
      return closing.subspan(have);
    }
  }
  return closing;
}

// Notes what makes the answer again, defaults included, as they may change; with the seed that was
// drawn where none was given.
Status note_output(ContextItem& info, const GenerationOutput& output, SamplingParams params,
                   const std::optional<std::uint64_t>& seed) {
  info.text = output.text;
  params.seed = params.temperature > 0 ? seed : params.seed;
  QUIRE_TRY(info.sampling_json, engine::sampling_json(params));
  return {};
}

Error interrupted_call() {
  return {.code = ErrorCode::kCancelled, .message = "the call was interrupted"};
}

}  // namespace

// Makes the user's turn. It begins with what the template writes behind an answer, where that is
// still missing.
Result<Context::Turn> Context::make_turn(runtime::Runtime& runtime,
                                         const std::optional<std::string>& text) const {
  Turn turn{.opening = turns_.opening};
  const std::vector<Item*> active = active_items(false);
  const auto begin = [&](std::vector<TokenId>& first) {
    if (active.empty() && turns_.bos && (first.empty() || first.front() != *turns_.bos)) {
      first.insert(first.begin(), *turns_.bos);
    }
  };
  if (!text) {
    begin(turn.opening);
    return turn;
  }
  turn.text = *text;
  QUIRE_TRY(std::vector<TokenId> query, runtime.chunks().encode(ChunkType::kQuery, *text));
  if (query.size() > turn.opening.size() &&
      std::ranges::equal(std::span(query).last(turn.opening.size()), turn.opening)) {
    query.resize(query.size() - turn.opening.size());
  } else {
    turn.opening.clear();  // the format asked for ends otherwise
  }
  if (!active.empty() && active.back()->info.kind == ItemKind::kOutput) {
    const auto rest = rest_of(turns_.closing, active.back()->info.token_ids);
    turn.user.assign(rest.begin(), rest.end());
  }
  turn.user.insert(turn.user.end(), query.begin(), query.end());
  begin(turn.user);
  return turn;
}

// Makes an item that has seen `before`.
Item Context::make_item(runtime::Runtime& runtime, ItemKind kind, std::vector<TokenId> tokens,
                        std::span<Item* const> before) const {
  Item item;
  item.info.kind = kind;
  item.info.token_ids = std::move(tokens);
  item.info.text = decode(runtime, item.info.token_ids);
  item.info.parents = ids_of(before);
  item.info.active = true;
  item.info.id = new_id(runtime, item.info, true);
  return item;
}

Result<Context::Generated> Context::generate(runtime::Runtime& runtime,
                                             const sequences::StateRef& state, std::int64_t cached,
                                             Asking& asking) {
  // The KV of the output's last token is kept too, and needs a position.
  const std::int64_t limit = runtime.engine().model_config().context_length;
  const std::int64_t room = limit - std::ssize(state->tokens) - 1;
  if (room < 1) {
    return {
        ErrorCode::kOverflow,
        base::str_cat("the active items and the turn have ", state->tokens.size(),
                      " tokens, the model's context ",
                      runtime.engine().model_config().context_text(), "; deactivate something")};
  }
  SamplingParams bounded = asking.params;
  bounded.max_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(bounded.max_tokens, room));
  const auto next = std::make_shared<sequences::StateRef>();
  QUIRE_TRY(const auto channel,
            runtime.sequences().generate(
                state,
                {.params = &bounded,
                 .streaming = asking.follow.on_text != nullptr,
                 .sampler_goes_on = false,
                 .options = asking.options,
                 .source = "context",
                 .cached = cached,
                 .submitted = asking.submitted},
                [next](sequences::StateRef reached) { *next = std::move(reached); }));
  asking.params.seed = channel->seed();
  QUIRE_TRY_STATUS(attend(runtime, *channel, asking));
  QUIRE_TRY(GenerationOutput output, channel->take_generation());
  if (*next == nullptr && asking.stopped && !output.token_ids.empty()) {
    QUIRE_TRY(*next, runtime.sequences().append(state, output.token_ids, {}));
  }
  if (*next == nullptr) {
    return interrupted_call();
  }
  return Generated{.output = std::move(output), .state = std::move(*next)};
}

// Waits until the request has ended. Hands out text that was not handed out before.
Status Context::attend(runtime::Runtime& runtime, engine::Channel& channel, Asking& asking) {
  const ContextFollow& follow = asking.follow;
  const bool polls = asking.interrupted || follow.stop;
  const auto says = [](const Interrupt& asked) { return asked && asked(); };
  bool aborted = false;
  std::size_t text_bytes = 0;
  // A request asked to end before it began ends, however short it is: the first look comes at once.
  for (int timeout_ms = polls ? 0 : -1;; timeout_ms = polls ? kInterruptPollMs : -1) {
    const bool ready = follow.on_text ? channel.wait(timeout_ms) : channel.wait_end(timeout_ms);
    const bool ended = ready && !follow.on_text;
    const bool caught_up = text_bytes == asking.handed_out;
    if (!aborted && caught_up && says(follow.stop)) {
      asking.stopped = true;
      QUIRE_TRY(aborted, runtime.engine().abort(channel.id()));
    } else if (!aborted && !ended && says(asking.interrupted)) {
      runtime.engine().abandon(channel.id());
      return interrupted_call();
    }
    if (ended) {
      return {};
    }
    if (!ready) {
      continue;
    }
    QUIRE_TRY(const std::optional<Delta> delta, channel.next());
    if (!delta) {
      return {};
    }
    const std::size_t known = std::min(asking.handed_out - text_bytes, delta->text.size());
    text_bytes += delta->text.size();
    asking.handed_out = std::max(asking.handed_out, text_bytes);
    Status taken = known == delta->text.size()
                       ? Status()
                       : follow.on_text(std::string_view(delta->text).substr(known));
    if (!taken.ok()) {
      QUIRE_TRY([[maybe_unused]] const bool ended, runtime.engine().abort(channel.id()));
      return taken;
    }
  }
}

// Keeps turn and output as items.
Result<ContextAnswer> Context::keep_turn(std::optional<Item> user, Item output,
                                         Generated generated) {
  ContextAnswer answer{.output_id = output.info.id};
  tokens_reused_ += generated.output.usage.cached_tokens;
  tokens_computed_ += generated.output.usage.prompt_tokens - generated.output.usage.cached_tokens +
                      generated.output.usage.completion_tokens;
  if (user) {
    answer.user_id = user->info.id;
    items_.add(std::move(*user));
  }
  items_.add(std::move(output));
  changed();
  answer.output = std::move(generated.output);
  return answer;
}

// Prefills the user's turn, whose KV stands behind `runs`.
Result<Item> Context::prefill_turn(runtime::Runtime& runtime, const Turn& turn,
                                   std::span<Item* const> before,
                                   std::span<const sequences::BlockRun> runs,
                                   const Asking& asking) {
  Item user = make_item(runtime, ItemKind::kUser, turn.user, before);
  user.info.text = turn.text;
  QUIRE_TRY_STATUS(with_room(runtime, [&]() -> Status {
    QUIRE_TRY(user.device,
              runtime.sequences().hold(runs, turn.user, asking.interrupted, asking.options));
    return {};
  }));
  touch(user);
  return user;
}

Result<tiers::HeldRef> Context::split_last(runtime::Runtime& runtime, const Item& last, Turn& turn,
                                           std::vector<sequences::BlockRun>& runs,
                                           const Interrupt& interrupted) {
  std::span<const TokenId> tokens = last.info.token_ids;
  turn.opening = {tokens.back()};
  runs.pop_back();
  tiers::HeldRef before;
  if (tokens.size() == 1) {
    return before;
  }
  tokens = tokens.first(tokens.size() - 1);
  QUIRE_TRY(const std::vector<Item*> parents, parents_of(last));
  QUIRE_TRY(const auto seen, runs_of(runtime, parents, interrupted));
  QUIRE_TRY_STATUS(with_room(runtime, [&]() -> Status {
    QUIRE_TRY(before, runtime.sequences().hold(seen, tokens, interrupted, whose()));
    return {};
  }));
  tokens_computed_ += std::ssize(tokens);
  runs.push_back(sequences::run_of(before));
  return before;
}

// Where layers carry a state the answer is computed once more, all of it behind whole items. So it
// has maps on states.
Result<tiers::HeldRef> Context::hold_answer(runtime::Runtime& runtime,
                                            const sequences::StateRef& state,
                                            std::span<const sequences::BlockRun> items,
                                            std::int64_t opening, const Asking& asking) {
  const Interrupt interrupted = asking.stopped ? Interrupt() : asking.interrupted;
  if (!runtime.chunks().core().has_states()) {
    return runtime.sequences().hold(state, interrupted);
  }
  const auto tokens =
      std::span(state->tokens).subspan(static_cast<std::size_t>(state->segment_tokens + opening));
  tokens_computed_ += std::ssize(tokens);
  return runtime.sequences().hold(items, tokens, interrupted, asking.options);
}

Result<ContextAnswer> Context::infer_anchored(runtime::Runtime& runtime, Turn turn, Asking asking) {
  const SamplingParams params = asking.params;
  const Interrupt& interrupted = asking.interrupted;
  std::vector<Item*> before = active_items(false);
  QUIRE_TRY(std::vector<sequences::BlockRun> runs, runs_of(runtime, before, interrupted));
  std::int64_t cached = 0;
  for (const sequences::BlockRun& run : runs) {
    cached += run.tokens;
  }
  std::optional<Item> user;
  if (!turn.user.empty()) {
    QUIRE_TRY(user, prefill_turn(runtime, turn, before, runs, asking));
    before.push_back(&*user);
    runs.push_back(sequences::run_of(user->device));
  }
  const bool has_states = runtime.chunks().core().has_states();
  const ReuseGrade grade =
      sees_all(before) && !has_states ? ReuseGrade::kEqualMath : ReuseGrade::kApproximate;
  const bool goes_on = turn.opening.empty() && !before.empty();  // behind no generation prompt
  const bool borrows = goes_on && !has_states;
  const std::vector<sequences::BlockRun> items = runs;
  tiers::HeldRef last;
  if (goes_on && has_states) {
    QUIRE_TRY(last, split_last(runtime, *before.back(), turn, runs, interrupted));
    cached -= user ? 0 : items.back().tokens;
  }
  cached -= borrows && !user ? 1 : 0;
  Generated generated;
  Item output;
  QUIRE_TRY_STATUS(with_room(runtime, [&]() -> Status {
    QUIRE_TRY(const sequences::StateRef state,
              runtime.sequences().open(runs, turn.opening, interrupted, grade, asking.options));
    QUIRE_TRY(generated, generate(runtime, state, cached, asking));
    QUIRE_TRY(output.device,
              hold_answer(runtime, generated.state, items, goes_on && has_states ? 1 : 0, asking));
    return {};
  }));
  const tiers::HeldRef held = output.device;
  output = make_item(runtime, ItemKind::kOutput, held->tokens, before);
  output.device = held;
  output.borrows = borrows;
  touch(output);
  QUIRE_TRY_STATUS(user ? write_through(runtime, *user) : Status());
  QUIRE_TRY_STATUS(note_output(output.info, generated.output, params, asking.params.seed));
  QUIRE_TRY_STATUS(write_through(runtime, output));
  return keep_turn(std::move(user), std::move(output), std::move(generated));
}

Result<ContextAnswer> Context::infer_exact(runtime::Runtime& runtime, const Turn& turn,
                                           Asking asking) {
  const SamplingParams params = asking.params;
  std::vector<Item*> before = active_items(false);
  std::vector<TokenId> tokens = tokens_of(before);
  std::int64_t cached = 0;
  if (tip_ != nullptr) {
    cached = std::ranges::mismatch(tip_->tokens, tokens).in1 - tip_->tokens.begin();
    cached = std::max<std::int64_t>(0, std::min(cached, std::ssize(tip_->tokens) - 1));
  }
  std::optional<Item> user;
  if (!turn.user.empty()) {
    user = make_item(runtime, ItemKind::kUser, turn.user, before);
    user->info.text = turn.text;
    before.push_back(&*user);
    tokens.insert(tokens.end(), turn.user.begin(), turn.user.end());
  }
  const std::size_t prompt = tokens.size();
  tokens.insert(tokens.end(), turn.opening.begin(), turn.opening.end());
  Generated generated;
  QUIRE_TRY(const sequences::StateRef state,
            follow(runtime, tip_, tokens, asking.interrupted, asking.options));
  QUIRE_TRY(generated, generate(runtime, state, cached, asking));
  const std::vector<TokenId>& all = generated.state->tokens;
  Item output = make_item(runtime, ItemKind::kOutput,
                          {all.begin() + static_cast<std::ptrdiff_t>(prompt), all.end()}, before);
  QUIRE_TRY_STATUS(note_output(output.info, generated.output, params, asking.params.seed));
  tip_ = generated.state;
  return keep_turn(std::move(user), std::move(output), std::move(generated));
}

Result<ContextAnswer> Context::infer(const std::optional<std::string>& text,
                                     const SamplingParams& params, const Interrupt& interrupted,
                                     const ContextFollow& follow, const RequestOptions& options) {
  QUIRE_TRY(const auto runtime, this->runtime());
  QUIRE_TRY_STATUS(sampling::check_params(params));
  QUIRE_TRY_STATUS(engine::SessionService::check_user(
      options, options_.salt,
      "a context has the salt that it was opened with; give that one, or none"));
  QUIRE_TRY(const Turn turn, make_turn(*runtime, text));
  const engine::CallDeadline deadline({&options, 1}, interrupted);
  RequestOptions pressing = whose(options.session);
  pressing.priority = options.priority;
  pressing.deadline_seconds = options.deadline_seconds;
  pressing.tenant = options.tenant;
  const Asking asking{.params = params,
                      .interrupted = deadline.interrupt(),
                      .follow = follow,
                      .options = std::move(pressing)};
  return deadline.ended(options_.mode == ReuseMode::kExact
                            ? infer_exact(*runtime, turn, asking)
                            : read_and_infer(*runtime, turn, asking));
}

// Answers in mode anchored, while KV of items is read.
Result<ContextAnswer> Context::read_and_infer(runtime::Runtime& runtime, const Turn& turn,
                                              const Asking& asking) {
  const Interrupt& interrupted = asking.interrupted;
  const Arriving arriving = begin_reading(runtime, active_items(false));
  auto answer = infer_anchored(runtime, turn, asking);
  Interrupt leaves;  // an answer that is there is kept
  if (!answer.ok()) {
    leaves = [&] {
      return answer.error().code == ErrorCode::kCancelled || (interrupted && interrupted());
    };
  }
  QUIRE_TRY(const bool right, end_reading(arriving, leaves));
  // Damaged KV has given nothing away: it is computed now.
  return right || answer.ok() ? std::move(answer) : infer_anchored(runtime, turn, asking);
}

}  // namespace quire::contexts
