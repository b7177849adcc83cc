// Blocks of several formats in the bytes of one paged pool, with the ledger that says which of them
// may be used.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_table.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/segment.h"
#include "quire/kv/types.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kv_store {
namespace {

using kv::FormatId;
using tensor::DType;
using tensor::KVGeometry;

constexpr FormatId kWide{1};  // twice the bytes of the pool's own

KVGeometry formats_geometry(DType dtype, int block_tokens = 5) {
  return {.layers = 3, .kv_heads = 2, .head_dim = 40, .dtype = dtype, .block_tokens = block_tokens};
}

PagedPool pool_of(std::int32_t num_blocks) {
  PagedPool pool = PagedPool::create(formats_geometry(DType::kBFloat16), num_blocks).value();
  EXPECT_EQ(pool.add_format(formats_geometry(DType::kFloat32)).value(), kWide);
  return pool;
}

void fill(std::span<std::byte> bytes, std::uint32_t seed) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(((i + seed) * 2654435761u) >> 13);
  }
}

std::vector<std::byte> bytes_of(std::size_t size, std::uint32_t seed) {
  std::vector<std::byte> bytes(size);
  fill(bytes, seed);
  return bytes;
}

TEST(PagedPoolFormats, AViewOfEachFormatIsTheSameBytesInBlocksOfItsSize) {
  const PagedPool pool = pool_of(9);
  EXPECT_EQ(pool.num_blocks(kWide), 4) << "a block that ends outside is none";
  for (int layer = 0; layer < 3; ++layer) {
    const tensor::PagedKVView own = pool.view(layer), wide = pool.view(layer, kWide);
    EXPECT_EQ(own.data, wide.data);
    EXPECT_EQ(own.head_stride, wide.head_stride);
    EXPECT_EQ(own.head_stride, 9 * own.block_stride);
    EXPECT_EQ(wide.block_stride, formats_geometry(DType::kFloat32).head_block_bytes());
    EXPECT_EQ(wide.num_blocks, 4);
    EXPECT_EQ(wide.dtype, DType::kFloat32);
    EXPECT_EQ(wide.v_offset * 2, wide.block_stride);
    EXPECT_EQ(pool.head_blocks(layer, 1, BlockId{3}, 1, kWide).data(),
              wide.data + wide.head_stride + 3 * wide.block_stride);
  }
}

TEST(PagedPoolFormats, WhatIsWrittenInOneFormatIsReadInItAndLiesNowhereElse) {
  PagedPool pool = pool_of(9);
  fill(pool.all_bytes(), 1);
  const std::vector<BlockId> blocks = {{3}, {1}};
  const auto size = static_cast<std::size_t>(2 * pool.geometry(kWide).block_bytes());
  const std::vector<std::byte> written = bytes_of(size, 77);
  const std::vector<std::byte> before(pool.all_bytes().begin(), pool.all_bytes().end());
  ASSERT_TRUE(pool.write_blocks(blocks, written, kWide).ok());
  std::vector<std::byte> read(size);
  ASSERT_TRUE(pool.read_blocks(blocks, read, kWide).ok());
  EXPECT_EQ(read, written);
  // Blocks 1 and 3 of the wide format are blocks 2, 3, 6 and 7 of the pool's own.
  const auto block_bytes = static_cast<std::size_t>(pool.geometry().head_block_bytes());
  for (std::size_t i = 0; i < before.size(); ++i) {
    const std::size_t own = i / block_bytes % 9;
    if (own == 2 || own == 3 || own == 6 || own == 7) {
      continue;
    }
    ASSERT_EQ(pool.all_bytes()[i], before[i]) << i;
  }
  PagedPool beside = pool.create_beside(2, kWide).value();
  EXPECT_EQ(beside.geometry().dtype, DType::kFloat32);
  EXPECT_EQ(beside.all_bytes().size(), size);
  const PagedPool layer = pool.copy_of_layer(1, blocks, kWide).value();
  EXPECT_EQ(layer.geometry().dtype, DType::kFloat32);
  EXPECT_TRUE(std::ranges::equal(std::as_const(layer).head_blocks(0, 1, BlockId{0}),
                                 std::as_const(pool).head_blocks(1, 1, BlockId{3}, 1, kWide)));
  const std::vector<std::byte> of_layer = bytes_of(size / 3, 5);
  ASSERT_TRUE(pool.write_layer(2, blocks, of_layer, kWide).ok());
  ASSERT_TRUE(pool.read_blocks(blocks, read, kWide).ok());
  EXPECT_TRUE(std::ranges::equal(std::span(read).last(size / 3), of_layer));
  EXPECT_TRUE(
      std::ranges::equal(std::span(read).first(size / 3), std::span(written).first(size / 3)));
}

