#include "api/llm_engine.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config.h"
#include "engine.h"
#include "quire/chunks.h"
#include "quire/diagnostics.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/tokenizer.h"
#include "quire/types.h"

namespace quire::server {
namespace {

// Rows of a step while others may be decoding.
constexpr std::int32_t kSliceOnCpu = 256;

class StreamGeneration final : public Generation {
 public:
  explicit StreamGeneration(Stream stream) : stream_(std::move(stream)) {}
  [[nodiscard]] bool ready() override { return stream_.wait(0); }
  [[nodiscard]] Result<std::optional<Delta>> next() override { return stream_.next(); }
  [[nodiscard]] const GenerationOutput& output() const override { return stream_.output(); }
  [[nodiscard]] std::int64_t computed_tokens() const override { return stream_.computed_tokens(); }
  void abort() override { stream_.close(); }

 private:
  Stream stream_;
};

std::string hex_digest(const std::string& text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    return {};
  }
  constexpr const char* kHex = "0123456789abcdef";
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) {
    hex += kHex[digest[i] >> 4];
    hex += kHex[digest[i] & 15];
  }
  return hex;
}

std::int64_t longest_spelling(const Tokenizer& tokenizer) {
  std::size_t longest = 1;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (const auto spelling = tokenizer.id_to_token(id); spelling.ok()) {
      longest = std::max(longest, spelling->size());
    }
  }
  return static_cast<std::int64_t>(longest);
}

// Returns how many tokens of one sequence the blocks hold. Layers with a window may hold KV of its
// tokens alone.
std::int64_t tokens_in_budget(const EngineStats& stats, const ModelInfo& info,
                              std::int64_t block_tokens) {
  const std::int64_t whole = stats.blocks_total * block_tokens;
  if (!info.config || stats.window_block_bytes == 0) {
    return whole;
  }
  std::int64_t window = 0;
  for (const ModelInfo::Group& group : info.config->groups) {
    window = std::max<std::int64_t>(window, group.window);
  }
  const std::int64_t windows = (window + 2 * block_tokens - 1) / block_tokens;
  const std::int64_t bytes =
      stats.blocks_total * stats.block_bytes - windows * stats.window_block_bytes;
  return std::max(whole, bytes / (stats.block_bytes - stats.window_block_bytes) * block_tokens);
}

}  // namespace

std::unique_ptr<Generation> generation_of(Stream stream) {
  return std::make_unique<StreamGeneration>(std::move(stream));
}

Result<std::unique_ptr<LlmEngine>> LlmEngine::open(const Config& config) {
  LLMOptions options = config.engine;
  if (!config.has_max_batch_tokens && options.device == "cpu") {
    options.max_batch_tokens = std::min(options.max_batch_tokens, kSliceOnCpu);
  }
  QUIRE_TRY(ModelInfo info, inspect(config.model));
  QUIRE_TRY(ChunkedLLM llm,
            ChunkedLLM::open(config.model, options, {.store = config.engine.store}));
  auto engine = std::make_unique<LlmEngine>(std::move(llm));
  QUIRE_TRY(const EngineStats stats, engine->llm_.llm().engine_stats());
  ModelFacts& facts = engine->facts_;
  facts.block_tokens = options.block_tokens;
  facts.block_bytes = stats.block_bytes;
  facts.num_blocks = stats.blocks_total;
  facts.context_tokens = tokens_in_budget(stats, info, options.block_tokens);
  if (info.config) {
    facts.vocab_size = info.config->shape.vocab_size;
    facts.context_tokens =
        std::min<std::int64_t>(facts.context_tokens, info.config->shape.max_positions);
  }
  if (auto tokenizer = engine->llm_.llm().tokenizer(); tokenizer.ok()) {
    facts.longest_token_bytes = longest_spelling(*tokenizer);
    engine->tokenizer_ = std::move(tokenizer).value();
  }
  info.model.clear();
  QUIRE_TRY(const std::string description, to_json(info));
  facts.fingerprint = hex_digest(description);
  return engine;
}

Result<std::unique_ptr<Generation>> LlmEngine::start(GenerationRequest request,
                                                     std::function<void()> notify) {
  request.options.notify = std::move(notify);
  if (auto* const ids = std::get_if<std::vector<TokenId>>(&request.prompt)) {
    QUIRE_TRY(Stream stream, llm_.llm().stream(std::move(*ids), request.sampling, request.options));
    return std::unique_ptr<Generation>(std::make_unique<StreamGeneration>(std::move(stream)));
  }
  const auto& spec = std::get<CompositionSpec>(request.prompt);
  QUIRE_TRY(Stream stream,
            llm_.stream_from_chunks(spec, request.sampling, request.interrupted, request.options));
  return std::unique_ptr<Generation>(std::make_unique<StreamGeneration>(std::move(stream)));
}

Result<Tokenizer> LlmEngine::tokenizer() const {
  if (!tokenizer_) {
    return {ErrorCode::kUnsupported, "this model has no tokenizer; send token ids"};
  }
  return *tokenizer_;
}

Result<EngineCounts> LlmEngine::counts() const {
  EngineCounts counts;
  QUIRE_TRY(counts.engine, llm_.llm().engine_stats());
  QUIRE_TRY(counts.chunks, llm_.chunk_totals());
  return counts;
}

}  // namespace quire::server
