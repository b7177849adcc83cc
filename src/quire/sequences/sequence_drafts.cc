#include "quire/sequences/sequence_drafts.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
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
#include "quire/chunks/chunk_service.h"
#include "quire/engine/engine.h"
#include "quire/engine/host_tier.h"
#include "quire/engine/session_service.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/ledger.h"
#include "quire/kv/sequence_use.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/sequence_state.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::sequences {

namespace {

// The rank of runs that no chunk names: they merge behind all that a chunk names.
constexpr std::uint64_t kLastRank = ~std::uint64_t{0};

}  // namespace

// Checks that the sequence fits the context. `end` is the position behind the last token.
Status SequenceDrafts::check_end(std::int64_t end) const {
  const std::int64_t limit = engine_.model_config().context_length;
  if (end <= limit) {
    return {};
  }
  return {
      ErrorCode::kOverflow,
      base::str_cat("the sequence would have ", end, " positions, the model's context ",
                    engine_.model_config().context_text(), "; roll back, or begin another one")};
}

// Checks `tokens` that are to stand behind `before` others.
Status SequenceDrafts::check(std::int64_t before, std::span<const TokenId> tokens) const {
  if (tokens.empty()) {
    return {};
  }
  QUIRE_TRY_STATUS(engine_.check_prompt(tokens));
  return check_end(before + std::ssize(tokens));
}

// Takes over the sequence, which is closed where memory is refused.
StateRef SequenceDrafts::keep(const SequenceDraft& draft) {
  try {
    return make_state(draft);
  } catch (const std::bad_alloc&) {
    engine_.core().ledger.sequences().close(draft.sequence);
    throw;
  }
}

StateRef SequenceDrafts::make_state(const SequenceDraft& draft) {
  kv::Ledger& ledger = engine_.core().ledger;
  kv::Sequences& sequences = ledger.sequences();
  const SeqId id = draft.sequence;
  ledger.cache().assign(id, {});  // a state is nobody's request
  if (draft.last) {
    sequences.append(id, *draft.last);
  }
  const std::span<const TokenId> own = sequences.tokens(id);
  if (!own.empty() && sequences.num_computed(id) == std::ssize(own)) {
    const TokenId last = own.back();
    const Status cut = sequences.rollback(id, sequences.num_computed(id) - 1);
    QUIRE_CHECK(cut.ok(), "the last token of a sequence is in its window");
    sequences.append(id, last);
  }
  auto state = std::make_shared<SequenceState>();
  state->tokens = ledger.segments().joined_tokens(id);
  state->segment_tokens = ledger.segments().tokens_before(id);
  state->sampled = draft.sampled;
  state->grade = draft.grade;
  state->salt = draft.salt;
  state->computed_tokens = draft.computed_tokens;
  state->owed_tokens =
      std::max<std::int64_t>(0, std::ssize(sequences.tokens(id)) - 1 - sequences.num_computed(id));
  state->same_bits = engine_.same_bits();
  state->sequence = id;
  for (const kv::RunView& run : sequences.runs(id)) {
    for (const kv::BlockPart& part : kv::parts_of(run)) {
      std::ranges::transform(part.blocks, std::back_inserter(state->blocks), &BlockId::value);
    }
  }
  states_.add(state);
  state->engine = engine_.self();  // from now on it gives its sequence up itself
  return state;
}

SequenceDraft SequenceDrafts::plain(std::span<const TokenId> tokens, const RequestOptions& options,
                                    kv::BehindWindow past) {
  SequenceDraft draft{.salt = engine_.salt_of(options.salt)};
  draft.sequence = engine_.core().ledger.sequences().open(
      tokens, true, engine_.sessions().named(options.session, draft.salt), draft.salt, past);
  if (!tokens.empty()) {
    draft.last = tokens.back();
    const Status cut = engine_.core().ledger.sequences().rollback(
        draft.sequence, static_cast<int>(tokens.size()) - 1);
    QUIRE_CHECK(cut.ok(), "a cached prefix never has the last token");
  }
  return draft;
}

