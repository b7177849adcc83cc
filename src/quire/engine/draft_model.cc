#include "quire/engine/draft_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/stopwatch.h"
#include "quire/base/str.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess_tree.h"
#include "quire/drafts/options.h"
#include "quire/engine/bundle_options.h"
#include "quire/engine/model_bundle.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kv/ledger.h"
#include "quire/kv/prefix_cache.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/sched/types.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/types.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kMostRows = 512;  // of a pass over a prompt
constexpr std::int32_t kFewPending = 8;  // rows that requests of one pass have at most

// Returns an error if two models do not share their tokens.
Status check_alike(const ModelBundle& draft, const std::string& name, const ModelBundle& large) {
  QUIRE_CHECK(draft.decoder.has_value() && large.decoder.has_value(), "open_model() made them");
  const bool both = draft.text != nullptr && large.text != nullptr;
  const bool neither = draft.text == nullptr && large.text == nullptr;
  const std::int32_t vocab = draft.decoder->config().vocab_size;
  const bool alike =
      both ? draft.text->tokenizer.fingerprint() == large.text->tokenizer.fingerprint()
           : neither && vocab == large.decoder->config().vocab_size;
  if (alike) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("speculate: the draft model ", base::quoted(name),
                        " has another tokenizer than the model; give one with the same tokens")};
}

}  // namespace

Result<std::unique_ptr<DraftModel>> DraftModel::open(const kernels::KernelContext& context,
                                                     const drafts::SpeculationOptions& options,
                                                     const std::string& dtype,
                                                     const ModelBundle& large) {
  const std::string& model = options.model;
  BundleOptions how;
  how.dtype = dtype;
  QUIRE_TRY(ModelBundle bundle, open_model(context, model, how));
  QUIRE_TRY_STATUS(check_alike(bundle, model, large));
  QUIRE_CHECK(bundle.decoder.has_value(), "open_model() made it");
  if (bundle.decoder->config().state_geometry().state_bytes > 0) {
    return Error{.code = ErrorCode::kUnsupported,
                 .message = base::str_cat("speculate: the draft model ", base::quoted(model),
                                          " has layers that carry a state; give one without")};
  }
  return std::unique_ptr<DraftModel>(new DraftModel(std::move(bundle), options));
}

tensor::KVGeometry DraftModel::geometry(std::int32_t block_tokens) const {
  QUIRE_CHECK(bundle_.decoder.has_value(), "open() made it");
  return bundle_.decoder->config().kv_geometry(bundle_.kv_dtype, block_tokens, bundle_.kv_format);
}

std::int64_t DraftModel::part_of(std::int64_t budget, std::int64_t large_bytes,
                                 std::int32_t block_tokens) const {
  const std::int64_t own = geometry(block_tokens).block_bytes();
  return budget / (own + large_bytes) * own;
}

Status DraftModel::make_room(std::int64_t bytes, std::int32_t block_tokens) {
  const tensor::KVGeometry shape = geometry(block_tokens);
  const std::int32_t blocks = kv_store::blocks_in_budget(shape, bytes);
  if (blocks == 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("kv_budget leaves no block for the draft model ", base::quoted(name_),
                          ", whose blocks have ", base::format_bytes(shape.block_bytes()),
                          "; raise kv_budget")};
  }
  QUIRE_TRY(pool_, kv_store::PagedPool::create(shape, blocks));
  kv::LedgerConfig config{.num_blocks = blocks,
                          .block_tokens = block_tokens,
                          .window_tokens = shape.forget_after_tokens(),
                          .formats = pool_->block_formats()};
  QUIRE_TRY_STATUS(config.validate());
  ledger_ = std::make_unique<kv::Ledger>(config);
  for (int layer = 0; layer < shape.layers; ++layer) {
    views_.push_back(pool_->view(layer));
  }
  return {};
}

void DraftModel::forget(RequestId request) {
  findable_.erase(request.value);
  if (const auto known = sequences_.find(request.value); known != sequences_.end()) {
    ledger_->sequences().close(known->second);
    sequences_.erase(known);
  }
}

// Closes the sequences of requests that are not asked for. Their full blocks are found
// again.
void DraftModel::close_all_but(std::span<const drafts::DraftQuery> queries) {
  std::erase_if(sequences_, [&](const auto& known) {
    const bool asked = std::ranges::any_of(queries, [&](const drafts::DraftQuery& query) {
      return query.request.value == known.first;
    });
    if (!asked) {
      findable_[known.first] = ledger_->sequences().num_computed(known.second);
      ledger_->sequences().close(known.second);
    }
    return !asked;
  });
}

std::int32_t DraftModel::pending(SeqId sequence) const {
  return static_cast<std::int32_t>(ledger_->sequences().tokens(sequence).size()) -
         ledger_->sequences().num_computed(sequence);
}

