#include "quire/chunks/layer_blend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/chunks/blend.h"
#include "quire/chunks/blend_rows.h"
#include "quire/chunks/composed_sequence.h"
#include "quire/chunks/hidden_states.h"
#include "quire/chunks/recomputed_runs.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segments.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"

namespace quire::chunks {
namespace {

// Returns the layers that context tokens run through.
LayerRange range_of(const Blend& how, std::int32_t layers) {
  return how.layers && !how.only_layer ? *how.layers : LayerRange{.first = 0, .last = layers};
}

bool is_context(const kv::Part& part) { return part.chunk->type == ChunkType::kContext; }

// Returns the share of `tokens` tokens that their share of the layers is, rounded up.
std::int64_t tokens_of(LayerRange range, std::int32_t layers, std::int64_t tokens) {
  return (tokens * (range.last - range.first) + layers - 1) / layers;
}

class LayerBlender {
 public:
  LayerBlender(const BlendContext& context, const Blend& how,
               const kv::ResolvedComposition& composition)
      : context_(context),
        composition_(composition),
        layers_(context.decoder.config().layers),
        range_(range_of(how, layers_)) {
    for (std::size_t run = 0; run < composition.parts.size(); ++run) {
      const kv::Part& part = composition.parts[run];
      for (std::int32_t i = 0; is_context(part) && i < std::ssize(*part.chunk->tokens); ++i) {
        tokens_.push_back({static_cast<std::int32_t>(run), i});
      }
    }
  }

  [[nodiscard]] Result<BlendResult> run() {
    QUIRE_TRY(BlendResult result, own_segments());
    if (const Status computed = compute(result.uses); !computed.ok()) {
      drop(result.own);
      return computed.error();
    }
    return result;
  }

  // Takes K and V of one layer from rows that ran through all of them.
  [[nodiscard]] Result<BlendResult> run_only(std::int32_t layer) {
    QUIRE_TRY(const BlendResult exact, run());
    auto result = own_segments();
    for (std::size_t i = 0; result.ok() && i < exact.own.size(); ++i) {
      if (const Status copied = copy_layer(layer, exact.own[i], result->own[i]); !copied.ok()) {
        drop(result->own);
        result = copied.error();
      }
    }
    drop(exact.own);
    return result;
  }

 private:
  // Makes segments in which the context tokens may be written, with the KV that they have.
  [[nodiscard]] Result<BlendResult> own_segments() {
    BlendResult result{.uses = composition_.uses(), .share = share()};
    for (std::size_t run = 0; run < result.uses.size(); ++run) {
      const kv::Part& part = composition_.parts[run];
      const std::int64_t tokens = is_context(part) ? std::ssize(*part.chunk->tokens) : 0;
      result.recomputed.push_back(tokens_of(range_, layers_, tokens));
      result.recomputed_tokens += result.recomputed.back();
      if (tokens == 0) {
        continue;
      }
      std::vector<std::int32_t> all(static_cast<std::size_t>(tokens));
      std::iota(all.begin(), all.end(), 0);
      const auto own = context_.ledger.segments().derive(result.uses[run].segment, all);
      if (!own.ok()) {
        drop(result.own);
        [[maybe_unused]] const Status copied =  // orders must not outlive this call
            copy_blocks(context_.ledger, context_.paged_pool);
        return own.error();
      }
      result.uses[run].segment = *own;
      result.uses[run].rank.variant = kOwnVariants + static_cast<std::uint32_t>(run);
      result.own.push_back(*own);
    }
    if (const Status copied = copy_blocks(context_.ledger, context_.paged_pool); !copied.ok()) {
      drop(result.own);
      return copied.error();
    }
    return result;
  }

  [[nodiscard]] double share() const {
    return tokens_.empty() ? 0.0 : static_cast<double>(range_.last - range_.first) / layers_;
  }

