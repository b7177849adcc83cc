// DraftModel: a smaller model that guesses what a larger one will say.
//
// Invariants
//   1. Its KV is in blocks of its own, which take their bytes from the engine's budget. There are
//      as many of them, of as many tokens, as the large model has.
//   2. A request has a sequence here from its first guess on, until it ends or is not asked for.
//   3. A guess that finds no block is no guess. Nothing waits, and no request fails for it.
//   4. Prompts are computed within the time that a step has left, some rows in each step.
//
// Thread rule: the engine thread, but for open().
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/drafts/draft_source.h"
#include "quire/drafts/guess_tree.h"
#include "quire/drafts/options.h"
#include "quire/engine/batch_builder.h"
#include "quire/engine/model_bundle.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/sched/types.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"
#include "quire/types.h"

namespace quire::engine {

class DraftModel final : public drafts::DraftSource {
 public:
  // Opens a model, on the CPU. kInvalidArgument where its tokenizer is not that of `large`.
  // kUnsupported for a model whose layers carry a state. Guesses have up to `width` tokens side by
  // side. Errors of open_model().
  [[nodiscard]] static Result<std::unique_ptr<DraftModel>> open(
      const kernels::KernelContext& context, const drafts::SpeculationOptions& options,
      const std::string& dtype, const ModelBundle& large);

  // Returns the bytes of its part of `budget`, where the large model's blocks have `large_bytes`.
  [[nodiscard]] std::int64_t part_of(std::int64_t budget, std::int64_t large_bytes,
                                     std::int32_t block_tokens) const;
  // Makes its blocks. Call it once. Errors of PagedPool::create(), kInvalidArgument for no block.
  [[nodiscard]] Status make_room(std::int64_t bytes, std::int32_t block_tokens);

  void propose(std::span<const drafts::DraftQuery> queries) override;
  void set_prompt_seconds(double seconds) override { prompt_seconds_left_ = seconds; }
  [[nodiscard]] double prompt_seconds() const override { return prompt_seconds_spent_; }
  void forget(RequestId request) override;
  [[nodiscard]] double seconds_to_begin(const drafts::DraftQuery& query) const override;
  // Returns the counts of its blocks, which are its own.
  [[nodiscard]] kv::LedgerCounts counts() const { return ledger_->counts(); }
  // Returns the bytes of its packed weights.
  [[nodiscard]] std::int64_t weight_bytes() const;

 private:
  // A guess in the making. Its sequences end in tokens behind which it grows next.
  struct Asked {
    const drafts::DraftQuery* query = nullptr;
    drafts::GuessTree tree;
    struct Tip {
      SeqId sequence;
      std::int32_t token = -1;  // of the tree; -1: the last certain one
    };
    std::vector<Tip> tips;  // on the request's own sequence first, then on forks of it
  };

  DraftModel(ModelBundle bundle, const drafts::SpeculationOptions& options)
      : bundle_(std::move(bundle)), name_(options.model), width_(options.width) {}
  [[nodiscard]] tensor::KVGeometry geometry(std::int32_t block_tokens) const;
  [[nodiscard]] model::Decoder& decoder() {
    return *bundle_.decoder;  // NOLINT(bugprone-unchecked-optional-access): open() made it
  }
  void close_all_but(std::span<const drafts::DraftQuery> queries);
  [[nodiscard]] std::optional<SeqId> follow(const drafts::DraftQuery& query);
  // Says how far a prompt is: all but its last tokens are computed, there was no block, or the time
  // is over.
  enum class Prompt : std::uint8_t { kComputed, kNoRoom, kGoesOn };
  [[nodiscard]] Prompt compute_most(SeqId sequence);
  [[nodiscard]] std::int32_t rows_in_time() const;
  [[nodiscard]] Result<std::span<float>> compute(std::span<const sched::ScheduledRun> runs,
                                                 std::int32_t logit_rows);
  [[nodiscard]] std::int32_t pending(SeqId sequence) const;
  void grow(Asked& asked, std::span<const float> logits);
  [[nodiscard]] SeqId fork(SeqId sequence);
  void close_forks(Asked& asked);
  void finish_grown();
  void give_up_some();

  ModelBundle bundle_;
  const std::string name_;
  const std::int32_t width_;
  std::optional<kv_store::PagedPool> pool_;
  std::unique_ptr<kv::Ledger> ledger_;
  std::vector<tensor::PagedKVView> views_;  // [layers]
  BatchBuilder builder_;
  std::unordered_map<std::uint64_t, SeqId> sequences_;  // by request
  // Tokens whose KV a request without a sequence finds, as far as was looked.
  mutable std::unordered_map<std::uint64_t, std::int32_t> findable_;
  double prompt_seconds_ = 0;  // of computing prompts; old ones count less
  double prompt_tokens_ = 0;
  double prompt_seconds_left_ = std::numeric_limits<double>::infinity();  // for this call
  double prompt_seconds_spent_ = 0;                                       // of that
  bool prompt_rows_ = false;               // true: this call has computed some of a prompt
  std::vector<Asked> asked_;               // queries that go on
  std::vector<SeqId> forks_;               // that guesses have opened
  std::vector<sched::ScheduledRun> runs_;  // [tips of all]
  std::vector<std::int32_t> logit_rows_;   // [runs]
  std::vector<kv::Growth> growths_;        // [runs]
};

}  // namespace quire::engine