double DraftModel::seconds_to_begin(const drafts::DraftQuery& query) const {
  const auto known = sequences_.find(query.request.value);
  std::int64_t lacking = drafts::num_tokens(query.history);
  if (known != sequences_.end()) {
    lacking -= ledger_->sequences().num_computed(known->second);
  } else {
    const auto [found, is_new] = findable_.try_emplace(query.request.value, 0);
    if (is_new) {
      found->second = ledger_->cache().match(drafts::all_tokens(query.history), query.history.salt);
    }
    lacking -= found->second;
  }
  return lacking <= kFewPending || prompt_tokens_ == 0
             ? 0
             : static_cast<double>(lacking) * prompt_seconds_ / prompt_tokens_;
}

// Makes the tokens of a request's sequence those of the request: what was guessed wrong goes.
// nullopt where the context has no room for a guess.
std::optional<SeqId> DraftModel::follow(const drafts::DraftQuery& query) {
  const std::vector<TokenId> joined =
      query.history.prompt.empty() ? std::vector<TokenId>() : drafts::all_tokens(query.history);
  const std::span<const TokenId> tokens = joined.empty() ? query.history.own : std::span(joined);
  const std::int32_t vocab = decoder().config().vocab_size;
  if (std::ssize(tokens) + query.most > decoder().config().context_length ||
      std::ranges::any_of(tokens, [vocab](TokenId id) { return id >= vocab; })) {
    return std::nullopt;
  }
  kv::Sequences& sequences = ledger_->sequences();
  if (const auto known = sequences_.find(query.request.value); known != sequences_.end()) {
    const auto had = sequences.tokens(known->second);
    const auto same = static_cast<std::size_t>(
        std::ranges::mismatch(had, tokens.first(tokens.size() - 1)).in1 - had.begin());
    if (same == had.size() ||
        sequences.rollback(known->second, static_cast<std::int32_t>(same)).ok()) {
      for (const TokenId token : tokens.subspan(same)) {
        sequences.append(known->second, token);
      }
      return known->second;
    }
    forget(query.request);  // a window has freed what it would go back to
  }
  const SeqId opened =
      sequences.open(tokens, true, {}, query.history.salt, kv::BehindWindow::kFrees);
  sequences_.emplace(query.request.value, opened);
  return opened;
}

// Computes runs. `logit_rows` is 1 for logits of the last row of each, or 0.
Result<std::span<float>> DraftModel::compute(std::span<const sched::ScheduledRun> runs,
                                             std::int32_t logit_rows) {
  growths_.clear();
  logit_rows_.assign(runs.size(), logit_rows);
  for (const sched::ScheduledRun& run : runs) {
    growths_.push_back({.sequence = run.sequence, .count = run.count});
  }
  QUIRE_CHECK(pool_.has_value(), "blocks were made");
  QUIRE_TRY_STATUS(ledger_->sequences().extend(growths_));
  for (const kv::BlockCopy& copy : ledger_->take_copies()) {  // a wrong guess had filled the block
    QUIRE_TRY_STATUS(pool_->copy(copy));
  }
  const model::ForwardBatch& batch = builder_.build(runs, logit_rows_, *ledger_);
  QUIRE_TRY(const std::span<float> logits, decoder().forward(batch, views_));
  for (const sched::ScheduledRun& run : runs) {
    ledger_->sequences().advance(run.sequence, run.count);
  }
  return logits;
}

// Returns how many rows of a prompt fit into the time that is left, by what the last ones took. A
// few always do, so that no prompt stands still.
std::int32_t DraftModel::rows_in_time() const {
  if (std::isinf(prompt_seconds_left_)) {
    return kMostRows;
  }
  const double rows =
      prompt_tokens_ == 0 ? 0 : prompt_seconds_left_ * prompt_tokens_ / prompt_seconds_;
  return static_cast<std::int32_t>(std::clamp<double>(rows, kFewPending, kMostRows));
}

// Computes all but the last tokens of a sequence that lacks many, as far as there is time.
DraftModel::Prompt DraftModel::compute_most(SeqId sequence) {
  while (pending(sequence) > kFewPending) {
    if (prompt_seconds_left_ <= 0 && std::exchange(prompt_rows_, true)) {
      return Prompt::kGoesOn;
    }
    const std::int32_t count = std::min(pending(sequence) - 1, rows_in_time());
    const sched::ScheduledRun run{
        .sequence = sequence, .first = ledger_->sequences().num_computed(sequence), .count = count};
    base::Stopwatch watch;
    if (!compute({&run, 1}, 0).ok()) {
      return Prompt::kNoRoom;
    }
    constexpr double kKept = 0.9;
    double seconds = 0;
    watch.lap(seconds);
    prompt_seconds_ = kKept * prompt_seconds_ + seconds;
    prompt_tokens_ = kKept * prompt_tokens_ + count;
    prompt_seconds_left_ -= seconds;
    prompt_seconds_spent_ += seconds;
    prompt_rows_ = true;
  }
  return Prompt::kComputed;
}

