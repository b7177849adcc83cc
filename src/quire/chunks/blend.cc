#include "quire/chunks/blend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/kernels/kv_read.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/ledger.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

// V of this layer is the first to depend on other tokens.
constexpr int kFirstMixedLayer = 1;

// MergeRank::variant of a composition's first run: beyond all distances from an anchor.
constexpr std::uint32_t kOwnVariants = std::uint32_t{1} << 31;

// Returns how many tokens a share is. A share of 0.3 of 10 tokens is 3, though 0.3 * 10 is a little
// more.
double wanted(double share, std::int64_t tokens) {
  return std::max(0.0, std::ceil(share * static_cast<double>(tokens) - 1e-9));
}

// One token of the composition: which run it stands in, and where.
struct TokenRef {
  std::int32_t run = 0;
  std::int32_t local = 0;
};

// Rows over the runs of a sequence as a batch of its own.
class Rows {
 public:
  Rows(std::span<const kv::RunView> runs, std::int32_t block_tokens)
      : runs_(runs), block_tokens_(block_tokens) {}

  // Adds a row. Rows must ascend by run and token.
  void add(TokenId id, TokenRef token) {
    const kv::RunView& run = runs_[static_cast<std::size_t>(token.run)];
    ids_.push_back(id);
    tokens_.push_back(token);
    positions_.push_back(token.local);
    use_positions_.push_back(run.start_position + token.local);
    slots_.push_back(slot_of(run, token.local));
    slot_formats_.push_back(run.format.value);
  }

  [[nodiscard]] tensor::KVSlot slot_of(const kv::RunView& run, std::int32_t local) const {
    return {.block = run.blocks[static_cast<std::size_t>(local / block_tokens_)].value,
            .offset = local % block_tokens_};
  }

  // Builds the batch. Every run is an entry: rows behind it see all of it, its own rows the tokens
  // up to their own.
  const model::ForwardBatch& build() {
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      const kv::RunView& run = runs_[r];
      auto& rows = entry_rows_.emplace_back();
      auto& blocks = entry_blocks_.emplace_back();
      std::ranges::transform(run.blocks, std::back_inserter(blocks), &BlockId::value);
      std::int32_t tokens = run.num_tokens;
      for (std::size_t i = 0; i < tokens_.size(); ++i) {
        const TokenRef token = tokens_[i];
        if (token.run < static_cast<std::int32_t>(r)) {
          continue;
        }
        const bool own = token.run == static_cast<std::int32_t>(r);
        const std::int32_t position =
            runs_[static_cast<std::size_t>(token.run)].start_position + token.local;
        tokens = own ? std::max(tokens, token.local + 1) : tokens;
        rows.push_back({.row = static_cast<std::int32_t>(i),
                        .query_position = position - run.start_position,
                        .visible_end = own ? token.local + 1 : run.num_tokens});
      }
      entries_.push_back(
          {.blocks = blocks, .num_tokens = tokens, .rows = rows, .format = run.format.value});
      formats_ = std::max(formats_, static_cast<std::uint8_t>(run.format.value + 1));
    }
    batch_ = {.token_ids = ids_,
              .positions = positions_,
              .use_positions = use_positions_,
              .slots = slots_,
              .num_formats = formats_,
              .slot_formats = slot_formats_,
              .entries = entries_};
    return batch_;
  }
  // Returns the views that the batch names among those of all formats. After build().
  [[nodiscard]] std::span<const tensor::PagedKVView> views(std::span<const tensor::PagedKVView> all,
                                                           int layers) const {
    return all.first(static_cast<std::size_t>(layers) * formats_);
  }

  [[nodiscard]] std::size_t size() const { return ids_.size(); }

 private:
  std::span<const kv::RunView> runs_;
  std::int32_t block_tokens_;
  std::vector<TokenId> ids_;
  std::vector<TokenRef> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> use_positions_;
  std::vector<tensor::KVSlot> slots_;
  std::vector<std::uint8_t> slot_formats_;
  std::uint8_t formats_ = 1;  // named by slots and entries
  std::deque<std::vector<attention::EntryRow>> entry_rows_;
  std::deque<std::vector<std::int32_t>> entry_blocks_;
  std::vector<attention::Entry> entries_;
  model::ForwardBatch batch_;
};