StateRef SequenceDrafts::whole(const StateRef& state) {
  kv::Sequences& sequences = engine_.core().ledger.sequences();
  if (!sequences.is_plain(state->sequence) ||
      sequences.use(state->sequence).past == kv::BehindWindow::kKeeps ||
      !engine_.core().ledger.config().has_window()) {
    return state;
  }
  const SeqId all = sequences.fork(state->sequence);
  if (!sequences.set_behind_window(all, kv::BehindWindow::kKeeps)) {
    sequences.close(all);
    return nullptr;
  }
  return keep(
      {.sequence = all, .sampled = state->sampled, .grade = state->grade, .salt = state->salt});
}

SeqId SequenceDrafts::resume(const SequenceState& state) {
  kv::Ledger& ledger = engine_.core().ledger;
  kv::Sequences& sequences = ledger.sequences();
  if (state.owed_tokens > 0 && sequences.is_plain(state.sequence)) {
    const kv::BehindWindow past = sequences.use(state.sequence).past;
    if (ledger.cache().probe(state.tokens, state.salt, past).tokens >
        sequences.num_computed(state.sequence)) {
      return sequences.open(state.tokens, true, {}, state.salt, past);
    }
  }
  return sequences.fork(state.sequence);
}

// Returns the state's tokens and `tokens`, of which there is at least one. KV that the prefix cache
// knows of them beyond the state's own is taken from there.
SequenceDraft SequenceDrafts::next(const SequenceState& state, std::span<const TokenId> tokens,
                                   const RequestOptions& options) {
  kv::Ledger& ledger = engine_.core().ledger;
  kv::Sequences& sequences = ledger.sequences();
  if (sequences.is_plain(state.sequence)) {
    std::vector<TokenId> all = state.tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
    const kv::BehindWindow past = sequences.use(state.sequence).past;
    if (ledger.cache().probe(all, state.salt, past).tokens >
        sequences.num_computed(state.sequence)) {
      return plain(all, {.session = options.session, .salt = state.salt}, past);
    }
  }
  SequenceDraft draft{.sequence = sequences.fork(state.sequence),
                      .last = tokens.back(),
                      .grade = state.grade,
                      .salt = state.salt};
  for (const TokenId token : tokens.first(tokens.size() - 1)) {
    sequences.append(draft.sequence, token);
  }
  return draft;
}

std::int32_t SequenceDrafts::at_hand(SeqId sequence) const {
  const kv::Sequences& sequences = engine_.core().ledger.sequences();
  const std::int32_t computed = sequences.num_computed(sequence);
  const kv::SequenceUse& use = sequences.use(sequence);
  return sequences.is_plain(sequence) && use.adopts
             ? std::max(computed,
                        engine::host_prefix(engine_.core(), sequences.tokens(sequence), use.salt))
             : computed;
}

Result<std::int64_t> SequenceDrafts::whole_segments(const StateRef& from,
                                                    std::int64_t length) const {
  kv::Segments segments = engine_.core().ledger.segments();
  SegmentUses named;
  const BlockRun all{.engine = from->engine, .state = from, .tokens = from->segment_tokens};
  QUIRE_TRY(const SegmentUses uses, runs_.segments_of(all, named));
  std::int64_t whole = 0;
  bool in_line = true;
  for (const kv::SegmentUse& use : uses) {
    const std::int64_t tokens = segments.find(use.segment)->num_tokens();
    in_line = use.position - uses.front().position == whole;
    if (!in_line || whole + tokens >= length) {
      break;
    }
    whole += tokens;
  }
  for (const kv::SegmentUse& use : named) {
    segments.drop(use.segment);
  }
  if (!in_line) {
    return {ErrorCode::kIncompatible,
            "cannot roll back into chunks that do not stand one behind the other, since layers of "
            "this model carry a state through them; compose those that are to stay"};
  }
  return whole;
}

