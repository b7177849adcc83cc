// The blocks of a run by their formats.
#pragma once

#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"

namespace quire::kv {

class BlockTable;
struct RunView;

// Blocks of one format that follow each other in a run.
struct BlockPart {
  std::span<const BlockId> blocks;
  FormatId format;
};
using BlockParts = std::vector<BlockPart>;

// Returns the blocks of a run: those of `format`, and the last one where it has another format. No
// part is empty. Valid as long as what it is made of.
[[nodiscard]] BlockParts parts_of(std::span<const BlockId> blocks, FormatId format,
                                  FormatId last_format);
[[nodiscard]] BlockParts parts_of(const BlockTable& table);
// Returns the same of a view, with its open blocks.
[[nodiscard]] BlockParts parts_of(const RunView& view);

}  // namespace quire::kv