// V of the first mixed layer as it is stored for the tokens of runs: copies in host memory.
class StoredValues {
 public:
  // Copies the values of the runs. Precondition: the runs have blocks.
  [[nodiscard]] static Result<StoredValues> of(const kv_store::PagedPool& paged_pool,
                                               std::span<const kv::RunView> runs) {
    StoredValues values;
    for (const kv::RunView& run : runs) {
      QUIRE_TRY(kv_store::PagedPool copy,
                paged_pool.copy_of_layer(kFirstMixedLayer, run.blocks, run.format));
      values.copies_.push_back(std::move(copy));
    }
    return values;
  }

  // Reads the values of a token and KV head. out: [head_dim].
  void read(TokenRef token, int kv_head, std::span<float> out) const {
    const kv_store::PagedPool& copy = copies_[static_cast<std::size_t>(token.run)];
    const std::int32_t block_tokens = copy.geometry().block_tokens;
    kernels::read_value(copy.view(0), kv_head,
                        {.block = token.local / block_tokens, .offset = token.local % block_tokens},
                        out);
  }

 private:
  std::vector<kv_store::PagedPool> copies_;  // [runs]
};

// Every context token of a composition.
struct Contexts {
  std::int64_t first = 0;  // index of the first one among all tokens
  std::vector<TokenRef> tokens;
};

Contexts contexts_of(const kv::ResolvedComposition& composition) {
  Contexts contexts;
  for (std::size_t run = 0; run < composition.parts.size(); ++run) {
    const kv::Chunk& chunk = *composition.parts[run].chunk;
    if (chunk.type != ChunkType::kContext) {
      contexts.first += std::ssize(*chunk.tokens);
      continue;
    }
    for (std::int32_t local = 0; local < std::ssize(*chunk.tokens); ++local) {
      contexts.tokens.push_back({static_cast<std::int32_t>(run), local});
    }
  }
  return contexts;
}

// Returns the named tokens of contexts. The system chunk and the query are always as if computed
// with everything in sight.
std::vector<std::int32_t> explicit_tokens(const Blend& how, const Contexts& contexts) {
  std::set<std::int32_t> chosen;
  for (const std::int32_t token : how.tokens) {
    const std::int64_t index = token - contexts.first;
    if (index >= 0 && index < std::ssize(contexts.tokens)) {
      chosen.insert(static_cast<std::int32_t>(index));
    }
  }
  return {chosen.begin(), chosen.end()};
}

// Returns scores with the first tokens of every context highest, one context after the other in
// turn.
std::vector<double> first_scores(const Contexts& contexts) {
  std::vector<double> scores;
  scores.reserve(contexts.tokens.size());
  for (const TokenRef token : contexts.tokens) {
    scores.push_back(-token.local);
  }
  return scores;
}

std::vector<double> random_scores(const Contexts& contexts, std::uint64_t seed) {
  std::vector<double> scores;
  scores.reserve(contexts.tokens.size());
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < contexts.tokens.size(); ++i) {  // splitmix64 (Steele et al. 2014)
    state += 0x9e3779b97f4a7c15ULL;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    scores.push_back(static_cast<double>((z ^ (z >> 31)) >> 11));
  }
  return scores;
}

bool looks_at_kv(Selector selector) {
  return selector == Selector::kValueDeviation || selector == Selector::kQueryAttention;
}

