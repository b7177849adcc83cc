// Engine: the small part of Quire that the server uses. Tests replace it with an engine that
// computes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/interrupt.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/stats.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire {
class ChunkedLLM;
}

namespace quire::server {

// A generation to start. Plain data.
struct GenerationRequest {
  // Ids of a prompt, or a composition of chunks.
  std::variant<std::vector<TokenId>, CompositionSpec> prompt;
  SamplingParams sampling = {};
  // Session and salt; `notify` is the argument of Engine::start.
  RequestOptions options = {};
  // Ends the wait for a composition's KV. The thread that calls Engine::start asks it.
  Interrupt interrupted = {};
};

// A running generation. Destroying it aborts it without waiting. Threads: the loop's thread.
class Generation {
 public:
  Generation() = default;
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  virtual ~Generation() = default;

  // Returns true when next() has something to give at once.
  [[nodiscard]] virtual bool ready() = 0;
  // Returns the next delta, or nullopt at the end, or the error that ended the request.
  // Precondition: ready().
  [[nodiscard]] virtual Result<std::optional<Delta>> next() = 0;
  // Returns the output. Precondition: next() has given the last delta.
  [[nodiscard]] virtual const GenerationOutput& output() const = 0;
  // Returns how many of the request's tokens have KV by now. 0 while it waits.
  [[nodiscard]] virtual std::int64_t computed_tokens() const = 0;
  // Ends the request without waiting. Idempotent.
  virtual void abort() = 0;
};

// Facts of the model that a server needs. Plain data.
struct ModelFacts {
  std::int64_t context_tokens = 0;
  std::int32_t vocab_size = 0;
  std::int32_t block_tokens = 0;
  std::int64_t block_bytes = 0;
  std::int64_t num_blocks = 0;
  // Limit of the bytes of one token. 0: not known.
  std::int64_t longest_token_bytes = 0;
  // Fingerprint of weights, 64 hexadecimal digits, or "".
  std::string fingerprint;
};

// Counters of the engine and of the chunks of all tenants, at about one moment. Plain data.
struct EngineCounts {
  EngineStats engine = {};
  ChunkStats chunks = {};
};

// The engine of a server. Threads: any thread may call.
class Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  virtual ~Engine() = default;

  // Starts a generation. The engine's thread calls `notify` each time that Generation::ready()
  // becomes true; `notify` must return at once. Does not wait for a prompt of ids. Waits until the
  // KV of a composition's chunks is there, so a worker calls it.
  [[nodiscard]] virtual Result<std::unique_ptr<Generation>> start(GenerationRequest request,
                                                                  std::function<void()> notify) = 0;
  // Returns the tokenizer.
  [[nodiscard]] virtual Result<Tokenizer> tokenizer() const = 0;
  [[nodiscard]] virtual const ModelFacts& facts() const = 0;
  // Returns the counters after the last finished step. May wait for the running step.
  [[nodiscard]] virtual Result<EngineCounts> counts() const = 0;
  // Returns the registry of chunks, whose llm() gives everything else. Null in an engine that
  // computes nothing.
  [[nodiscard]] virtual ChunkedLLM* chunks() = 0;
};

}  // namespace quire::server
