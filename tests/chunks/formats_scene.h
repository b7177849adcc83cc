// Chunks of several formats in one pool, for the tests of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"

namespace quire {

// Codes move logits by less than this share of the largest one, and never by nothing.
inline constexpr double kMostDistance = 0.05;

inline ChunkedLLM open_chunked(const std::string& kv_dtype, const std::string& store = "",
                               std::int64_t budget = std::int64_t{1} << 26) {
  auto llm = ChunkedLLM::open(
      kModel,
      {.device = test_device(), .kv_dtype = kv_dtype, .kv_budget_bytes = budget, .threads = 2},
      {.store = store});
  EXPECT_TRUE(llm.ok()) << (llm.ok() ? "" : llm.error().message);
  return std::move(llm).value();
}

inline ChunkContent content_of(Ids ids, ChunkType type, const std::string& kv_dtype = "") {
  ChunkContent content{.content = std::move(ids), .type = type};
  content.options.kv_dtype = kv_dtype;
  return content;
}

inline std::string must_register(ChunkedLLM& llm, const ChunkContent& content) {
  const auto id = llm.register_chunk(content);
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().message);
  return id.ok() ? *id : std::string();
}

// A system chunk, two contexts and a query. "" is the pool's own format.
struct Formats {
  std::string system, first, second;
};

inline CompositionSpec register_all(ChunkedLLM& llm, const Formats& formats,
                                    ReuseMode mode = ReuseMode::kAnchored) {
  CompositionSpec spec{.mode = mode};
  spec.system_chunk_id =
      must_register(llm, content_of(some_ids(40, 1), ChunkType::kSystemPrompt, formats.system));
  spec.context_chunk_ids = {
      must_register(llm, content_of(some_ids(75, 2), ChunkType::kContext, formats.first)),
      must_register(llm, content_of(some_ids(64, 3), ChunkType::kContext, formats.second))};
  spec.query_chunk_id = must_register(llm, content_of(some_ids(9, 4), ChunkType::kQuery));
  return spec;
}

inline std::vector<float> logits(ChunkedLLM& llm, const CompositionSpec& spec) {
  auto output = llm.logits_from_chunks(spec);
  EXPECT_TRUE(output.ok()) << (output.ok() ? "" : output.error().message);
  return output.ok() ? std::move(output->logits) : std::vector<float>();
}

}  // namespace quire