// Returns ascending indices into contexts.tokens. Precondition: !looks_at_kv(how.selector).
std::vector<std::int32_t> choose_by_place(const Blend& how, const Contexts& contexts) {
  switch (how.selector) {
    case Selector::kAll:
      return largest(std::vector<double>(contexts.tokens.size()), 1);
    case Selector::kExplicit:
      return explicit_tokens(how, contexts);
    case Selector::kFirst:
      return largest(first_scores(contexts), how.share);
    case Selector::kRandom:
      return largest(random_scores(contexts, how.seed), how.share);
    default:
      return {};
  }
}

class Blender {
 public:
  Blender(const BlendContext& context, const Blend& how, const kv::ResolvedComposition& composition)
      : context_(context),
        how_(how),
        composition_(composition),
        in_place_(contexts_of(composition)),
        contexts_(in_place_.tokens) {}

  Result<BlendResult> run() {
    QUIRE_TRY(const std::vector<std::int32_t> chosen, choose());
    QUIRE_TRY(BlendResult result, derive(chosen));
    if (const Status status = compute(result.uses, chosen); !status.ok()) {
      for (const kv::SegmentId own : result.own) {
        context_.ledger.segments().drop(own);
      }
      return status.error();
    }
    result.recomputed_tokens = std::ssize(chosen);
    result.context_tokens = std::ssize(contexts_);
    return result;
  }

 private:
  [[nodiscard]] std::int32_t block_tokens() const { return context_.ledger.config().block_tokens; }

  [[nodiscard]] TokenId token_at(TokenRef token) const {
    const kv::Part& part = composition_.parts[static_cast<std::size_t>(token.run)];
    return (*part.chunk->tokens)[static_cast<std::size_t>(token.local)];
  }

  // Returns ascending indices into contexts_.
  [[nodiscard]] Result<std::vector<std::int32_t>> choose() {
    if (!looks_at_kv(how_.selector)) {
      return choose_by_place(how_, in_place_);
    }
    QUIRE_TRY(const std::vector<double> scores,
              how_.selector == Selector::kValueDeviation ? value_deviations() : query_attention());
    return largest(scores, how_.share);
  }

  // A sequence over `uses` with the query's tokens behind them; closed by its destructor.
  class Composed {
   public:
    Composed(kv::Sequences& sequences, SeqId id) : sequences_(&sequences), id_(id) {}
    ~Composed() { sequences_->close(id_); }
    Composed(const Composed&) = delete;
    Composed& operator=(const Composed&) = delete;
    [[nodiscard]] SeqId id() const { return id_; }
    [[nodiscard]] std::vector<kv::RunView> runs() const { return sequences_->runs(id_); }

   private:
    kv::Sequences* sequences_;
    SeqId id_;
  };

  [[nodiscard]] Result<std::span<float>> forward(Rows& rows, model::ForwardProbe* probe = nullptr) {
    const model::ForwardBatch& batch = rows.build();
    return context_.decoder.forward(
        batch, rows.views(context_.views, context_.decoder.config().layers), probe);
  }

  [[nodiscard]] Status copy_blocks() {
    Status status;
    for (const kv::BlockCopy& copy : context_.ledger.take_copies()) {
      if (const Status copied = context_.paged_pool.copy(copy); !copied.ok()) {
        status = copied;
      }
    }
    if (!status.ok()) {
      (void)context_.ledger.cache().clear();  // some of it was to be moved
    }
    return status;
  }

