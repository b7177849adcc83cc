#include "quire/checkpoints.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/api/sequence_impl.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/contexts/checkpoints.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sequence.h"
#include "quire/sequences/sequence_state.h"

namespace quire {

using contexts::CheckpointService;

struct CheckpointManager::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (llm != nullptr && llm->home.left()) {  // a child may not close its parent's SQLite
      [[maybe_unused]] const auto* const leaked = service.release();
    }
  }

  // Makes one call at a time, and none once the LLM is closed.
  template <class Call>
  auto run(Call call) -> decltype(call(std::declval<runtime::Runtime&>())) {
    QUIRE_TRY(const auto runtime, llm->open());
    const std::lock_guard lock(mutex);
    return call(*runtime);
  }
  [[nodiscard]] Result<std::vector<CheckpointService::Named>> look_at(
      std::span<const NamedSequence> sequences) const;

  std::shared_ptr<LLM::Impl> llm;
  std::mutex mutex;
  std::unique_ptr<CheckpointService> service;
};

Result<std::vector<CheckpointService::Named>> CheckpointManager::Impl::look_at(
    std::span<const NamedSequence> sequences) const try {
  std::vector<CheckpointService::Named> named;
  for (const NamedSequence& given : sequences) {
    if (given.sequence == nullptr || given.sequence->impl().llm != llm) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("sequence ", base::quoted(given.name), " is not of this LLM")};
    }
    QUIRE_TRY(sequences::StateRef state, given.sequence->impl().look());
    named.push_back({.name = given.name, .state = std::move(state)});
  }
  return named;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

CheckpointManager::CheckpointManager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointManager::CheckpointManager(CheckpointManager&&) noexcept = default;
CheckpointManager& CheckpointManager::operator=(CheckpointManager&&) noexcept = default;
CheckpointManager::~CheckpointManager() = default;

Result<CheckpointManager> CheckpointManager::open(const LLM& llm, const std::string& folder,
                                                  const CheckpointOptions& options) try {
  QUIRE_TRY(const auto runtime, llm.impl().open());
  auto impl = std::make_unique<Impl>();
  impl->llm = llm.shared_impl();
  QUIRE_TRY(impl->service, CheckpointService::open(*runtime, folder, options));
  return CheckpointManager(std::move(impl));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<CheckpointInfo> CheckpointManager::save(std::span<const NamedSequence> sequences,
                                               const std::string& name) try {
  QUIRE_TRY(const auto named, impl_->look_at(sequences));
  return impl_->run([&](auto& runtime) { return impl_->service->save(runtime, named, name); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::optional<CheckpointInfo>> CheckpointManager::maybe_save(
    std::span<const NamedSequence> sequences) try {
  using Saved = std::optional<CheckpointInfo>;
  QUIRE_TRY(const auto named, impl_->look_at(sequences));
  return impl_->run([&](auto& runtime) -> Result<Saved> {
    if (!impl_->service->due(named)) {
      return Saved();
    }
    QUIRE_TRY(CheckpointInfo saved, impl_->service->save(runtime, named, ""));
    return Saved(std::move(saved));
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<CheckpointInfo>> CheckpointManager::list() const try {
  return impl_->run([&](auto&) { return impl_->service->list(); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<CheckpointInfo> CheckpointManager::latest() const try {
  return impl_->run([&](auto&) { return impl_->service->latest(); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<LoadedSequence>> CheckpointManager::load(
    const std::string& name, std::span<const std::string> only,
    const LoadSequenceOptions& options) try {
  if (!options.salt.empty()) {
    return {ErrorCode::kInvalidArgument,
            "the salt of a checkpoint's sequences is its tenant; open the manager with that one"};
  }
  QUIRE_TRY(auto loaded, impl_->run([&](auto& runtime) {
    return impl_->service->load(runtime, name, only, options.wait);
  }));
  std::vector<LoadedSequence> sequences;
  sequences.reserve(loaded.size());
  for (CheckpointService::Named& named : loaded) {
    sequences.push_back({.name = std::move(named.name),
                         .sequence = make_sequence(impl_->llm, std::move(named.state))});
  }
  return sequences;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<bool> CheckpointManager::remove(const std::string& name) try {
  return impl_->run([&](auto&) { return impl_->service->remove(name); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::int64_t> CheckpointManager::cleanup(std::int64_t keep) try {
  return impl_->run([&](auto&) { return impl_->service->cleanup(keep); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<CheckpointInfo> CheckpointManager::compact(const std::string& name) try {
  return impl_->run([&](auto&) { return impl_->service->compact(name); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

}  // namespace quire