std::int64_t DraftModel::weight_bytes() const {
  QUIRE_CHECK(bundle_.decoder.has_value(), "open() made it");
  return bundle_.decoder->pack_report().packed_bytes;
}

// Closes the sequences of a guess that are not the request's own.
void DraftModel::close_forks(Asked& asked) {
  const SeqId own = sequences_.at(asked.query->request.value);
  std::erase_if(asked.tips, [&](const Asked::Tip& tip) {
    if (tip.sequence != own) {
      ledger_->sequences().close(tip.sequence);
    }
    return tip.sequence != own;
  });
}

SeqId DraftModel::fork(SeqId sequence) {
  forks_.emplace_back();
  forks_.back() = ledger_->sequences().fork(sequence);
  return forks_.back();
}

// Grows a guess by the logits [tips] of its sequences. Each token behind which it grows on gets a
// sequence: the first one that of the token before it, others forks of that.
void DraftModel::grow(Asked& asked, std::span<const float> logits) {
  kv::Sequences& sequences = ledger_->sequences();
  const auto vocab = static_cast<std::size_t>(decoder().config().vocab_size);
  const std::vector<Asked::Tip> grown = std::exchange(asked.tips, {});
  for (std::size_t i = 0; i < grown.size(); ++i) {
    asked.tree.grow(grown[i].token, logits.subspan(i * vocab, vocab));
  }
  const SeqId own = sequences_.at(asked.query->request.value);
  for (const std::int32_t token : asked.tree.take_tips()) {
    const std::int32_t parent = asked.tree.parent(token);
    const auto from = std::ranges::find(grown, parent, &Asked::Tip::token)->sequence;
    const bool first = asked.tips.empty();  // of the stem, and so of the request's own sequence
    asked.tips.push_back({.sequence = first ? own : fork(from), .token = token});
  }
  for (const Asked::Tip& tip : asked.tips) {
    sequences.append(tip.sequence, asked.tree.token(tip.token));
  }
  for (const Asked::Tip& tip : grown) {
    if (tip.sequence != own) {
      sequences.close(tip.sequence);
    }
  }
}

void DraftModel::propose(std::span<const drafts::DraftQuery> queries) {
  close_all_but(queries);
  prompt_rows_ = false;
  prompt_seconds_spent_ = 0;
  for (const SeqId left : std::exchange(forks_, {})) {  // by a call that ran out of memory, too
    ledger_->sequences().close(left);
  }
  asked_.clear();
  for (const drafts::DraftQuery& query : queries) {
    const std::optional<SeqId> sequence = follow(query);
    const Prompt prompt = sequence ? compute_most(*sequence) : Prompt::kNoRoom;
    if (sequence && prompt == Prompt::kComputed) {
      asked_.push_back({.query = &query,
                        .tree = drafts::GuessTree(
                            {.levels = query.most, .tokens = query.most_in_tree, .width = width_}),
                        .tips = {{.sequence = *sequence}}});
    } else if (prompt == Prompt::kNoRoom) {
      forget(query.request);
    }
  }
  while (!asked_.empty()) {
    runs_.clear();
    for (const Asked& asked : asked_) {
      for (const Asked::Tip& tip : asked.tips) {
        runs_.push_back({.request = asked.query->request,
                         .sequence = tip.sequence,
                         .first = ledger_->sequences().num_computed(tip.sequence),
                         .count = pending(tip.sequence),
                         .samples = true});
      }
    }
    const Result<std::span<float>> logits = compute(runs_, 1);
    if (!logits.ok()) {
      give_up_some();
      continue;
    }
    const auto vocab = static_cast<std::size_t>(decoder().config().vocab_size);
    std::size_t next = 0;
    for (Asked& asked : asked_) {
      const std::size_t count = asked.tips.size();
      grow(asked, logits->subspan(next * vocab, count * vocab));
      next += count;
    }
    finish_grown();
  }
}

// Writes the guesses that do not grow on.
void DraftModel::finish_grown() {
  std::erase_if(asked_, [](const Asked& asked) {
    if (asked.tips.empty()) {
      asked.tree.write(*asked.query->draft);
    }
    return asked.tips.empty();
  });
}

// Drops the forks of the last guess that has some. Where none has, ends the last guess: others may
// have room without it.
void DraftModel::give_up_some() {
  for (Asked& asked : std::views::reverse(asked_)) {
    if (asked.tips.size() > 1) {
      close_forks(asked);
      return;
    }
  }
  asked_.back().tree.write(*asked_.back().query->draft);
  forget(asked_.back().query->request);
  asked_.pop_back();
}

}  // namespace quire::engine
