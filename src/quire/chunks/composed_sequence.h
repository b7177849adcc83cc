// ComposedSequence: a composed sequence that its destructor closes.
#pragma once

#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"

namespace quire::chunks {

// Borrows `sequences`. Engine thread.
class ComposedSequence {
 public:
  ComposedSequence(kv::Sequences& sequences, SeqId id) : sequences_(&sequences), id_(id) {}
  ~ComposedSequence() { sequences_->close(id_); }
  ComposedSequence(const ComposedSequence&) = delete;
  ComposedSequence& operator=(const ComposedSequence&) = delete;
  [[nodiscard]] SeqId id() const { return id_; }
  [[nodiscard]] std::vector<kv::RunView> runs() const { return sequences_->runs(id_); }

 private:
  kv::Sequences* sequences_;
  SeqId id_;
};

}  // namespace quire::chunks
