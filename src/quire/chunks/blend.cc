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

#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/chunks/blend_rows.h"
#include "quire/chunks/composed_sequence.h"
#include "quire/chunks/opened_blocks.h"
#include "quire/chunks/recomputed_runs.h"
#include "quire/chunks/stored_again.h"
#include "quire/kernels/kv_read.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/segments.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::chunks {
namespace {

// V of this layer is the first to depend on other tokens.
constexpr int kFirstMixedLayer = 1;

// Returns how many tokens a share is. A share of 0.3 of 10 tokens is 3, though 0.3 * 10 is a little
// more.
double wanted(double share, std::int64_t tokens) {
  return std::max(0.0, std::ceil(share * static_cast<double>(tokens) - 1e-9));
}

// V of the first mixed layer as it is stored for the tokens of runs: copies in host memory.
class StoredValues {
 public:
  // Copies the values of a layer of the pool, of the runs. Precondition: the runs have blocks.
  [[nodiscard]] static Result<StoredValues> of(const kv_store::PagedPool& paged_pool,
                                               std::span<const kv::RunView> runs, int layer) {
    StoredValues values;
    values.first_copies_.reserve(runs.size());
    for (const kv::RunView& run : runs) {
      values.first_copies_.push_back(values.copies_.size());
      for (const kv::BlockPart& part : kv::parts_of(run)) {
        QUIRE_TRY(kv_store::PagedPool copy,
                  paged_pool.copy_of_layer(layer, part.blocks, part.format));
        values.copies_.push_back(std::move(copy));
      }
    }
    return values;
  }

  // Reads the values of a token and KV head. out: [head_dim].
  void read(TokenRef token, int kv_head, std::span<float> out) const {
    std::size_t at = first_copies_[static_cast<std::size_t>(token.run)];
    const std::int32_t block_tokens = copies_[at].geometry().block_tokens;
    std::int32_t block = token.local / block_tokens;
    for (; block >= copies_[at].num_blocks(); ++at) {
      block -= copies_[at].num_blocks();
    }
    kernels::read_value(copies_[at].view(0), kv_head,
                        {.block = block, .offset = token.local % block_tokens}, out);
  }

 private:
  std::vector<kv_store::PagedPool> copies_;  // of parts of one format
  std::vector<std::size_t> first_copies_;    // [runs]
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
    std::vector<TokenRef> tokens;
    BlendResult result{.recomputed = std::vector<std::int64_t>(composition_.parts.size())};
    for (const std::int32_t index : chosen) {
      tokens.push_back(contexts_[static_cast<std::size_t>(index)]);
      ++result.recomputed[static_cast<std::size_t>(tokens.back().run)];
    }
    QUIRE_TRY(RecomputedRuns runs,
              recomputed_runs(context_.ledger, store_context(), composition_.uses(), tokens));
    if (const Status status = compute(runs); !status.ok()) {
      for (const kv::SegmentId own : runs.own) {
        context_.ledger.segments().drop(own);
      }
      return status.error();
    }
    result.uses = std::move(runs.uses);
    result.own = std::move(runs.own);
    result.recomputed_tokens = std::ssize(chosen);
    if (!contexts_.empty()) {
      result.share = static_cast<double>(chosen.size()) / static_cast<double>(contexts_.size());
    }
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

  [[nodiscard]] StoreContext store_context() const {
    return {.kernels = context_.kernels, .pool = context_.paged_pool};
  }

  [[nodiscard]] Result<std::span<float>> forward(BlendRows& rows,
                                                 model::ForwardProbe* probe = nullptr) {
    const model::ForwardBatch& batch = rows.build();
    return context_.decoder.forward(
        batch, rows.views(context_.views, context_.decoder.config().kv_layers()), probe);
  }