  // Measures how far V of the first mixed layer is from what is stored, when everything before is
  // in sight.
  [[nodiscard]] Result<std::vector<double>> value_deviations() {
    if (context_.decoder.config().layers <= kFirstMixedLayer || contexts_.empty()) {
      return std::vector<double>(contexts_.size());
    }
    QUIRE_TRY(const SeqId id, context_.ledger.segments().compose(composition_.uses()));
    const Composed sequence(context_.ledger.sequences(), id);
    const std::vector<kv::RunView> runs = sequence.runs();
    const std::span<const kv::RunView> sealed = std::span(runs).first(runs.size() - 1);
    QUIRE_TRY(const StoredValues stored, StoredValues::of(context_.paged_pool, sealed));
    std::vector<double> scores;
    for (std::size_t first = 0; first < contexts_.size();) {
      Rows rows(sealed, block_tokens());
      for (; first + rows.size() < contexts_.size() &&
             std::cmp_less(rows.size(), context_.max_rows);) {
        const TokenRef token = contexts_[first + rows.size()];
        rows.add(token_at(token), token);
      }
      model::ForwardProbe probe{.values_layer = kFirstMixedLayer};
      QUIRE_TRY([[maybe_unused]] const std::span<float> logits, forward(rows, &probe));
      for (std::size_t i = 0; i < rows.size(); ++i) {
        scores.push_back(deviation(stored, contexts_[first + i], probe.values, i));
      }
      first += rows.size();
    }
    return scores;
  }

  [[nodiscard]] double deviation(const StoredValues& all_stored, TokenRef token,
                                 std::span<const float> values, std::size_t row) const {
    const model::ModelConfig& config = context_.decoder.config();
    const auto head_dim = static_cast<std::size_t>(config.head_dim);
    std::vector<float> stored(head_dim);
    double sum = 0;
    for (int head = 0; head < config.kv_heads; ++head) {
      all_stored.read(token, head, stored);
      const auto first =
          (row * static_cast<std::size_t>(config.kv_heads) + static_cast<std::size_t>(head)) *
          head_dim;
      for (std::size_t d = 0; d < head_dim; ++d) {
        const double difference = double{values[first + d]} - stored[d];
        sum += difference * difference;
      }
    }
    return sum;
  }

  // Returns the attention of the query in the base mode, over all heads and layers.
  [[nodiscard]] Result<std::vector<double>> query_attention() {
    const std::vector<TokenId>& query = *composition_.query.chunk->tokens;
    kv::Ledger& ledger = context_.ledger;
    QUIRE_TRY(const SeqId id,
              ledger.segments().compose(
                  composition_.uses(), {.tokens = query, .position = composition_.query.position}));
    const Composed sequence(ledger.sequences(), id);
    std::vector<double> scores(contexts_.size());
    const auto last_run = static_cast<std::int32_t>(composition_.parts.size());
    for (std::int32_t first = 0; first < std::ssize(query);) {
      const std::int32_t count =
          std::min(context_.max_rows, static_cast<std::int32_t>(std::ssize(query)) - first);
      QUIRE_TRY_STATUS(ledger.sequences().extend(id, count));
      QUIRE_TRY_STATUS(copy_blocks());
      const std::vector<kv::RunView> runs = sequence.runs();
      Rows rows(runs, block_tokens());
      for (std::int32_t i = first; i < first + count; ++i) {
        rows.add(query[static_cast<std::size_t>(i)], {last_run, i});
      }
      model::ForwardProbe probe{.mass = mass_of(runs, scores)};
      QUIRE_TRY([[maybe_unused]] const std::span<float> logits, forward(rows, &probe));
      ledger.sequences().advance(id, count);
      first += count;
    }
    return scores;
  }

  // Returns the part of `scores` of each run's tokens; runs that are no contexts have none.
  [[nodiscard]] std::vector<std::span<double>> mass_of(std::span<const kv::RunView> runs,
                                                       std::vector<double>& scores) const {
    std::vector<std::span<double>> mass(runs.size());
    std::size_t next = 0;
    for (std::size_t run = 0; run < composition_.parts.size(); ++run) {
      if (composition_.parts[run].chunk->type == ChunkType::kContext) {
        const auto tokens = static_cast<std::size_t>(runs[run].num_tokens);
        mass[run] = std::span(scores).subspan(next, tokens);
        next += tokens;
      }
    }
    return mass;
  }

