#include "quire/sequence.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "quire/api/await.h"
#include "quire/api/llm_impl.h"
#include "quire/api/sequence_impl.h"
#include "quire/api/stream_impl.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/call_deadline.h"
#include "quire/engine/reuse_grade.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sampling.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/sequence_service.h"
#include "quire/sequences/sequence_state.h"
#include "quire/types.h"

namespace quire {
namespace {

using sequences::BlockRun;
using sequences::SequenceService;
using sequences::StateRef;

Error closed_sequence() {
  return {.code = ErrorCode::kClosed, .message = "the sequence is closed"};
}

// Runs `work` on the state and takes over what it makes of it.
Status change(Sequence::Impl& sequence,
              const std::function<Result<StateRef>(SequenceService&, const StateRef&)>& work) {
  QUIRE_TRY(const StateRef state, sequence.begin());
  const auto runtime = sequence.llm->open();
  auto next = runtime.ok() ? work((*runtime)->sequences(), state) : runtime.error();
  sequence.end(next.ok() ? *next : nullptr);
  return next.ok() ? Status() : next.error();
}

// The right to change a sequence, given back once: by who gives up, else by who drops it last.
class Turn {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Turn>> begin(std::shared_ptr<Sequence::Impl> whose) {
    QUIRE_TRY(StateRef state, whose->begin());
    return std::make_shared<Turn>(std::move(whose), std::move(state));
  }
  Turn(std::shared_ptr<Sequence::Impl> whose, StateRef state)
      : sequence(std::move(whose)), first(std::move(state)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { end(std::move(next)); }
  // Ends the turn and leaves the sequence as it was, whatever comes.
  void give_up() { end(nullptr); }

  const std::shared_ptr<Sequence::Impl> sequence;
  const StateRef first;
  StateRef next;  // nullptr: unchanged

 private:
  void end(StateRef reached) {
    if (!ended_.exchange(true)) {
      sequence->end(std::move(reached));
    }
  }

  std::atomic<bool> ended_ = false;
};

// Starts to generate; the sequence takes over the end.
Result<std::unique_ptr<Stream::Impl>> start(const std::shared_ptr<Turn>& turn,
                                            const SamplingParams& params, bool streaming,
                                            const RequestOptions& options) {
  auto stream = std::make_unique<Stream::Impl>();
  QUIRE_TRY(const auto runtime, turn->sequence->llm->open());
  stream->engine = engine_of(runtime);
  QUIRE_TRY(stream->channel,
            runtime->sequences().generate(
                turn->first, {.params = &params, .streaming = streaming, .options = options},
                [turn](StateRef next) { turn->next = std::move(next); }));
  stream->waits = !options.notify;
  return stream;
}

// Finds a mark. The caller holds the sequence's mutex.
Result<std::map<std::uint64_t, StateRef>::iterator> find_mark(Sequence::Impl& sequence,
                                                              const Mark& mark) {
  const bool own = !mark.llm.owner_before(sequence.llm) && !sequence.llm.owner_before(mark.llm);
  const auto found = own ? sequence.marks.find(mark.value) : sequence.marks.end();
  if (found == sequence.marks.end()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("no mark ", mark.value,
                          ": it was committed, rolled back over, or made for another sequence")};
  }
  return found;
}

// Counts tokens of the runs whose KV is used as it is. Where nothing follows, the last one is
// computed.
std::int64_t reused_tokens(const BlockList& existing, std::span<const TokenId> new_tokens) {
  return std::max<std::int64_t>(0, existing.num_tokens() - (new_tokens.empty() ? 1 : 0));
}

Result<std::unique_ptr<Stream::Impl>> start_behind(const LLM::Impl& llm, const BlockList& existing,
                                                   std::span<const TokenId> new_tokens,
                                                   const SequenceService::Generate& how,
                                                   const Interrupt& interrupted) {
  QUIRE_TRY(const auto runtime, llm.open());
  QUIRE_TRY_STATUS(how.params->validate());
  QUIRE_TRY_STATUS(check_fresh(existing));
  const engine::CallDeadline deadline({&how.options, 1}, interrupted);
  QUIRE_TRY(const StateRef state, deadline.ended(runtime->sequences().open(
                                      existing.impl().runs, new_tokens, deadline.interrupt(),
                                      ReuseGrade::kApproximate, how.options)));
  auto stream = std::make_unique<Stream::Impl>();
  QUIRE_TRY(stream->channel, runtime->sequences().generate(state, how, [](const StateRef&) {}));
  stream->engine = engine_of(runtime);
  stream->waits = !how.options.notify;
  return stream;
}

Result<GenerationOutput> output_of(const Stream::Impl& stream, const Interrupt& interrupted) {
  QUIRE_TRY(auto outputs, await_outputs(*stream.engine, {&stream.channel, 1}, interrupted));
  return std::move(outputs.front());
}

}  // namespace

BlockList make_block_list(std::vector<BlockRun> runs,
                          std::vector<std::weak_ptr<const void>> sources) {
  return BlockList(std::make_shared<const BlockList::Impl>(
      BlockList::Impl{std::move(runs), std::move(sources)}));
}

Status check_fresh(const BlockList& blocks) {
  if (std::ranges::none_of(blocks.impl().sources,
                           [](const auto& source) { return source.expired(); })) {
    return {};
  }
  return {ErrorCode::kInvalidComposition,
          "the blocks are stale: the context that they come from has changed; get them again"};
}

Sequence make_sequence(std::shared_ptr<LLM::Impl> llm, StateRef state) {
  return Sequence(std::make_shared<Sequence::Impl>(std::move(llm), std::move(state)));
}

BlockList::BlockList() : BlockList(std::make_shared<const Impl>()) {}
BlockList::BlockList(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<BlockList> BlockList::join(std::span<const BlockList> lists) try {
  Impl joined;
  for (const BlockList& list : lists) {
    std::ranges::copy(list.impl().runs, std::back_inserter(joined.runs));
    std::ranges::copy(list.impl().sources, std::back_inserter(joined.sources));
  }
  return BlockList(std::make_shared<const Impl>(std::move(joined)));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<BlockList> BlockList::first(std::int64_t tokens) const try {
  if (tokens < 0 || tokens > num_tokens()) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("existing_token_count is ", tokens, ", the blocks hold ", num_tokens(),
                          " tokens; give 0 to ", num_tokens())};
  }
  std::vector<BlockRun> runs;
  for (const BlockRun& run : impl_->runs) {
    if (tokens > 0) {
      runs.push_back(run);
      runs.back().tokens = std::min(run.tokens, tokens);
      tokens -= runs.back().tokens;
    }
  }
  return make_block_list(std::move(runs), impl_->sources);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

std::vector<std::int32_t> BlockList::block_ids() const {
  std::vector<std::int32_t> ids;
  for (const BlockRun& run : impl_->runs) {
    ids.insert(ids.end(), run.blocks.begin(), run.blocks.end());
  }
  return ids;
}

std::int64_t BlockList::num_tokens() const {
  std::int64_t tokens = 0;
  for (const BlockRun& run : impl_->runs) {
    tokens += run.tokens;
  }
  return tokens;
}

Result<StateRef> Sequence::Impl::begin() try {
  QUIRE_TRY_STATUS(llm->home.check());
  const std::lock_guard lock(mutex);
  if (state == nullptr) {
    return closed_sequence();
  }
  if (busy) {
    return {ErrorCode::kInvalidArgument,
            "the sequence is busy with another call; wait for it, or fork"};
  }
  busy = true;
  return state;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

void Sequence::Impl::end(StateRef next) {
  const std::lock_guard lock(mutex);
  busy = false;
  if (next != nullptr && state != nullptr) {
    state.swap(next);  // the old one goes after the lock
  }
}

Result<StateRef> Sequence::Impl::look() const try {
  QUIRE_TRY([[maybe_unused]] const auto runtime, llm->open());
  const std::lock_guard lock(mutex);
  return state == nullptr ? Result<StateRef>(closed_sequence()) : state;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

StateRef Sequence::Impl::known() const {
  if (llm->home.left()) {
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  return state;
}

Sequence::Sequence(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Sequence::Sequence(Sequence&&) noexcept = default;
Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this != &other) {
    close();
    impl_ = std::move(other.impl_);
  }
  return *this;
}
Sequence::~Sequence() { close(); }

void Sequence::close() {
  if (impl_ == nullptr || impl_->llm->home.left()) {
    return;
  }
  StateRef state;
  std::map<std::uint64_t, StateRef> marks;
  const std::lock_guard lock(impl_->mutex);
  state.swap(impl_->state);
  marks.swap(impl_->marks);
}

Status Sequence::check_open() const try {
  QUIRE_TRY([[maybe_unused]] const StateRef state, impl_->look());
  return {};
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

std::vector<TokenId> Sequence::tokens() const {
  const StateRef state = impl_->known();
  return state == nullptr ? std::vector<TokenId>() : state->tokens;
}

std::int64_t Sequence::num_tokens() const {
  const StateRef state = impl_->known();
  return state == nullptr ? 0 : std::ssize(state->tokens);
}

std::int64_t Sequence::owed_tokens() const {
  const StateRef state = impl_->known();
  return state == nullptr ? 0 : state->owed_tokens;
}

ReuseGrade Sequence::grade() const {
  const StateRef state = impl_->known();
  return state == nullptr ? ReuseGrade::kExact : engine::graded(state->grade, state->same_bits);
}

Status Sequence::append(std::span<const TokenId> tokens, const Interrupt& interrupted,
                        const RequestOptions& options) try {
  return change(*impl_, [&](SequenceService& service, const StateRef& state) {
    return service.append(state, tokens, interrupted, options);
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<GenerationOutput> Sequence::generate(const SamplingParams& params,
                                            const Interrupt& interrupted,
                                            const RequestOptions& options) try {
  QUIRE_TRY(const auto turn, Turn::begin(impl_));
  QUIRE_TRY(const auto stream, start(turn, params, false, options));
  auto output = output_of(*stream, interrupted);
  if (!output.ok()) {  // the engine may still be at it
    turn->give_up();
  }
  return output;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Stream> Sequence::stream(const SamplingParams& params, const RequestOptions& options) try {
  QUIRE_TRY(const auto turn, Turn::begin(impl_));
  QUIRE_TRY(auto stream, start(turn, params, options.deltas, options));
  return Stream(std::move(stream));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<float>> Sequence::logits(const Interrupt& interrupted) try {
  QUIRE_TRY(const StateRef state, impl_->look());
  QUIRE_TRY(const auto runtime, impl_->llm->open());
  QUIRE_TRY(const auto channel, runtime->sequences().logits(state));
  QUIRE_TRY_STATUS(await(runtime->engine(), {&channel, 1}, interrupted));
  QUIRE_TRY(ForwardOutput output, channel->take_forward());
  return std::move(output.logits);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Sequence> Sequence::fork() const try {
  QUIRE_TRY(StateRef state, impl_->look());
  Sequence copy = make_sequence(impl_->llm, std::move(state));
  const std::lock_guard lock(impl_->mutex);
  copy.impl_->marks = impl_->marks;
  return copy;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Mark> Sequence::checkpoint() try {
  QUIRE_TRY(StateRef state, impl_->look());
  const std::lock_guard lock(impl_->mutex);
  const Mark mark{.value = ++impl_->llm->last_mark, .llm = impl_->llm};
  impl_->marks[mark.value] = std::move(state);
  return mark;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Sequence::rollback(const Mark& mark) try {
  return change(*impl_, [&](SequenceService&, const StateRef&) -> Result<StateRef> {
    const std::lock_guard lock(impl_->mutex);
    QUIRE_TRY(const auto found, find_mark(*impl_, mark));
    StateRef state = found->second;
    impl_->marks.erase(std::next(found), impl_->marks.end());
    return state;
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Sequence::rollback_to(std::int64_t length) try {
  return change(*impl_, [&](SequenceService& service, const StateRef& state) {
    return service.cut(state, length);
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Sequence::commit(const Mark& mark) try {
  QUIRE_TRY([[maybe_unused]] const StateRef state, impl_->look());
  std::map<std::uint64_t, StateRef> forgotten;
  const std::lock_guard lock(impl_->mutex);
  QUIRE_TRY(const auto found, find_mark(*impl_, mark));
  forgotten.insert(found, impl_->marks.end());
  impl_->marks.erase(found, impl_->marks.end());
  return {};
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Sequence::commit() try {
  QUIRE_TRY([[maybe_unused]] const StateRef state, impl_->look());
  std::map<std::uint64_t, StateRef> forgotten;
  const std::lock_guard lock(impl_->mutex);
  forgotten.swap(impl_->marks);
  return {};
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Sequence::replace(std::int64_t start, std::int64_t stop, std::span<const TokenId> tokens,
                         const Interrupt& interrupted, EditMode mode,
                         const RequestOptions& options) try {
  return change(*impl_, [&](SequenceService& service, const StateRef& state) {
    return mode == EditMode::kExact
               ? service.replace(state, start, stop, tokens, interrupted, options)
               : service.replace_only(state, start, stop, tokens, interrupted, options);
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<SequenceDiff> Sequence::diff(const Sequence& other) const try {
  QUIRE_TRY(const StateRef left, impl_->look());
  QUIRE_TRY(const StateRef right, other.impl_->look());
  const bool same_pool = impl_->llm == other.impl_->llm;
  const auto differ = std::ranges::mismatch(left->tokens, right->tokens);
  SequenceDiff diff{.common_tokens = differ.in1 - left->tokens.begin(),
                    .left = {differ.in1, left->tokens.end()},
                    .right = {differ.in2, right->tokens.end()}};
  std::vector<std::int32_t> mine = left->blocks, theirs = right->blocks, both;
  for (std::vector<std::int32_t>* const blocks : {&mine, &theirs}) {
    std::erase(*blocks, -1);  // ids of blocks that a window has freed
    std::ranges::sort(*blocks);
  }
  std::ranges::set_intersection(mine, theirs, std::back_inserter(both));
  diff.shared_blocks = same_pool ? std::ssize(both) : 0;
  return diff;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<BlockList> Sequence::blocks() const try {
  QUIRE_TRY(const StateRef state, impl_->look());
  return make_block_list({sequences::run_of(state)});
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Sequence::save(const std::string& path) const try {
  QUIRE_TRY(const StateRef state, impl_->look());
  QUIRE_TRY(const auto runtime, impl_->llm->open());
  return runtime->saved_sequences().save(state, path, {});
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Sequence> LLM::load_sequence(const std::string& path,
                                    const LoadSequenceOptions& options) try {
  QUIRE_TRY(const auto runtime, impl_->open());
  QUIRE_TRY(StateRef state, runtime->saved_sequences().load(path, options));
  return make_sequence(impl_, std::move(state));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Sequence> LLM::sequence(std::span<const TokenId> token_ids, const Interrupt& interrupted,
                               const RequestOptions& options) try {
  return sequence(BlockList(), token_ids, interrupted, options);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Sequence> LLM::sequence(const BlockList& existing, std::span<const TokenId> new_tokens,
                               const Interrupt& interrupted, const RequestOptions& options) try {
  QUIRE_TRY(const auto runtime, impl_->open());
  QUIRE_TRY_STATUS(check_fresh(existing));
  QUIRE_TRY(StateRef state, runtime->sequences().open(existing.impl().runs, new_tokens, interrupted,
                                                      ReuseGrade::kApproximate, options));
  return make_sequence(impl_, std::move(state));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<GenerationOutput> LLM::infer_from_blocks(const BlockList& existing,
                                                std::span<const TokenId> new_tokens,
                                                const SamplingParams& params,
                                                const Interrupt& interrupted,
                                                const RequestOptions& options) try {
  QUIRE_TRY(const auto stream, start_behind(*impl_, existing, new_tokens,
                                            {.params = &params,
                                             .options = options,
                                             .source = "blocks",
                                             .cached = reused_tokens(existing, new_tokens)},
                                            interrupted));
  return output_of(*stream, interrupted);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<Stream> LLM::infer_from_blocks_stream(const BlockList& existing,
                                             std::span<const TokenId> new_tokens,
                                             const SamplingParams& params,
                                             const Interrupt& interrupted,
                                             const RequestOptions& options) try {
  QUIRE_TRY(auto stream, start_behind(*impl_, existing, new_tokens,
                                      {.params = &params,
                                       .streaming = options.deltas,
                                       .options = options,
                                       .source = "blocks",
                                       .cached = reused_tokens(existing, new_tokens)},
                                      interrupted));
  return Stream(std::move(stream));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<BlockList> LLM::find_blocks(std::span<const std::int32_t> block_ids, std::int64_t num_tokens,
                                   const std::string& salt) const try {
  QUIRE_TRY(const auto runtime, impl_->open());
  QUIRE_TRY(auto runs, runtime->sequences().runs().find_runs(block_ids, num_tokens, salt));
  return make_block_list(std::move(runs));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

}  // namespace quire
