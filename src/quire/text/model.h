// Models: one piece of text to token ids.
//
// Thread rule: immutable but for benign memos; each call brings its own scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/types.h"

namespace quire::text {

// Working memory of one encode call, reused from piece to piece so that pieces allocate nothing.
struct ModelScratch {
  explicit ModelScratch(base::WorkMeter& work) : meter(&work) {}

  base::WorkMeter* meter;  // borrowed; counts the work
  // Symbols of a piece as a linked list; `next` is -1 at the end. `rank` and `result` are those of
  // the merge with the next symbol, if there is one.
  struct Symbol {
    std::int32_t symbol;
    std::int32_t previous;
    std::int32_t next;
    std::uint32_t rank = 0;
    std::int32_t result = -1;
  };
  // The best segmentation that ends at a byte.
  struct PathNode {
    double score = 0.0;
    std::int32_t id = -1;
    std::size_t begin = 0;
    bool reached = false;
  };
  std::vector<std::int32_t> units;
  std::vector<std::uint32_t> ranks;
  std::vector<Symbol> symbols;
  // Merges to try: the rank above, the place in `symbols` below.
  std::vector<std::uint64_t> first_merges;
  std::vector<std::uint64_t> merge_heap;
  std::vector<PathNode> path;
  std::vector<std::pair<std::size_t, std::size_t>> spans;
};

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `piece` (well-formed UTF-8, not empty) to `out`; any ids when the meter has
  // failed.
  virtual void tokenize(std::string_view piece, ModelScratch& scratch,
                        std::vector<TokenId>& out) const = 0;
};

}  // namespace quire::text
