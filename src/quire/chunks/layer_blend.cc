#include "quire/chunks/layer_blend.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/chunks/band_states.h"
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
#include "quire/model/config.h"
#include "quire/model/forward_batch.h"
#include "quire/model/layer_plan.h"
#include "quire/model/state_maps.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

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
    Status computed = compute(result.uses);
    if (computed.ok()) {
      computed = replace_maps(result, [this](std::int32_t layer) { return comes_from_run(layer); });
    }
    if (!computed.ok()) {
      drop(result.own);
      return computed.error();
    }
    return result;
  }

  // Takes K and V of one layer from rows that ran through all of them.
  [[nodiscard]] Result<BlendResult> run_only(std::int32_t layer) {
    QUIRE_TRY(const BlendResult exact, run());
    auto result = own_segments();
    Status copied = result.ok()
                        ? replace_maps(*result, [&](std::int32_t each) { return each == layer; })
                        : Status();
    for (std::size_t i = 0; result.ok() && i < exact.own.size(); ++i) {
      copied = copied.ok() ? copy_layer(layer, exact.own[i], result->own[i]) : copied;
    }
    if (!copied.ok()) {
      drop(result->own);
      result = copied.error();
    }
    drop(exact.own);
    return result;
  }

 private:
  // Returns whether KV and maps of a layer come from the run, as LayerBand::stores_layer() says of
  // the layers that run.
  [[nodiscard]] bool comes_from_run(std::int32_t layer) const {
    return layer <= range_.last && (layer > range_.first || (layer == 0 && range_.first == 0));
  }

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
    const auto maps = context_.ledger.segments().maps_before(id);
    const auto first_run = tokens_.empty() ? std::size_t{0} : run_of(tokens_.front());
    QUIRE_TRY(BandStates states, BandStates::behind(context_, std::span(maps).first(first_run)));
    for (std::span<const TokenRef> rest = tokens_; !rest.empty();) {
      const auto pass = rest.first(tokens_of_pass(rest));
      rest = rest.subspan(pass.size());
      BlendRows rows(runs, {}, context_.ledger.config().block_tokens);
      for (const TokenRef token : pass) {
        rows.add((*part_of(token).chunk->tokens)[static_cast<std::size_t>(token.local)], token);
      }
      const std::vector<float> hidden = hidden_of(pass);
      const model::LayerBand band{.first = range_.first, .last = range_.last, .before = hidden};
      model::ForwardBatch& batch = rows.build();
      batch.band = &band;
      states.add_to(batch, maps_of(pass.front()), pass.front().local);
      QUIRE_TRY([[maybe_unused]] const std::span<float> none,
                context_.decoder.forward(
                    batch, rows.views(context_.views, context_.decoder.config().kv_layers())));
      if (has_states() && (rest.empty() || rest.front().run != pass.front().run)) {
        QUIRE_CHECK(maps_.has_value(), "begun with the first token of a chunk");
        QUIRE_TRY(fresh_.emplace_back(), maps_->pack(states.bytes()));
        maps_.reset();
      }
    }
    return {};
  }

  [[nodiscard]] bool has_states() const { return context_.decoder.config().state_layers() > 0; }
  [[nodiscard]] static std::size_t run_of(TokenRef token) {
    return static_cast<std::size_t>(token.run);
  }

  // Returns how many of the tokens the next pass computes: those of one chunk, where a state goes
  // through them.
  [[nodiscard]] std::size_t tokens_of_pass(std::span<const TokenRef> tokens) const {
    const auto next = std::ranges::find_if(
        tokens, [&](TokenRef token) { return token.run != tokens.front().run; });
    const auto most =
        has_states() ? static_cast<std::size_t>(next - tokens.begin()) : tokens.size();
    return std::min(most, static_cast<std::size_t>(context_.max_rows));
  }

  // Returns the maps of the chunk of a token, from its first token on.
  [[nodiscard]] model::StateMaps* maps_of(TokenRef token) {
    if (has_states() && token.local == 0) {
      maps_.emplace(context_.decoder.config(),
                    static_cast<std::int32_t>(part_of(token).chunk->tokens->size()),
                    context_.paged_pool.geometry().dtype == tensor::DType::kFloat32);
    }
    return maps_ ? &*maps_ : nullptr;
  }

  // Gives the own segments maps of their own: those of the pass for layers that it `takes`, and
  // else those that the chunks have kept.
  [[nodiscard]] Status replace_maps(const BlendResult& result,
                                    const std::function<bool(std::int32_t layer)>& takes) {
    const kv::Segments& known = context_.ledger.segments();
    const std::int64_t block_bytes = context_.paged_pool.geometry().block_bytes();
    for (std::size_t i = 0; i < fresh_.size(); ++i) {
      QUIRE_TRY(const std::vector<std::byte> stored,
                read_maps(context_, known.find(result.own[i])->maps()->ids()));
      QUIRE_TRY(std::vector<std::byte> merged,
                model::merge_maps(context_.decoder.config(), stored, fresh_[i], takes));
      const std::int64_t blocks = (std::ssize(merged) + block_bytes - 1) / block_bytes;
      merged.resize(static_cast<std::size_t>(blocks * block_bytes));
      QUIRE_TRY_STATUS(
          context_.ledger.segments().hold_maps(result.own[i], static_cast<std::int32_t>(blocks)));
      QUIRE_TRY_STATUS(copy_blocks(context_.ledger, context_.paged_pool));
      QUIRE_TRY_STATUS(
          context_.paged_pool.write_blocks(known.find(result.own[i])->maps()->ids(), merged));
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

  // Does nothing for a layer without KV of its own.
  [[nodiscard]] Status copy_layer(std::int32_t of, kv::SegmentId from, kv::SegmentId to) {
    const model::LayerPlan plan =
        context_.decoder.config().layer_plan(static_cast<std::size_t>(of));
    if (plan.mixer != model::MixerKind::kAttention || !plan.stores_kv) {
      return {};
    }
    const std::int32_t layer = plan.group_index;
    const kv::Segments segments = context_.ledger.segments();
    const std::span<const BlockId> source = segments.find(from)->blocks().ids();
    const std::span<const BlockId> target = segments.find(to)->blocks().ids();
    // A head that is stored in parts has them side by side in a copy, and not where it is written.
    const std::size_t at_once = context_.decoder.config().has_uneven_kv() ? 1 : source.size();
    for (std::size_t i = 0; i < source.size(); i += at_once) {
      QUIRE_TRY(kv_store::PagedPool copy,
                context_.paged_pool.copy_of_layer(layer, source.subspan(i, at_once)));
      QUIRE_TRY_STATUS(
          context_.paged_pool.write_layer(layer, target.subspan(i, at_once), copy.all_bytes()));
    }
    return {};
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
  // Maps of the chunk that is being computed, where layers carry a state. Packed ones of those that
  // are there, in the order of BlendResult::own.
  std::optional<model::StateMaps> maps_;
  std::vector<std::vector<std::byte>> fresh_;
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
