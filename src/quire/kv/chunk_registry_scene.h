// Shared by the tests of the registry of chunks: a ledger, a clock, chunks with a name of one
// letter.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

class ChunkRegistryTest : public testing::Test {
 protected:
  explicit ChunkRegistryTest(std::int32_t max_chunks = 4, std::int32_t max_blocks = 6)
      : registry(
            {.max_chunks = max_chunks, .max_blocks = max_blocks, .now = [this] { return now; }},
            ledger) {}

  ~ChunkRegistryTest() override {
    const Status status = registry.check();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }

  static std::string id_of(char name) { return std::string(64, name); }

  static NewChunk chunk(char name, std::size_t tokens = 4, ChunkType type = ChunkType::kContext) {
    return {.id = id_of(name),
            .type = type,
            .content = std::string(1, name),
            .tokens = std::make_shared<const std::vector<TokenId>>(tokens, 7)};
  }

  std::optional<SegmentId> segment(std::size_t tokens) {
    const SeqId sequence = ledger.sequences().open(std::vector<TokenId>(tokens, 7), false);
    EXPECT_TRUE(ledger.sequences().extend(sequence, static_cast<std::int32_t>(tokens)).ok());
    ledger.sequences().advance(sequence, static_cast<std::int32_t>(tokens));
    const SegmentId sealed = ledger.segments().seal(sequence).value();
    ledger.sequences().close(sequence);
    return sealed;
  }

  // Registers a chunk in full, with a block for each four tokens.
  void add(NewChunk what) {
    const std::string id = what.id;
    const std::size_t tokens = what.tokens->size();
    const auto begun = registry.begin(std::move(what), VariantKey{});
    ASSERT_TRUE(begun.ok()) << begun.error().message;
    ASSERT_TRUE(registry.variants().end(id, {}, segment(tokens)).ok());
    registry.finish(id);
    pass(1);
  }

  Status begin_variant(const std::string& id, const VariantKey& key) {
    const VariantName name(id, key);
    return registry.variants().begin({&name, 1});
  }

  void pass(std::int64_t seconds) { now += std::chrono::seconds(seconds); }

  // Names of the chunks that are there, by registration.
  std::string names() {
    std::string names;
    for (const Chunk* chunk : registry.list("")) {
      names += chunk->content;
    }
    return names;
  }
  [[nodiscard]] std::int32_t blocks_in_use() const { return ledger.counts().blocks_in_use; }

  WallClock::time_point now{std::chrono::seconds(1'000'000)};
  static constexpr std::int64_t kBlockBytes = 1024;
  Ledger ledger{{.num_blocks = 64,
                 .block_tokens = 4,
                 .prefix_cache = false,
                 .formats = {{.block_bytes = kBlockBytes}}}};
  ChunkRegistry registry;
};

}  // namespace quire::kv
