// Rows over the runs of a composed sequence, for passes outside of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "quire/attention/entry.h"
#include "quire/base/ids.h"
#include "quire/kv/composition.h"
#include "quire/kv/sequences.h"
#include "quire/kv/types.h"
#include "quire/model/forward_batch.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::chunks {

// One token of a composition: the run in which it stands, and its place there.
struct TokenRef {
  std::int32_t run = 0;
  std::int32_t local = 0;
};

// Every context token of a composition.
struct Contexts {
  std::int64_t first = 0;  // index of the first one among all tokens
  std::vector<TokenRef> tokens;
};
[[nodiscard]] Contexts contexts_of(const kv::ResolvedComposition& composition);

// Rows over the runs of a sequence as a batch of its own. Borrows the runs.
class ComposedRows {
 public:
  ComposedRows(std::span<const kv::RunView> runs, std::int32_t block_tokens)
      : runs_(runs), block_tokens_(block_tokens) {}

  // Adds a row. Rows must ascend by run and token.
  void add(TokenId id, TokenRef token);
  // Builds the batch. Every run is an entry: rows behind it see all of it, its own rows the tokens
  // up to their own. Valid while the rows live.
  model::ForwardBatch& build();
  // Returns the views that the batch names among those of all formats. After build().
  [[nodiscard]] std::span<const tensor::PagedKVView> views(std::span<const tensor::PagedKVView> all,
                                                           int layers) const {
    return all.first(static_cast<std::size_t>(layers) * formats_);
  }

  [[nodiscard]] std::size_t size() const { return ids_.size(); }

 private:
  std::span<const kv::RunView> runs_;
  std::int32_t block_tokens_;
  std::vector<TokenId> ids_;
  std::vector<TokenRef> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<std::int32_t> use_positions_;
  std::vector<tensor::KVSlot> slots_;
  std::vector<std::uint8_t> slot_formats_;
  std::uint8_t formats_ = 1;  // named by slots and entries
  std::deque<std::vector<attention::EntryRow>> entry_rows_;
  std::deque<std::vector<std::int32_t>> entry_blocks_;
  std::vector<attention::Entry> entries_;
  model::ForwardBatch batch_;
};

// A composed sequence that is closed by its destructor. Borrows `sequences`.
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
