#include "quire/context.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/api/prompt_text.h"
#include "quire/api/sequence_impl.h"
#include "quire/base/no_memory.h"
#include "quire/contexts/context.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/text/utf8.h"

namespace quire {
namespace {

// The thread says so for as long as this lives, also where what follows an answer throws.
class Answering {
 public:
  explicit Answering(std::atomic<std::thread::id>& thread) : thread_(thread) {
    thread_ = std::this_thread::get_id();
  }
  ~Answering() { thread_ = std::thread::id(); }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

 private:
  std::atomic<std::thread::id>& thread_;
};

}  // namespace

struct ContextManager::Impl {
  Impl() = default;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (llm != nullptr && llm->home.left()) {
      [[maybe_unused]] const auto* const leaked = context.release();  // its thread is not here
    }
  }

  // Tells whether this thread runs a callback of an answer. Such a callback that called the context
  // would wait for itself.
  [[nodiscard]] bool is_answering_here() const { return answering == std::this_thread::get_id(); }
  [[nodiscard]] Status check_not_answering_here() const {
    return is_answering_here()
               ? Status(ErrorCode::kInvalidArgument,
                        "the context is answering; what follows the answer must not call it")
               : Status();
  }

  // Makes one call at a time, and none once the LLM is closed.
  template <class Call>
  auto run(Call call) -> decltype(call(std::declval<contexts::Context&>())) {
    QUIRE_TRY([[maybe_unused]] const auto runtime, llm->open());
    QUIRE_TRY_STATUS(check_not_answering_here());
    const std::lock_guard lock(mutex);
    return call(*context);
  }
  // Makes a call also once the LLM is closed, and while the context is answering here.
  template <class Call>
  auto look(Call call) const -> Result<decltype(call(std::declval<const contexts::Context&>()))> {
    QUIRE_TRY_STATUS(llm->home.check());
    std::unique_lock lock(mutex, std::defer_lock);
    if (!is_answering_here()) {
      lock.lock();
    }
    return call(std::as_const(*context));
  }

  std::shared_ptr<LLM::Impl> llm;
  mutable std::mutex mutex;
  std::atomic<std::thread::id> answering;  // thread that is in infer()
  std::unique_ptr<contexts::Context> context;
};

ContextManager::ContextManager(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ContextManager::ContextManager(ContextManager&&) noexcept = default;
ContextManager& ContextManager::operator=(ContextManager&&) noexcept = default;
ContextManager::~ContextManager() = default;

Result<ContextManager> ContextManager::open(const LLM& llm, const ContextOptions& options) try {
  QUIRE_TRY(const auto runtime, llm.impl().open());
  auto impl = std::make_unique<Impl>();
  impl->llm = llm.shared_impl();
  QUIRE_TRY(impl->context, contexts::Context::open(runtime, options));
  return ContextManager(std::move(impl));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> ContextManager::add(const Prompt& content, const ItemOptions& options,
                                        const Interrupt& interrupted) try {
  return impl_->run(
      [&](auto& context) { return context.add(well_formed(content), options, interrupted); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::activate(const std::string& item) try {
  return impl_->run([&](auto& context) { return context.set_active(item, true); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::deactivate(const std::string& item) try {
  return impl_->run([&](auto& context) { return context.set_active(item, false); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::tag(const std::string& item, const std::string& tag) try {
  return impl_->run([&](auto& context) { return context.tag(item, tag); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ContextItem> ContextManager::show(const std::string& item) const try {
  return impl_->run([&](auto& context) { return context.show(item); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::check_open() const try {
  QUIRE_TRY([[maybe_unused]] const auto runtime, impl_->llm->open());
  return impl_->check_not_answering_here();
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<ContextItem>> ContextManager::items() const try {
  return impl_->look([](const auto& context) { return context.items(); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ContextStats> ContextManager::stats() const try {
  return impl_->look([](const auto& context) { return context.stats(); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<ReusePart>> ContextManager::explain() const try {
  return impl_->run([](const auto& context) { return context.explain(); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<BlockList> ContextManager::conversation_blocks(const Interrupt& interrupted) try {
  return impl_->run([&](auto& context) -> Result<BlockList> {
    QUIRE_TRY(auto runs, context.runs(true, interrupted));
    return make_block_list(std::move(runs), {context.epoch()});
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<BlockList> ContextManager::active_blocks(const Interrupt& interrupted) try {
  return impl_->run([&](auto& context) -> Result<BlockList> {
    QUIRE_TRY(auto runs, context.runs(false, interrupted));
    return make_block_list(std::move(runs), {context.epoch()});
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<ContextManager::Answer> ContextManager::infer(const std::optional<std::string>& text,
                                                     const SamplingParams& params,
                                                     const Interrupt& interrupted,
                                                     const Follow& follow,
                                                     const RequestOptions& options) try {
  return impl_->run([&](auto& context) {
    const Answering here(impl_->answering);
    const auto asked = text ? std::optional(text::repair_utf8(*text)) : std::nullopt;
    return context.infer(asked, params, interrupted, follow, options);
  });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::string> ContextManager::compose(std::span<const std::string> items,
                                            const std::string& name,
                                            const Interrupt& interrupted) try {
  return impl_->run([&](auto& context) { return context.compose(items, name, interrupted); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::int64_t> ContextManager::populate(const Interrupt& interrupted) try {
  return impl_->run([&](auto& context) { return context.populate(interrupted); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::unload(const std::string& item, bool drop) try {
  return impl_->run([&](auto& context) { return context.unload(item, drop); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::set_retention(const std::string& item, const ItemRetention& retention) try {
  return impl_->run([&](auto& context) { return context.set_retention(item, retention); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::save(const std::string& item, const Interrupt& interrupted) try {
  return impl_->run([&](auto& context) { return context.save(item, interrupted); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::restore(const std::string& item, const Interrupt& interrupted) try {
  return impl_->run([&](auto& context) { return context.restore(item, interrupted); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status ContextManager::erase(const std::string& item, bool wipe) try {
  return impl_->run([&](auto& context) { return context.erase(item, wipe); });
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

std::int64_t ContextManager::clear() {
  if (impl_->is_answering_here() || impl_->llm->home.left()) {
    return 0;
  }
  const std::lock_guard lock(impl_->mutex);
  return impl_->context->clear();
}

}  // namespace quire