Result<SequenceDraft> SequenceDrafts::cut_segments(const StateRef& from, std::int64_t length) {
  QUIRE_TRY(const std::int64_t whole, whole_segments(from, length));
  const auto tokens = std::span(from->tokens).first(static_cast<std::size_t>(length));
  if (whole == 0) {
    return plain(tokens, {.salt = from->salt});
  }
  const BlockRun run{.engine = from->engine, .state = from, .tokens = whole};
  QUIRE_TRY(SequenceDraft draft,
            behind({&run, 1}, {tokens.begin() + static_cast<std::ptrdiff_t>(whole), tokens.end()}));
  draft.grade = from->grade;
  draft.salt = from->salt;
  return draft;
}

// Returns the state's first `length` tokens, of which there is at least one.
Result<SequenceDraft> SequenceDrafts::cut(const StateRef& from, std::int64_t length) {
  kv::Sequences& sequences = engine_.core().ledger.sequences();
  const SequenceState& state = *from;
  const auto tokens = std::span(state.tokens).first(static_cast<std::size_t>(length));
  const std::int64_t own = length - state.segment_tokens;
  if (length == 1) {
    return plain(tokens, {.salt = state.salt});
  }
  if (own < 1 && engine_.core().ledger.points().exist()) {
    return cut_segments(from, length);
  }
  if (own < 1) {
    const BlockRun run{.engine = state.engine, .state = from, .tokens = length - 1};
    QUIRE_TRY(SequenceDraft draft, behind({&run, 1}, {tokens.back()}));
    draft.grade = state.grade;
    draft.salt = state.salt;
    return draft;
  }
  SequenceDraft draft{.sequence = sequences.fork(state.sequence),
                      .last = tokens.back(),
                      .sampled = static_cast<std::int32_t>(std::max<std::int64_t>(
                          0, state.sampled - (std::ssize(state.tokens) - length))),
                      .grade = state.grade,
                      .salt = state.salt};
  const Status cut = sequences.rollback(draft.sequence, static_cast<std::int32_t>(own) - 1);
  if (cut.ok()) {
    return draft;
  }
  sequences.close(draft.sequence);
  if (!sequences.is_plain(state.sequence)) {
    return cut.error();
  }
  SequenceDraft anew = plain(tokens, {.salt = state.salt});  // the window has freed what is needed
  anew.sampled = draft.sampled;
  return anew;
}

// Returns the places of a run's segments when its first token is used at `position`.
Result<SegmentUses> SequenceDrafts::place(const BlockRun& run, std::int64_t position,
                                          SegmentUses& named) const {
  QUIRE_TRY(const SegmentUses segments, runs_.segments_of(run, named));
  SegmentUses uses;
  std::int64_t left = run.tokens;
  for (const kv::SegmentUse& part : segments) {
    const auto tokens = static_cast<std::int32_t>(std::min<std::int64_t>(
        left, engine_.core().ledger.segments().find(part.segment)->num_tokens()));
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

Result<SequenceDraft> SequenceDrafts::behind(std::span<const BlockRun> runs,
                                             std::vector<TokenId> tail, SegmentUses& named) {
  SegmentUses uses;
  std::int64_t position = 0;
  for (const BlockRun& run : runs) {
    QUIRE_TRY(const SegmentUses placed, place(run, position, named));
    for (kv::SegmentUse use : placed) {
      if (runs.size() > 1) {  // several runs merge in their order
        use.rank = {kLastRank, static_cast<std::uint32_t>(uses.size())};
      }
      position = std::max<std::int64_t>(position, use.position + use.tokens.value_or(0));
      uses.push_back(use);
    }
  }
  QUIRE_TRY_STATUS(check_end(position + std::ssize(tail)));
  SequenceDraft draft{.last = tail.back(), .grade = ReuseGrade::kApproximate};
  tail.pop_back();
  QUIRE_TRY(draft.sequence,
            engine_.core().ledger.segments().compose(
                uses, {.tokens = tail, .position = static_cast<std::int32_t>(position)}));
  return draft;
}

Result<SequenceDraft> SequenceDrafts::behind(std::span<const BlockRun> runs,
                                             std::vector<TokenId> tail) {
  SegmentUses named;
  auto draft = behind(runs, std::move(tail), named);
  for (const kv::SegmentUse& use : named) {
    engine_.core().ledger.segments().drop(use.segment);  // the sequence has it
  }
  return draft;
}

}  // namespace quire::sequences
