#include "quire/chunks/hidden_pass.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/chunks/band_states.h"
#include "quire/chunks/blend.h"
#include "quire/chunks/blend_rows.h"
#include "quire/chunks/composed_sequence.h"
#include "quire/chunks/recomputed_runs.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::chunks {

Result<std::vector<float>> hidden_before(const BlendContext& context,
                                         std::span<const kv::SegmentUse> uses, std::int32_t layer) {
  kv::Ledger& ledger = context.ledger;
  QUIRE_TRY(const SeqId id, ledger.segments().compose(uses));
  const ComposedSequence sequence(ledger.sequences(), id);
  QUIRE_TRY_STATUS(copy_blocks(ledger, context.paged_pool));
  const std::vector<kv::RunView> runs = sequence.runs();
  const std::span<const kv::RunView> sealed = std::span(runs).first(uses.size());
  const std::span<const TokenId> tokens = ledger.segments().find(uses.back().segment)->tokens();
  const auto width = static_cast<std::size_t>(context.decoder.config().hidden_size);
  std::vector<float> hidden(tokens.size() * width);
  const auto last_run = static_cast<std::int32_t>(uses.size()) - 1;
  const auto maps = ledger.segments().maps_before(id);
  QUIRE_TRY(BandStates states, BandStates::behind(context, std::span(maps).first(uses.size() - 1)));
  for (std::size_t first = 0; first < tokens.size();) {
    const std::size_t count =
        std::min(tokens.size() - first, static_cast<std::size_t>(context.max_rows));
    BlendRows rows(sealed, {}, ledger.config().block_tokens);
    for (std::size_t i = first; i < first + count; ++i) {
      rows.add(tokens[i], {last_run, static_cast<std::int32_t>(i)});
    }
    const model::LayerBand band{.first = 0,
                                .last = layer,
                                .behind = std::span(hidden).subspan(first * width, count * width),
                                .stores = false};
    model::ForwardBatch& batch = rows.build();
    batch.band = &band;
    states.add_to(batch, nullptr, static_cast<std::int32_t>(first));
    QUIRE_TRY([[maybe_unused]] const std::span<float> none,
              context.decoder.forward(
                  batch, rows.views(context.views, context.decoder.config().kv_layers())));
    first += count;
  }
  return hidden;
}

}  // namespace quire::chunks