TEST(PagedPoolFormats, SlotsAreCopiedByTheLayoutOfTheirFormat) {
  PagedPool pool = pool_of(12);
  PagedPool alone = PagedPool::create(formats_geometry(DType::kFloat32), 6).value();
  fill(pool.all_bytes(), 3);
  const std::vector<BlockId> all = {{0}, {1}, {2}, {3}, {4}, {5}};
  std::vector<std::byte> bytes(alone.all_bytes().size());
  ASSERT_TRUE(pool.read_blocks(all, bytes, kWide).ok());
  ASSERT_TRUE(alone.write_blocks(all, bytes).ok());
  const std::vector<BlockId> from = {{1}, {4}}, to = {{0}, {5}};
  ASSERT_TRUE(pool.copy_run(from, 2, 6, to, kWide).ok());
  ASSERT_TRUE(alone.copy_run(from, 2, 6, to).ok());
  ASSERT_TRUE(pool.copy({.from = {2}, .to = {3}, .tokens = 3, .format = kWide}).ok());
  ASSERT_TRUE(alone.copy({.from = {2}, .to = {3}, .tokens = 3}).ok());
  ASSERT_TRUE(pool.read_blocks(all, bytes, kWide).ok());
  EXPECT_TRUE(std::ranges::equal(bytes, alone.all_bytes()));
  std::vector<std::byte> slots(static_cast<std::size_t>(alone.geometry().head_block_bytes()));
  std::vector<std::byte> expected = slots;
  pool.read_slots(2, 1, BlockId{3}, 2, slots, kWide);
  alone.read_slots(2, 1, BlockId{3}, 2, expected);
  EXPECT_EQ(slots, expected);
}

TEST(PagedPoolFormats, ALedgerKeepsBlocksOfAllFormatsApart) {
  PagedPool pool = pool_of(24);
  kv::Ledger ledger(
      {.num_blocks = 24, .block_tokens = 5, .formats = pool.block_formats(), .slab_blocks = 5});
  // Stores segments until there is no room, drops every third one and goes on.
  struct Stored {
    kv::SegmentId segment;
    FormatId format;
    std::vector<std::byte> bytes;
  };
  std::vector<Stored> all;
  const auto blocks_of = [&](kv::SegmentId segment) {
    return ledger.segments().find(segment)->blocks().ids();
  };
  int refused = 0;
  for (std::uint32_t i = 0; i < 200; ++i) {
    const FormatId format{static_cast<std::uint8_t>(i / 2 % 2)};
    const std::vector<TokenId> tokens(1 + i * 7 % 19, 1);
    const auto segment = ledger.segments().reserve(tokens, 0, format);
    if (!segment.ok()) {
      ++refused;
      const std::size_t gone = i * 31 % all.size();
      ASSERT_TRUE(ledger.segments().drop(all[gone].segment));
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(gone));
      continue;
    }
    ASSERT_TRUE(ledger.take_copies().empty()) << "nothing is cached";
    const auto size = static_cast<std::size_t>(ledger.segments().num_bytes(*segment));
    all.push_back({.segment = *segment, .format = format, .bytes = bytes_of(size, i)});
    ASSERT_TRUE(pool.write_blocks(blocks_of(*segment), all.back().bytes, format).ok());
    for (const Stored& stored : all) {
      std::vector<std::byte> read(stored.bytes.size());
      ASSERT_TRUE(pool.read_blocks(blocks_of(stored.segment), read, stored.format).ok());
      ASSERT_EQ(read, stored.bytes);
    }
    ASSERT_TRUE(ledger.check().ok()) << ledger.check().error().message;
  }
  EXPECT_GT(refused, 20);
}

