// A program that copies everything: what sequences, chunks and contexts should hold, as plain ids,
// and an engine without prefix cache, forks or want of room that says what follows them. Answers
// are kept by ids. Model: a tiny random checkpoint of tests/golden/model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {

struct ApproximateEdit;

// A sequence: its ids, and what else decides what comes next.
struct Copy {
  Ids ids;
  std::size_t sampling = 0;   // of everything that it generates
  std::int64_t sampled = 0;   // the last so many were sampled in one go
  CompositionSpec spec = {};  // behind which it stands, unless it was edited since
  std::shared_ptr<const ApproximateEdit> edit = nullptr;
  std::int64_t composed = 0;  // so many of its tokens are as one of these gave them; 0: plain

  void append(const Ids& more);
  void cut(std::int64_t length);
  void replace(std::int64_t start, std::int64_t stop, const Ids& middle);
  void replace_only(std::int64_t start, std::int64_t stop, const Ids& middle);
  void grow(const Ids& generated);
  // Edits one on top of the other.
  [[nodiscard]] int num_edits() const;
};

// Tokens behind `stop` keep the KV that they had in `before`, but for the last token.
struct ApproximateEdit {
  Copy before;
  std::int64_t start = 0, stop = 0;
  Ids middle;
};

// For messages.
[[nodiscard]] std::string describe(const Copy& copy);

class Oracle {
 public:
  static constexpr std::size_t kSystems = 2, kContexts = 5, kQueries = 3, kSamplings = 3;

  Oracle(const std::string& model, std::int32_t block_tokens, bool with_chunks = true,
         const std::string& kv_dtype = "auto", bool mixed = false);

  [[nodiscard]] static SamplingParams params(std::size_t sampling, std::int64_t max_tokens);

  // All chunks there are: systems, contexts under none and under each system, queries.
  struct Chunk {
    ChunkContent content;
    std::string id;
    bool has_own_format = true;  // the pool's
  };
  [[nodiscard]] const std::vector<Chunk>& chunks() const { return chunks_; }
  [[nodiscard]] const Chunk& system(std::size_t index) const { return chunks_[index]; }
  // `under`: 0: none, else a system.
  [[nodiscard]] const Chunk& context(std::size_t index, std::size_t under) const;
  [[nodiscard]] const Chunk& query(std::size_t index) const;
  [[nodiscard]] CompositionSpec any_spec(std::mt19937& random) const;

  // A sequence behind the composition as it is made.
  [[nodiscard]] Copy behind(const CompositionSpec& spec, std::size_t sampling) const;
  [[nodiscard]] Ids next(const Copy& copy, std::int64_t count);
  [[nodiscard]] const std::vector<float>& logits(const Copy& copy);
  // Returns the logits of the query's tokens.
  [[nodiscard]] const std::vector<float>& composed_logits(const CompositionSpec& spec);

  [[nodiscard]] LLM& llm() { return llm_.llm(); }

 private:
  using Key = std::pair<std::string, Ids>;
  // Returns whether the composition is a plain prompt.
  [[nodiscard]] bool is_plain(const CompositionSpec& spec) const;
  [[nodiscard]] Sequence make(const Copy& copy);
  [[nodiscard]] Sequence make(const ApproximateEdit& edit);

  ChunkedLLM llm_;
  std::vector<Chunk> chunks_;
  std::map<Key, Ids> next_;
  std::map<Key, std::vector<float>> logits_;
};

}  // namespace quire
