// The members of an LLM, and the checks of a batch.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "quire/engine/engine.h"
#include "quire/engine/home_process.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/types.h"

namespace quire {

struct LLM::Impl {
  const engine::HomeProcess home;
  mutable std::mutex mutex;
  std::shared_ptr<runtime::Runtime> runtime;  // null once closed
  // Last mark of all its sequences: a number is one moment of one.
  std::atomic<std::uint64_t> last_mark = 0;

  // Returns the runtime, which stays until the last call has returned. Returns kClosed when the LLM
  // is closed, and in a forked child before it takes a mutex.
  [[nodiscard]] Result<std::shared_ptr<runtime::Runtime>> open() const;
  [[nodiscard]] Result<std::shared_ptr<engine::Engine>> open_engine() const;
};

// Returns the ids of a prompt; encodes a text, with the errors of a request.
[[nodiscard]] Result<std::vector<TokenId>> prompt_ids(const engine::Engine& engine,
                                                      const Prompt& prompt,
                                                      const Interrupt& interrupted);
// Returns kInvalidArgument unless a batch has one params, or one per request, and no, one or as
// many options. `what` is the message's word for a request.
[[nodiscard]] Status check_counts(std::size_t requests, std::size_t params, std::size_t options,
                                  std::string_view what);
// Returns the options of request number `index` of such a batch; empty ones belong to nobody.
[[nodiscard]] RequestOptions options_of(std::span<const RequestOptions> options, std::size_t index);

}  // namespace quire