  [[nodiscard]] Status copy_blocks() {
    return chunks::copy_blocks(context_.ledger, context_.paged_pool);
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
    QUIRE_TRY(const StoredValues stored,
              StoredValues::of(context_.paged_pool, sealed, first_mixed().group_index));
    std::vector<double> scores;
    for (std::size_t first = 0; first < contexts_.size();) {
      BlendRows rows(sealed, {}, block_tokens());
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

  [[nodiscard]] model::LayerPlan first_mixed() const {
    return context_.decoder.config().layer_plan(kFirstMixedLayer);
  }

  [[nodiscard]] double deviation(const StoredValues& all_stored, TokenRef token,
                                 std::span<const float> values, std::size_t row) const {
    const model::LayerPlan plan = first_mixed();
    const auto head_dim = static_cast<std::size_t>(plan.head_dim);
    std::vector<float> stored(head_dim);
    double sum = 0;
    for (int head = 0; head < plan.kv_heads; ++head) {
      all_stored.read(token, head, stored);
      const auto first =
          (row * static_cast<std::size_t>(plan.kv_heads) + static_cast<std::size_t>(head)) *
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
    QUIRE_TRY(const SeqId id, composed_query());
    const ComposedSequence sequence(ledger.sequences(), id);
    QUIRE_TRY_STATUS(copy_blocks());
    std::vector<double> scores(contexts_.size());
    const auto last_run = static_cast<std::int32_t>(composition_.parts.size());
    for (std::int32_t first = 0; first < std::ssize(query);) {
      const std::int32_t count =
          std::min(context_.max_rows, static_cast<std::int32_t>(std::ssize(query)) - first);
      QUIRE_TRY_STATUS(ledger.sequences().extend(id, count));
      QUIRE_TRY_STATUS(copy_blocks());
      const std::vector<kv::RunView> runs = sequence.runs();
      BlendRows rows(runs, {}, block_tokens());
      for (std::int32_t i = first; i < first + count; ++i) {
        rows.add(query[static_cast<std::size_t>(i)], {last_run, i});
      }
      const model::ForwardBatch& batch = rows.build();
      model::ForwardProbe probe{.mass = mass_of(rows.covered(), scores)};
      QUIRE_TRY(
          [[maybe_unused]] const std::span<float> logits,
          context_.decoder.forward(
              batch, rows.views(context_.views, context_.decoder.config().kv_layers()), &probe));
      ledger.sequences().advance(id, count);
      first += count;
    }
    return scores;
  }

  // Opens a sequence of the query behind the composition. Where the pool's own format is written
  // block by block, the query has KV as it is computed: it is only looked at.
  [[nodiscard]] Result<SeqId> composed_query() {
    const kv::ComposeTail tail = {.tokens = *composition_.query.chunk->tokens,
                                  .position = composition_.query.position};
    kv::Segments& segments = context_.ledger.segments();
    const auto open = context_.ledger.config().open_format();
    return open ? segments.compose_in(*open, composition_.uses(), tail)
                : segments.compose(composition_.uses(), tail);
  }

  // Returns the part of `scores` of each entry's tokens; entries over other runs have none.
  [[nodiscard]] std::vector<std::span<double>> mass_of(std::span<const BlendRows::Covered> entries,
                                                       std::vector<double>& scores) const {
    std::vector<std::size_t> first(composition_.parts.size());  // score of a part's first token
    std::size_t next = 0;
    for (std::size_t part = 0; part < composition_.parts.size(); ++part) {
      first[part] = next;
      const kv::Chunk& chunk = *composition_.parts[part].chunk;
      next += chunk.type == ChunkType::kContext ? chunk.tokens->size() : 0;
    }
    std::vector<std::span<double>> mass;
    for (const BlendRows::Covered& entry : entries) {
      const auto part = static_cast<std::size_t>(entry.run);
      const bool context = part < composition_.parts.size() &&
                           composition_.parts[part].chunk->type == ChunkType::kContext;
      mass.push_back(
          context ? std::span(scores).subspan(first[part] + static_cast<std::size_t>(entry.first),
                                              static_cast<std::size_t>(entry.count))
                  : std::span<double>());
    }
    return mass;
  }

  // Computes earlier rows first, so that later ones find their KV.
  [[nodiscard]] Status compute(const RecomputedRuns& made) {
    QUIRE_TRY(const SeqId id, context_.ledger.segments().compose(made.uses));
    const ComposedSequence sequence(context_.ledger.sequences(), id);
    const std::vector<kv::RunView> views = sequence.runs();
    const std::span<const kv::RunView> runs = std::span(views).first(views.size() - 1);
    OpenedBlocks opened(context_.ledger, store_context(), made, runs);
    for (std::span<const TokenRef> rest = made.tokens; !rest.empty();) {
      const auto pass = rest.first(opened.tokens_of_pass(rest, context_.max_rows));
      rest = rest.subspan(pass.size());
      QUIRE_TRY(const std::span<const ReopenedBlock> blocks, opened.open(pass, rest));
      BlendRows rows(runs, blocks, block_tokens());
      for (const TokenRef token : pass) {
        const auto use = static_cast<std::size_t>(token.run);
        const kv::Segment& segment = *context_.ledger.segments().find(made.uses[use].segment);
        rows.add(segment.tokens()[static_cast<std::size_t>(token.local)], token);
      }
      QUIRE_TRY([[maybe_unused]] const std::span<float> logits, forward(rows));
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