  // Derives segments in which the chosen tokens may be written.
  [[nodiscard]] Result<BlendResult> derive(std::span<const std::int32_t> chosen) {
    BlendResult result{.uses = composition_.uses()};
    auto next = chosen.begin();
    for (std::size_t run = 0; run < result.uses.size(); ++run) {
      std::vector<std::int32_t> tokens;
      for (; next != chosen.end() && std::cmp_equal(token_of(*next).run, run); ++next) {
        tokens.push_back(token_of(*next).local);
      }
      result.recomputed.push_back(std::ssize(tokens));
      if (tokens.empty()) {
        continue;
      }
      const auto own = context_.ledger.segments().derive(result.uses[run].segment, tokens);
      if (!own.ok()) {
        for (const kv::SegmentId made : result.own) {
          context_.ledger.segments().drop(made);
        }
        [[maybe_unused]] const Status copied = copy_blocks();  // orders must not outlive this call
        return own.error();
      }
      result.uses[run].segment = *own;
      result.uses[run].rank.variant = kOwnVariants + static_cast<std::uint32_t>(run);
      result.own.push_back(*own);
    }
    QUIRE_TRY_STATUS(copy_blocks());
    return result;
  }

  [[nodiscard]] TokenRef token_of(std::int32_t index) const {
    return contexts_[static_cast<std::size_t>(index)];
  }

  // Computes earlier rows first, so that later ones find their KV.
  [[nodiscard]] Status compute(std::span<const kv::SegmentUse> uses,
                               std::span<const std::int32_t> chosen) {
    QUIRE_TRY(const SeqId id, context_.ledger.segments().compose(uses));
    const Composed sequence(context_.ledger.sequences(), id);
    const std::vector<kv::RunView> runs = sequence.runs();
    const std::span<const kv::RunView> sealed = std::span(runs).first(runs.size() - 1);
    while (!chosen.empty()) {
      const std::size_t count =
          std::min(chosen.size(), static_cast<std::size_t>(context_.max_rows));
      Rows rows(sealed, block_tokens());
      for (const std::int32_t index : chosen.first(count)) {
        rows.add(token_at(token_of(index)), token_of(index));
      }
      QUIRE_TRY([[maybe_unused]] const std::span<float> logits, forward(rows));
      chosen = chosen.subspan(count);
    }
    return {};
  }

  const BlendContext& context_;
  const Blend& how_;
  const kv::ResolvedComposition& composition_;
  const Contexts in_place_;
  const std::vector<TokenRef>& contexts_;  // contexts of in_place_
};

}  // namespace

BlendCost blend_cost(const Blend& how, const kv::ResolvedComposition& composition,
                     std::int32_t block_tokens) {
  const Contexts contexts = contexts_of(composition);
  std::vector<std::int32_t> chosen;
  if (looks_at_kv(how.selector)) {
    chosen.resize(contexts.tokens.size());
    std::iota(chosen.begin(), chosen.end(), 0);
  } else {
    chosen = choose_by_place(how, contexts);
  }
  std::set<std::pair<std::int32_t, std::int32_t>> blocks;
  for (const std::int32_t index : chosen) {
    const TokenRef token = contexts.tokens[static_cast<std::size_t>(index)];
    blocks.emplace(token.run, token.local / block_tokens);
  }
  const auto tokens = looks_at_kv(how.selector)
                          ? static_cast<std::int64_t>(wanted(how.share, std::ssize(chosen)))
                          : std::ssize(chosen);
  return {.tokens = tokens, .blocks = std::min(std::ssize(blocks), tokens)};
}

std::vector<std::int32_t> largest(std::span<const double> scores, double share) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::int32_t index) {
    return scores[static_cast<std::size_t>(index)];
  });
  order.resize(static_cast<std::size_t>(wanted(share, std::ssize(scores))));
  std::ranges::sort(order);
  return order;
}

Result<BlendResult> blend(const BlendContext& context, const Blend& how,
                          const kv::ResolvedComposition& composition) {
  return Blender(context, how, composition).run();
}

}  // namespace quire::chunks
