// Models: one piece of text to token ids.
//
// Thread rule: immutable but for benign memos; each call brings its own scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "quire/types.h"

namespace quire::text {

// Working memory of one encode call, reused from piece to piece so that pieces allocate nothing.
struct ModelScratch {
  // Symbols of a piece as a linked list; `next` is -1 at the end. A merged-away symbol is -1.
  struct Symbol {
    std::int32_t symbol;
    std::int32_t previous;
    std::int32_t next;
  };
  // A merge of symbols[at] with the one behind it, if they are still `left` and `right`.
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;
    std::int32_t left;
    std::int32_t right;
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
  std::vector<Candidate> heap;
  std::vector<PathNode> path;
  std::vector<std::pair<std::size_t, std::size_t>> spans;
};

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `piece` (well-formed UTF-8, not empty) to `out`.
  virtual void tokenize(std::string_view piece, ModelScratch& scratch,
                        std::vector<TokenId>& out) const = 0;
};

}  // namespace quire::text
