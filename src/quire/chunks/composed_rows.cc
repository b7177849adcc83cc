#include "quire/chunks/composed_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "quire/base/ids.h"
#include "quire/chunk_types.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::chunks {

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

void ComposedRows::add(TokenId id, TokenRef token) {
  const kv::RunView& run = runs_[static_cast<std::size_t>(token.run)];
  ids_.push_back(id);
  tokens_.push_back(token);
  positions_.push_back(token.local);
  use_positions_.push_back(run.start_position + token.local);
  slots_.push_back(
      {.block = run.blocks[static_cast<std::size_t>(token.local / block_tokens_)].value,
       .offset = token.local % block_tokens_});
  slot_formats_.push_back(run.format.value);
}

model::ForwardBatch& ComposedRows::build() {
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

}  // namespace quire::chunks
