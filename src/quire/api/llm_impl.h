// What an LLM and a Stream hold, and waiting for requests.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/engine/engine.h"
#include "quire/engine/home_process.h"
#include "quire/engine/submission.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"

namespace quire {

struct LLM::Impl {
  const engine::HomeProcess home;
  mutable std::mutex mutex;
  std::shared_ptr<runtime::Runtime> runtime;  // null once closed
  std::atomic<std::uint64_t> last_mark = 0;   // of all its sequences: a number is one moment of one

  // kClosed when closed, and in a forked child before it takes a mutex. The runtime stays until the
  // last call has returned.
  [[nodiscard]] Result<std::shared_ptr<runtime::Runtime>> open() const;
  [[nodiscard]] Result<std::shared_ptr<engine::Engine>> open_engine() const;
};

struct Stream::Impl {
  std::shared_ptr<engine::Engine> engine;
  std::shared_ptr<engine::Channel> channel;        // null until the engine has taken the request
  std::shared_ptr<engine::Submission> submission;  // of one that is not waited for, else null
  std::optional<Error> refusal;
  std::optional<GenerationOutput> output;
  bool waits = true;  // close() does, until the blocks are free
  bool ended = false;

  // Waits at most `timeout_ms` (negative: for ever) until the request was taken or refused.
  [[nodiscard]] bool arrived(int timeout_ms);
};

using Channels = std::span<const std::shared_ptr<engine::Channel>>;

// Waits until all have ended. When one fails or the caller interrupts, ends those that still run,
// for nobody will read them, and returns the failure.
[[nodiscard]] Status await(engine::Engine& engine, Channels channels, const Interrupt& interrupted);

// kInvalidArgument unless a batch has one params, or one per request, and no, one or as many
// options. `what`: what a request is called.
[[nodiscard]] Status check_counts(std::size_t requests, std::size_t params, std::size_t options,
                                  std::string_view what);
// Whose request number `index` of such a batch is; "": nobody's.
[[nodiscard]] RequestOptions options_of(std::span<const RequestOptions> options, std::size_t index);

// The outputs of all, once they have ended.
[[nodiscard]] Result<std::vector<GenerationOutput>> await_outputs(engine::Engine& engine,
                                                                  Channels channels,
                                                                  const Interrupt& interrupted);

}  // namespace quire
