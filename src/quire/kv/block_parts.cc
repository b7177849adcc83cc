#include "quire/kv/block_parts.h"

#include <span>

#include "quire/base/ids.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/open_blocks.h"
#include "quire/kv/types.h"

namespace quire::kv {

BlockParts parts_of(std::span<const BlockId> blocks, FormatId format, FormatId last_format) {
  BlockParts parts;
  const bool differs = !blocks.empty() && format != last_format;
  const std::span<const BlockId> alike = blocks.first(blocks.size() - (differs ? 1 : 0));
  if (!alike.empty()) {
    parts.push_back({.blocks = alike, .format = format});
  }
  if (differs) {
    parts.push_back({.blocks = blocks.last(1), .format = last_format});
  }
  return parts;
}

BlockParts parts_of(const BlockTable& table) {
  return parts_of(table.ids(), table.format(), table.last_format());
}

BlockParts parts_of(const RunView& view) {
  BlockParts parts = parts_of(view.blocks, view.format, view.last_format);
  for (const OpenBlock& open : view.open_blocks) {
    parts.push_back({.blocks = {&open.block.id, 1}, .format = open.block.format()});
  }
  return parts;
}

}  // namespace quire::kv
