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
  std::vector<std::weak_ptr<const void>> sources;  // as long as all live, the handle is fresh
};

struct Sequence::Impl {
  explicit Impl(std::shared_ptr<LLM::Impl> owner, sequences::StateRef first)
      : llm(std::move(owner)), state(std::move(first)) {}

  // The state, for a call that may change it: nobody else gets it until `end`.
  [[nodiscard]] Result<sequences::StateRef> begin();
  // nullptr: unchanged.
  void end(sequences::StateRef next);
  // For a call that leaves it.
  [[nodiscard]] Result<sequences::StateRef> look() const;
  // Also once the LLM is closed. Null when the sequence is, and in a forked child.
  [[nodiscard]] sequences::StateRef known() const;

  const std::shared_ptr<LLM::Impl> llm;
  mutable std::mutex mutex;   // guards what follows
  sequences::StateRef state;  // null once closed
  std::map<std::uint64_t, sequences::StateRef> marks;
  bool busy = false;
};

[[nodiscard]] BlockList make_block_list(std::vector<sequences::BlockRun> runs,
                                        std::vector<std::weak_ptr<const void>> sources = {});
// kInvalidComposition for a handle whose source has changed.
[[nodiscard]] Status check_fresh(const BlockList& blocks);
[[nodiscard]] Sequence make_sequence(std::shared_ptr<LLM::Impl> llm, sequences::StateRef state);

}  // namespace quire
