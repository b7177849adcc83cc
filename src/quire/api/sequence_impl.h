// State of a BlockList and of a Sequence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/engine/engine.h"
#include "quire/result.h"
#include "quire/sequence.h"
#include "quire/sequences/sequence_service.h"

namespace quire {

struct BlockList::Impl {
  std::vector<sequences::BlockRun> runs;
  std::vector<std::weak_ptr<const void>> sources;  // the handle is fresh as long as all live
};

struct Sequence::Impl {
  explicit Impl(std::shared_ptr<LLM::Impl> owner, sequences::StateRef first)
      : llm(std::move(owner)), state(std::move(first)) {}

  // Returns the state to a call that may change it. No other call gets it until end().
  [[nodiscard]] Result<sequences::StateRef> begin();
  // Ends such a call and sets the next state. nullptr leaves the state unchanged.
  void end(sequences::StateRef next);
  // Returns the state to a call that does not change it.
  [[nodiscard]] Result<sequences::StateRef> look() const;
  // Returns the state even once the LLM is closed. Null when the sequence is closed, and in a
  // forked child.
  [[nodiscard]] sequences::StateRef known() const;

  const std::shared_ptr<LLM::Impl> llm;
  mutable std::mutex mutex;   // guards what follows
  sequences::StateRef state;  // null once closed
  std::map<std::uint64_t, sequences::StateRef> marks;
  bool busy = false;
};

[[nodiscard]] BlockList make_block_list(std::vector<sequences::BlockRun> runs,
                                        std::vector<std::weak_ptr<const void>> sources = {});
// Returns kInvalidComposition for a handle whose source has changed.
[[nodiscard]] Status check_fresh(const BlockList& blocks);
[[nodiscard]] Sequence make_sequence(std::shared_ptr<LLM::Impl> llm, sequences::StateRef state);

}  // namespace quire
