// CheckpointService: states of sequences into the checkpoints of a store and back
// (quire/checkpoints.h).
//
// Blocks are named, reserved and taken over on the engine thread. Bytes are copied in the caller's,
// while the state that has them cannot change and nobody else sees those that are filled.
//
// Thread rule: one thread at a time, not the engine's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/types.h"
#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sequence_types.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/sequence_service.h"
#include "quire/types.h"

namespace quire::contexts {

// Checks the options by themselves (CheckpointOptions::validate).
// Errors: kInvalidArgument names the option, its value and the values that are allowed.
[[nodiscard]] Status check_options(const CheckpointOptions& options);

class CheckpointService {
 public:
  struct Named {
    std::string name;
    sequences::StateRef state;
  };

  // Opens the checkpoints in `folder`. An empty tenant is the salt of everybody at the engine.
  [[nodiscard]] static Result<std::unique_ptr<CheckpointService>> open(
      const runtime::Runtime& runtime, const std::string& folder, const CheckpointOptions& options);

  [[nodiscard]] Result<CheckpointInfo> save(runtime::Runtime& runtime,
                                            std::span<const Named> sequences,
                                            const std::string& name);
  [[nodiscard]] bool due(std::span<const Named> sequences) const;
  // Loads the sequences of a checkpoint. `wait` is that of TierService::restore.
  [[nodiscard]] Result<std::vector<Named>> load(runtime::Runtime& runtime, const std::string& name,
                                                std::span<const std::string> only, bool wait);

  [[nodiscard]] Result<std::vector<CheckpointInfo>> list() const;
  [[nodiscard]] Result<CheckpointInfo> latest() const;
  [[nodiscard]] Result<bool> remove(const std::string& name) { return manager_->remove(name); }
  [[nodiscard]] Result<std::int64_t> cleanup(std::int64_t keep);
  [[nodiscard]] Result<CheckpointInfo> compact(const std::string& name);

 private:
  CheckpointService(kv_store::Store store, std::string tenant)
      : store_(std::move(store)), tenant_(std::move(tenant)) {}
  [[nodiscard]] Status check_tenant(const Named& named) const;
  // Describes a sequence; `held` gets what the description borrows.
  [[nodiscard]] static Result<kv_store::LiveSequence> describe(
      runtime::Runtime& runtime, const Named& named, std::vector<sequences::StateRef>& held);
  // Loads one sequence. `whole` names objects that need not be verified again.
  [[nodiscard]] Result<sequences::StateRef> load(runtime::Runtime& runtime,
                                                 const kv_store::SavedSequence& saved,
                                                 const std::set<std::string>& whole,
                                                 bool wait) const;
  [[nodiscard]] Result<std::vector<Named>> load(runtime::Runtime& runtime,
                                                const kv_store::Checkpoint& checkpoint,
                                                std::span<const std::string> only, bool wait);
  [[nodiscard]] Result<std::vector<Named>> load_newest(runtime::Runtime& runtime,
                                                       std::span<const std::string> only,
                                                       bool wait);

  kv_store::Store store_;
  std::string tenant_;
  std::unique_ptr<kv_store::CheckpointManager> manager_;  // manager of the store; set by open
  std::map<std::string, std::vector<TokenId>>
      saved_;  // tokens that were saved or loaded last, by name
};

}  // namespace quire::contexts
