#include "quire/chunks/blend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/chunks/composed_rows.h"
#include "quire/chunks/hidden_states.h"
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
std::int64_t wanted(double share, std::int64_t tokens) {
  return static_cast<std::int64_t>(
      std::max(0.0, std::ceil(share * static_cast<double>(tokens) - 1e-9)));
}

// Returns the share of the layers that chosen tokens run through.
double layer_share(const Blend& how, int layers) {
  return how.layers ? static_cast<double>(how.layers->last - how.layers->first) / layers : 1.0;
}

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

std::vector<std::int32_t> all_of(const Contexts& contexts) {
  std::vector<std::int32_t> all(contexts.tokens.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

bool looks_at_kv(Selector selector) {
  return selector == Selector::kValueDeviation || selector == Selector::kQueryAttention;
}

// Returns ascending indices into contexts.tokens. Precondition: !looks_at_kv(how.selector).
std::vector<std::int32_t> choose_by_place(const Blend& how, const Contexts& contexts) {
  switch (how.selector) {
    case Selector::kAll:
      return all_of(contexts);
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
    return how_.only_layer ? run_only_layer(*how_.only_layer) : run_rows();
  }

 private:
  [[nodiscard]] Result<BlendResult> run_rows() {
    QUIRE_TRY(const std::vector<std::int32_t> chosen, choose());
    QUIRE_TRY(BlendResult result, derive(chosen));
    if (const Status status = compute(result.uses, chosen); !status.ok()) {
      drop(result.own);
      return status.error();
    }
    result.context_tokens = std::ssize(contexts_);
    if (result.context_tokens > 0) {
      result.share = layer_share(how_, layers()) * static_cast<double>(chosen.size()) /
                     static_cast<double>(contexts_.size());
    }
    for (std::int64_t& tokens : result.recomputed) {
      tokens = wanted(layer_share(how_, layers()), tokens);
      result.recomputed_tokens += tokens;
    }
    return result;
  }

  // Takes K and V of one layer from rows that ran through all layers.
  [[nodiscard]] Result<BlendResult> run_only_layer(std::int32_t layer) {
    const std::vector<std::int32_t> chosen = all_of(in_place_);
    QUIRE_TRY(const BlendResult exact, derive(chosen));
    auto result = compute_layer(layer, exact, chosen);
    drop(exact.own);
    return result;
  }

  // Computes `exact`, and derives segments with one layer of it.
  [[nodiscard]] Result<BlendResult> compute_layer(std::int32_t layer, const BlendResult& exact,
                                                  std::span<const std::int32_t> chosen) {
    QUIRE_TRY_STATUS(compute(exact.uses, chosen));
    QUIRE_TRY(BlendResult result, derive(chosen));
    for (std::size_t i = 0; i < result.own.size(); ++i) {
      if (const Status copied = copy_layer(layer, exact.own[i], result.own[i]); !copied.ok()) {
        drop(result.own);
        return copied.error();
      }
    }
    result.recomputed_tokens = std::ssize(chosen);
    result.context_tokens = std::ssize(chosen);
    result.share = 1;
    return result;
  }

  [[nodiscard]] Status copy_layer(std::int32_t layer, kv::SegmentId from, kv::SegmentId to) {
    const kv::Segments segments = context_.ledger.segments();
    QUIRE_TRY(kv_store::PagedPool copy,
              context_.paged_pool.copy_of_layer(layer, segments.find(from)->blocks().ids()));
    return context_.paged_pool.write_layer(layer, segments.find(to)->blocks().ids(),
                                           copy.all_bytes());
  }

  void drop(std::span<const kv::SegmentId> own) {
    for (const kv::SegmentId segment : own) {
      context_.ledger.segments().drop(segment);
    }
  }

  [[nodiscard]] std::int32_t block_tokens() const { return context_.ledger.config().block_tokens; }

  [[nodiscard]] int layers() const { return context_.decoder.config().layers; }

  [[nodiscard]] TokenId token_at(TokenRef token) const {
    const kv::Part& part = composition_.parts[static_cast<std::size_t>(token.run)];
    return (*part.chunk->tokens)[static_cast<std::size_t>(token.local)];
  }

  // Returns ascending indices into contexts_.
  [[nodiscard]] Result<std::vector<std::int32_t>> choose() {
    if (how_.layers) {
      return all_of(in_place_);
    }
    if (!looks_at_kv(how_.selector)) {
      return choose_by_place(how_, in_place_);
    }
    QUIRE_TRY(const std::vector<double> scores,
              how_.selector == Selector::kValueDeviation ? value_deviations() : query_attention());
    return largest(scores, how_.share);
  }

  [[nodiscard]] Result<std::span<float>> forward(ComposedRows& rows,
                                                 model::ForwardProbe* probe = nullptr,
                                                 const model::LayerBand* band = nullptr) {
    model::ForwardBatch& batch = rows.build();
    batch.band = band;
    return context_.decoder.forward(batch, rows.views(context_.views, layers()), probe);
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
    const ComposedSequence sequence(context_.ledger.sequences(), id);
    const std::vector<kv::RunView> runs = sequence.runs();
    const std::span<const kv::RunView> sealed = std::span(runs).first(runs.size() - 1);
    QUIRE_TRY(const StoredValues stored, StoredValues::of(context_.paged_pool, sealed));
    std::vector<double> scores;
    for (std::size_t first = 0; first < contexts_.size();) {
      ComposedRows rows(sealed, block_tokens());
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
    const ComposedSequence sequence(ledger.sequences(), id);
    std::vector<double> scores(contexts_.size());
    const auto last_run = static_cast<std::int32_t>(composition_.parts.size());
    for (std::int32_t first = 0; first < std::ssize(query);) {
      const std::int32_t count =
          std::min(context_.max_rows, static_cast<std::int32_t>(std::ssize(query)) - first);
      QUIRE_TRY_STATUS(ledger.sequences().extend(id, count));
      QUIRE_TRY_STATUS(copy_blocks());
      const std::vector<kv::RunView> runs = sequence.runs();
      ComposedRows rows(runs, block_tokens());
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
        drop(result.own);
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
    const ComposedSequence sequence(context_.ledger.sequences(), id);
    const std::vector<kv::RunView> runs = sequence.runs();
    const std::span<const kv::RunView> sealed = std::span(runs).first(runs.size() - 1);
    while (!chosen.empty()) {
      const std::size_t count =
          std::min(chosen.size(), static_cast<std::size_t>(context_.max_rows));
      ComposedRows rows(sealed, block_tokens());
      for (const std::int32_t index : chosen.first(count)) {
        rows.add(token_at(token_of(index)), token_of(index));
      }
      const std::vector<float> hidden = hidden_of(chosen.first(count));
      const LayerRange all = {.first = 0, .last = layers()};
      const model::LayerBand band{.first = how_.layers.value_or(all).first,
                                  .last = how_.layers.value_or(all).last,
                                  .before = hidden};
      QUIRE_TRY([[maybe_unused]] const std::span<float> logits,
                forward(rows, nullptr, how_.layers ? &band : nullptr));
      chosen = chosen.subspan(count);
    }
    return {};
  }

  // Returns the rows that chunks have kept of these tokens, for a band that begins above layer 0.
  [[nodiscard]] std::vector<float> hidden_of(std::span<const std::int32_t> chosen) const {
    std::vector<float> hidden;
    if (!how_.layers || how_.layers->first == 0) {
      return hidden;
    }
    const auto width = static_cast<std::size_t>(context_.decoder.config().hidden_size);
    hidden.resize(chosen.size() * width);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const TokenRef token = token_of(chosen[i]);
      const kv::Part& part = composition_.parts[static_cast<std::size_t>(token.run)];
      const HiddenRows* kept = context_.hidden->find(*part.segment, how_.layers->first);
      QUIRE_CHECK(kept != nullptr, "chunks keep hidden states before they are blended");
      kept->read(static_cast<std::size_t>(token.local),
                 std::span(hidden).subspan(i * width, width));
    }
    return hidden;
  }

  const BlendContext& context_;
  const Blend& how_;
  const kv::ResolvedComposition& composition_;
  const Contexts in_place_;
  const std::vector<TokenRef>& contexts_;  // contexts of in_place_
};

}  // namespace

BlendCost blend_cost(const Blend& how, const kv::ResolvedComposition& composition,
                     std::int32_t block_tokens, int layers) {
  const Contexts contexts = contexts_of(composition);
  std::vector<std::int32_t> chosen;
  if (how.layers || how.only_layer || looks_at_kv(how.selector)) {
    chosen = all_of(contexts);
  } else {
    chosen = choose_by_place(how, contexts);
  }
  std::set<std::pair<std::int32_t, std::int32_t>> blocks;
  for (const std::int32_t index : chosen) {
    const TokenRef token = contexts.tokens[static_cast<std::size_t>(index)];
    blocks.emplace(token.run, token.local / block_tokens);
  }
  if (how.layers || how.only_layer) {
    BlendCost cost{.blocks = std::ssize(blocks)};
    for (const kv::Part& part : composition.parts) {
      if (part.chunk->type == ChunkType::kContext) {
        cost.tokens += wanted(layer_share(how, layers), std::ssize(*part.chunk->tokens));
      }
    }
    return cost;
  }
  const std::int64_t tokens =
      looks_at_kv(how.selector) ? wanted(how.share, std::ssize(chosen)) : std::ssize(chosen);
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
