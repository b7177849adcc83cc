// Step 4, a part: the sealed runs that the sequences of a batch use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/engine/entry_list.h"
#include "quire/kv/types.h"

namespace quire::engine {

// Collects segments in use and makes one entry of each, whoever uses it. Keeps its arrays between
// batches.
class SealedUses {
 public:
  void clear() { uses_.clear(); }
  // Adds the sealed runs of a sequence, which these rows see whole. A run whose last block has
  // another format is two runs, since an entry has one format.
  void add(std::span<const kv::RunView> views, RowRange rows, std::int32_t block_tokens);
  // Adds entries of all runs with their rows. Without `share` each use gets an entry of its own.
  void list(bool share, EntryList& entries);

 private:
  struct Use {
    kv::RunView view;
    std::int32_t occurrence = 0;  // times that the sequence has used these blocks before
    RowRange rows;
  };
  void add_run(const kv::RunView& view, RowRange rows, std::size_t first);

  std::vector<Use> uses_;
};

}  // namespace quire::engine