TEST(PagedPoolFormats, GeometriesThatDoNotGoTogetherAreRefusedByName) {
  PagedPool pool = PagedPool::create(formats_geometry(DType::kBFloat16), 4).value();
  const auto message = [&](const KVGeometry& geometry) {
    const auto format = pool.add_format(geometry);
    EXPECT_FALSE(format.ok());
    EXPECT_EQ(format.error().code, ErrorCode::kInvalidArgument);
    return format.error().message;
  };
  KVGeometry bad = formats_geometry(DType::kFloat32);
  bad.layers = 2;
  EXPECT_EQ(message(bad), "kv store: layers of a format is 2, of the pool's own it is 3");
  bad = formats_geometry(DType::kFloat32);
  bad.kv_heads = 1;
  EXPECT_EQ(message(bad), "kv store: kv_heads of a format is 1, of the pool's own it is 2");
  bad = formats_geometry(DType::kFloat32);
  bad.head_dim = 64;
  EXPECT_EQ(message(bad), "kv store: head_dim of a format is 64, of the pool's own it is 40");
  EXPECT_EQ(message(formats_geometry(DType::kFloat32, 6)),
            "kv store: block_tokens of a format is 6, of the pool's own it is 5");
  for (std::size_t i = 1; i < kv::kMaxFormats; ++i) {
    EXPECT_EQ(pool.add_format(formats_geometry(DType::kFloat16)).value().value, i);
  }
  EXPECT_EQ(message(formats_geometry(DType::kFloat32)),
            "kv store: the pool has 8 formats, and no more fit");
}

// fp8 with seven tokens has room for eight; int4 has no byte for a number.
TEST(PagedPoolFormats, ABlockThatIsWrittenWholeIsCopiedWhole) {
  for (const auto& [format, block_tokens] :
       {std::pair(tensor::KVFormat::kFp8, 7), std::pair(tensor::KVFormat::kInt4, 32)}) {
    KVGeometry geometry = formats_geometry(DType::kBFloat16, block_tokens);
    geometry.format = format;
    PagedPool pool = PagedPool::create(geometry, 4).value();
    for (int layer = 0; layer < geometry.layers; ++layer) {
      for (int head = 0; head < geometry.kv_heads; ++head) {
        fill(pool.head_blocks(layer, head, BlockId{1}), 3U * layer + head);
      }
    }
    ASSERT_TRUE(pool.copy({.from = {1}, .to = {3}, .tokens = block_tokens}).ok());
    for (int layer = 0; layer < geometry.layers; ++layer) {
      for (int head = 0; head < geometry.kv_heads; ++head) {
        EXPECT_TRUE(std::ranges::equal(pool.head_blocks(layer, head, BlockId{3}),
                                       pool.head_blocks(layer, head, BlockId{1})));
      }
    }
  }
}

TEST(PagedPoolFormatsDeathTest, UnknownFormatsAndTheirBlocksAreCaught) {
  PagedPool pool = pool_of(9);
  EXPECT_DEATH((void)pool.view(0, FormatId{2}), "no such format");
  EXPECT_DEATH((void)pool.head_blocks(0, 0, BlockId{4}, 1, kWide), "no such block");
  EXPECT_DEATH((void)pool.copy({.from = {4}, .to = {1}, .tokens = 1, .format = kWide}),
               "no such block");
}

}  // namespace
}  // namespace quire::kv_store
