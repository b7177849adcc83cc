// Chunks with formats of their own in one registry: bytes decide who fits and who gives way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/kv/chunk_registry.h"
#include "quire/kv/chunk_types.h"
#include "quire/kv/composition.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/test_support.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using testing::HasSubstr;

constexpr FormatId kFifth{2};  // of blocks that are full

class ChunkFormats : public testing::Test {
 protected:
  ~ChunkFormats() override {
    const Status status = registry.check();
    EXPECT_TRUE(status.ok()) << status.error().message;
    expect_consistent(ledger);
  }

  static std::string id_of(char name) { return std::string(64, name); }

  Status add(char name, std::int32_t tokens, FormatId format,
             ChunkType type = ChunkType::kContext) {
    NewChunk chunk{.id = id_of(name),
                   .type = type,
                   .format = format,
                   .content = std::string(1, name),
                   .tokens = std::make_shared<const std::vector<TokenId>>(tokens_of(tokens))};
    const std::vector<TokenId> ids = *chunk.tokens;
    const auto begun = registry.begin(std::move(chunk), VariantKey{});
    if (!begun.ok()) {
      return begun.error();
    }
    const auto segment = ledger.segments().reserve(ids, 0, format);
    EXPECT_TRUE(segment.ok());
    EXPECT_TRUE(registry.variants().end(id_of(name), {}, *segment).ok());
    registry.finish(id_of(name));
    return {};
  }

  std::string names() {
    std::string names;
    for (const Chunk* chunk : registry.list("")) {
      names += chunk->content;
    }
    return names;
  }

  Ledger ledger{{.num_blocks = 32,
                 .block_tokens = 4,
                 .prefix_cache = false,
                 .formats = {{.block_bytes = 100},
                             {.block_bytes = 50},
                             {.block_bytes = 20, .open = kOwnFormat}},
                 .slab_blocks = 4}};
  ChunkRegistry registry{{.max_blocks = 8}, ledger};  // 800 bytes
};

TEST_F(ChunkFormats, MoreChunksFitInANarrowerFormat) {
  for (const char name : {'a', 'b', 'c', 'd'}) {
    ASSERT_TRUE(add(name, 16, kHalf).ok());
  }
  EXPECT_EQ(registry.counts("").bytes, 800);
  EXPECT_EQ(registry.room().bytes_of(*registry.find(id_of('a'))), 200);
  EXPECT_EQ(registry.counts("").evictions, 0);
  EXPECT_EQ(ledger.counts().bytes_in_use, 800);
  ASSERT_TRUE(add('e', 16, kOwnFormat).ok());
  EXPECT_EQ(names(), "cde") << "400 bytes go, in two chunks";
}

TEST_F(ChunkFormats, ALastBlockThatIsNotFullCountsAsWhatItIsStoredIn) {
  ASSERT_TRUE(add('a', 17, kFifth).ok());
  EXPECT_EQ(registry.counts("").bytes, 4 * 20 + 100);
  EXPECT_EQ(ledger.counts().bytes_in_use, 180);
  ASSERT_TRUE(add('b', 3, kFifth).ok());
  EXPECT_EQ(registry.counts("").bytes, 280) << "it has no full block";
  const Status refused = add('c', 36, kOwnFormat);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverflow);
  EXPECT_EQ(refused.error().needed_bytes, 900);
  EXPECT_EQ(refused.error().free_bytes, 800);
  EXPECT_THAT(refused.error().message, HasSubstr("chunks would need 900 B, all chunks together may "
                                                 "hold 800 B"));
  EXPECT_TRUE(add('d', 120, kFifth).ok()) << "600 bytes more";
  EXPECT_EQ(names(), "bd");
}

TEST_F(ChunkFormats, APartOfACompositionSaysItsFormat) {
  ASSERT_TRUE(add('s', 8, kHalf, ChunkType::kSystemPrompt).ok());
  ASSERT_TRUE(add('c', 8, kFifth).ok());
  ASSERT_TRUE(registry
                  .begin({.id = id_of('q'),
                          .type = ChunkType::kQuery,
                          .tokens = std::make_shared<const std::vector<TokenId>>(tokens_of(2))},
                         std::nullopt)
                  .ok());
  registry.finish(id_of('q'));
  const auto composition = resolve(registry, "",
                                   {.system_chunk_id = id_of('s'),
                                    .context_chunk_ids = {id_of('c')},
                                    .query_chunk_id = id_of('q'),
                                    .mode = ReuseMode::kIndependent},
                                   {});
  ASSERT_TRUE(composition.ok()) << composition.error().message;
  EXPECT_EQ(composition->parts[0].format, kHalf);
  EXPECT_EQ(composition->parts[1].format, kFifth);
  EXPECT_EQ(composition->query.format, kOwnFormat);
  const SeqId sequence = ledger.segments().compose(composition->uses()).value();
  const std::vector<RunView> runs = ledger.sequences().runs(sequence);
  EXPECT_EQ(runs[0].format, kHalf);
  EXPECT_EQ(runs[1].format, kFifth);
}

}  // namespace
}  // namespace quire::kv
