// What the ledger is made of; shared by its implementation and its check.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "quire/base/ids.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/sequence.h"
#include "quire/kv/shared_blocks.h"
#include "quire/kv/types.h"

namespace quire::kv {

struct Ledger::Impl {
  explicit Impl(const LedgerConfig& config) : shared(config) {}

  [[nodiscard]] Sequence& sequence(SeqId id);
  SeqId add(Sequence sequence);
  SegmentId name(std::shared_ptr<const Segment> segment);

  SharedBlocks shared;  // before everything that holds its blocks
  std::unordered_map<std::uint64_t, Sequence> sequences;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Segment>> segments;
  std::uint64_t last_id = 0;  // of sequences and segments
  std::int64_t tokens_reused = 0;
};

}  // namespace quire::kv
