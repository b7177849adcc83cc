// Random operations on chunks and what is composed of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "quire/chunks.h"
#include "random_sequences.h"
#include "random_site.h"

namespace quire {

class RandomChunks {
 public:
  RandomChunks(Site& site, RandomSequences& sequences);

  [[nodiscard]] std::vector<Operation> operations();
  void check();
  void add_blocks(BlockSet& held) const;
  void clear();

 private:
  struct Known {
    bool pinned = false;
    std::vector<std::int32_t> blocks;  // of all its KV; none: only on disk, or a query
  };

  bool register_chunk();
  bool delete_chunk();
  bool pin();
  bool evict_unused();
  bool coalesce();
  bool compose();
  bool logits();
  bool compose_sequence();
  bool generate();
  // Returns whether it failed, which it may for want of blocks and for chunks that are not
  // registered.
  template <class T>
  [[nodiscard]] bool refused(const T& result, const CompositionSpec& spec, std::int64_t tokens);
  void check_one(const ChunkInfo& info);
  [[nodiscard]] const Oracle::Chunk& any_chunk();
  // Mostly of chunks that are registered.
  [[nodiscard]] CompositionSpec any_spec();
  [[nodiscard]] bool worth_asking(const CompositionSpec& spec);
  [[nodiscard]] bool has_all(const CompositionSpec& spec) const;
  [[nodiscard]] std::vector<std::int32_t> blocks_of(const ChunkInfo& info) const;

  Site& site_;
  RandomSequences& sequences_;
  std::map<std::string, Known> known_;
  std::set<std::string> perhaps_;  // of a registration that failed half way
  double evictions_ = 0;
  double coalesced_ = 0;
  bool changed_ = true;
};

}  // namespace quire
