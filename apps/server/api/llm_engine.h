// LlmEngine: the engine of a server with a model, over ChunkedLLM.
#pragma once

#include <memory>

#include "config.h"
#include "engine.h"
#include "quire/chunks.h"
#include "quire/result.h"

namespace quire::server {

// Wraps a stream as a generation.
[[nodiscard]] std::unique_ptr<Generation> generation_of(Stream stream);

// Opens the model of a configuration, and serves it.
class LlmEngine final : public Engine {
 public:
  // Blocks until the model is loaded.
  // Errors: those of ChunkedLLM::open.
  [[nodiscard]] static Result<std::unique_ptr<LlmEngine>> open(const Config& config);
  explicit LlmEngine(ChunkedLLM llm) : llm_(std::move(llm)) {}

  [[nodiscard]] Result<std::unique_ptr<Generation>> start(GenerationRequest request,
                                                          std::function<void()> notify) override;
  [[nodiscard]] Result<Tokenizer> tokenizer() const override;
  [[nodiscard]] const ModelFacts& facts() const override { return facts_; }
  [[nodiscard]] Result<EngineCounts> counts() const override;
  [[nodiscard]] ChunkedLLM* chunks() override { return &llm_; }

 private:
  mutable ChunkedLLM llm_;
  std::optional<Tokenizer> tokenizer_;
  ModelFacts facts_;
};

}  // namespace quire::server