  // Computes earlier rows first, so that later ones find their KV.
  [[nodiscard]] Status compute(std::span<const kv::SegmentUse> uses) {
    QUIRE_TRY(const SeqId id, context_.ledger.segments().compose(uses));
    const ComposedSequence sequence(context_.ledger.sequences(), id);
    const std::vector<kv::RunView> views = sequence.runs();
    const std::span<const kv::RunView> runs = std::span(views).first(uses.size());
    for (std::span<const TokenRef> rest = tokens_; !rest.empty();) {
      const auto pass =
          rest.first(std::min(rest.size(), static_cast<std::size_t>(context_.max_rows)));
      rest = rest.subspan(pass.size());
      BlendRows rows(runs, {}, context_.ledger.config().block_tokens);
      for (const TokenRef token : pass) {
        rows.add((*part_of(token).chunk->tokens)[static_cast<std::size_t>(token.local)], token);
      }
      const std::vector<float> hidden = hidden_of(pass);
      const model::LayerBand band{.first = range_.first, .last = range_.last, .before = hidden};
      model::ForwardBatch& batch = rows.build();
      batch.band = &band;
      QUIRE_TRY([[maybe_unused]] const std::span<float> none,
                context_.decoder.forward(batch, rows.views(context_.views, layers_)));
    }
    return {};
  }

  // Returns the rows that chunks have kept of these tokens; nothing for a band from layer 0 on.
  [[nodiscard]] std::vector<float> hidden_of(std::span<const TokenRef> pass) const {
    std::vector<float> hidden;
    if (range_.first == 0) {
      return hidden;
    }
    const auto width = static_cast<std::size_t>(context_.decoder.config().hidden_size);
    hidden.resize(pass.size() * width);
    for (std::size_t i = 0; i < pass.size(); ++i) {
      const std::optional<kv::SegmentId> segment = part_of(pass[i]).segment;
      const HiddenRows* kept = segment ? context_.hidden->find(*segment, range_.first) : nullptr;
      QUIRE_CHECK(kept != nullptr, "chunks keep hidden states before they are blended");
      kept->read(static_cast<std::size_t>(pass[i].local),
                 std::span(hidden).subspan(i * width, width));
    }
    return hidden;
  }

  [[nodiscard]] Status copy_layer(std::int32_t layer, kv::SegmentId from, kv::SegmentId to) {
    const kv::Segments segments = context_.ledger.segments();
    QUIRE_TRY(kv_store::PagedPool copy,
              context_.paged_pool.copy_of_layer(layer, segments.find(from)->blocks().ids()));
    return context_.paged_pool.write_layer(layer, segments.find(to)->blocks().ids(),
                                           copy.all_bytes());
  }

  [[nodiscard]] const kv::Part& part_of(TokenRef token) const {
    return composition_.parts[static_cast<std::size_t>(token.run)];
  }

  void drop(std::span<const kv::SegmentId> own) {
    for (const kv::SegmentId segment : own) {
      context_.ledger.segments().drop(segment);
    }
  }

  const BlendContext& context_;
  const kv::ResolvedComposition& composition_;
  const std::int32_t layers_;
  const LayerRange range_;
  std::vector<TokenRef> tokens_;  // of the contexts
};

}  // namespace

BlendCost layer_blend_cost(const Blend& how, const kv::ResolvedComposition& composition,
                           std::int32_t block_tokens, std::int32_t layers) {
  BlendCost cost;
  for (const kv::Part& part : composition.parts) {
    const std::int64_t tokens = is_context(part) ? std::ssize(*part.chunk->tokens) : 0;
    cost.tokens += tokens_of(range_of(how, layers), layers, tokens);
    cost.blocks += (tokens + block_tokens - 1) / block_tokens;
  }
  return cost;
}

Result<BlendResult> blend_layers(const BlendContext& context, const Blend& how,
                                 const kv::ResolvedComposition& composition) {
  LayerBlender blender(context, how, composition);
  return how.only_layer ? blender.run_only(*how.only_layer) : blender.run();
}

}  // namespace quire::chunks
