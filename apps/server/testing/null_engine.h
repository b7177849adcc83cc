// NullEngine: an engine that computes nothing and gives a token each millisecond of the loop's
// time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine.h"
#include "loop.h"
#include "quire/tokenizer.h"

namespace quire::server {

// Answers with the ids 10, 11, 12, ... and the texts " 0", " 1", ... Nothing is cached, and the
// prompt takes no time.
// Threads: the loop's.
class NullEngine final : public Engine {
 public:
  explicit NullEngine(Loop& loop, std::optional<Tokenizer> tokenizer = {})
      : loop_(loop), tokenizer_(std::move(tokenizer)) {
    facts_ = {.context_tokens = 2048,
              .vocab_size = 2048,
              .block_tokens = 32,
              .block_bytes = 1 << 16,
              .num_blocks = 1024,
              .longest_token_bytes = 32,
              .fingerprint = std::string(64, 'a')};
  }
  [[nodiscard]] Result<std::unique_ptr<Generation>> start(GenerationRequest request,
                                                          std::function<void()> notify) override;
  [[nodiscard]] Result<Tokenizer> tokenizer() const override {
    if (!tokenizer_) {
      return {ErrorCode::kUnsupported, "no tokenizer"};
    }
    return *tokenizer_;
  }
  [[nodiscard]] const ModelFacts& facts() const override { return facts_; }
  [[nodiscard]] Result<EngineCounts> counts() const override {
    EngineCounts all = counters;
    all.engine.blocks_total = all.engine.blocks_free = facts_.num_blocks;
    all.engine.requests_running = running;
    return all;
  }
  [[nodiscard]] ChunkedLLM* chunks() override { return nullptr; }

  ModelFacts& mutable_facts() { return facts_; }
  // Returns the text of the first `count` ids of `script`.
  [[nodiscard]] std::string script_text(std::int64_t count) const {
    return tokenizer_->decode(std::span(script).first(static_cast<std::size_t>(count))).value();
  }
  // Returned by counts(), but for blocks and requests.
  EngineCounts counters;
  // Requests that run now, and that were started.
  std::int64_t running = 0, started = 0;
  // Error with which the next request ends after `fail_after` tokens.
  std::optional<Error> failure;
  std::int64_t fail_after = 0;
  // Returned by computed_tokens() of each request until its first token.
  std::int64_t computed = 0;
  // Time of a token.
  std::chrono::milliseconds step_time{1};
  // Ids to answer with instead, up to the end of the list. The tokenizer has their texts.
  std::vector<TokenId> script;
  // True: no token comes any more.
  bool stuck = false;
  // Requests as they were started.
  std::vector<GenerationRequest> requests;

 private:
  Loop& loop_;
  std::optional<Tokenizer> tokenizer_;
  ModelFacts facts_;
};

}  // namespace quire::server
