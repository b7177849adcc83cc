#include "quire/kv_store/paged_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/types.h"
#include "quire/kv_store/test_support.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"
#include "quire/tensor/paged_kv_view.h"

namespace quire::kv_store {
namespace {

using tensor::DType;
using tensor::KVGeometry;

using tensor::KVFormat;

KVGeometry geometry_of(DType dtype, int block_tokens, int head_dim = 40,
                       KVFormat format = KVFormat::kPlain) {
  return {.layers = 3,
          .kv_heads = 2,
          .head_dim = head_dim,
          .dtype = dtype,
          .block_tokens = block_tokens,
          .format = format};
}

TEST(PagedPool, ViewsTileTheWholeAllocationWithoutOverlap) {
  const KVGeometry geometry = geometry_of(DType::kBFloat16, 33);
  const auto store = PagedPool::create(geometry, 5);
  ASSERT_TRUE(store.ok());
  std::set<std::ptrdiff_t> starts;
  const std::byte* base = store->view(0).data;
  for (int layer = 0; layer < 3; ++layer) {
    const tensor::PagedKVView view = store->view(layer);
    EXPECT_EQ(view.head_dim, 64);
    EXPECT_EQ(view.block_tokens, 33);
    EXPECT_EQ(view.num_blocks, 5);
    EXPECT_EQ(view.block_stride, 2 * 64 * 34 * 2);
    EXPECT_EQ(view.v_offset * 2, view.block_stride);
    for (int head = 0; head < 2; ++head) {
      for (int block = 0; block < 5; ++block) {
        starts.insert(view.data + head * view.head_stride + block * view.block_stride - base);
      }
    }
  }
  std::vector<std::ptrdiff_t> want;
  for (int i = 0; i < 30; ++i) {
    want.push_back(i * geometry.head_block_bytes());
  }
  EXPECT_EQ(std::vector<std::ptrdiff_t>(starts.begin(), starts.end()), want);
  EXPECT_EQ(geometry.block_bytes() * 5, 30 * geometry.head_block_bytes());
}

// Returns the codes and scales of a slot of int8.
std::vector<std::byte> coded_slot_bytes(const std::byte* k, const tensor::PagedKVView& view,
                                        int slot) {
  constexpr int kOrder[] = {0, 2, 1, 3};
  const int slots = (view.block_tokens + 3) / 4 * 4;
  std::vector<std::byte> bytes;
  for (int d = 0; d < view.head_dim; ++d) {
    bytes.push_back(k[(d / 4 * slots + slot) * 4 + d % 4]);
    bytes.push_back(k[view.v_offset + (slot / 4 * view.head_dim + d) * 4 + kOrder[slot % 4]]);
  }
  for (const int at : {2 * slot, 2 * slot + 1, 2 * (slots + slot), 2 * (slots + slot) + 1}) {
    bytes.push_back(k[view.scale_offset + at]);
  }
  return bytes;
}

// Slot `slot` of a head block as (K elements, V elements), by the layout of paged_kv_view.h.
std::vector<std::byte> slot_bytes(const tensor::PagedKVView& view, int head, int block, int slot) {
  const std::byte* k = view.data + head * view.head_stride + block * view.block_stride;
  if (view.format == KVFormat::kInt8) {
    return coded_slot_bytes(k, view, slot);
  }
  const std::byte* v = k + view.v_offset;
  const int slots = (view.block_tokens + 1) / 2 * 2;
  const std::size_t size = view.dtype == DType::kFloat32 ? 4 : 2;
  std::vector<std::byte> bytes(2 * size * static_cast<std::size_t>(view.head_dim));
  std::byte* at = bytes.data();
  const auto take = [&](const std::byte* from) {
    std::memcpy(at, from, size);
    at += size;
  };
  for (int d = 0; d < view.head_dim; ++d) {
    if (view.dtype == DType::kFloat32) {
      take(k + (d * slots + slot) * 4);
      take(v + (slot * view.head_dim + d) * 4);
    } else {
      take(k + ((d / 2 * slots + slot) * 2 + d % 2) * 2);
      take(v + ((slot / 2 * view.head_dim + d) * 2 + slot % 2) * 2);
    }
  }
  return bytes;
}

TEST(PagedPool, CopyMovesAPrefixInAllLayersAndHeadsAndNothingElse) {
  for (const auto& [dtype, format] :
       {std::pair{DType::kBFloat16, KVFormat::kPlain}, std::pair{DType::kFloat32, KVFormat::kPlain},
        std::pair{DType::kFloat16, KVFormat::kPlain},
        std::pair{DType::kBFloat16, KVFormat::kInt8}}) {
    const int pack = tensor::kv_pack(format, dtype);
    for (const int block_tokens : {1, 2, 5, 32, 33}) {
      for (const int tokens : {0, 1, 2, 3, 4, 5, 31, 32, 33}) {
        if (tokens > block_tokens) {
          continue;
        }
        auto store = PagedPool::create(geometry_of(dtype, block_tokens, 40, format), 4);
        ASSERT_TRUE(store.ok());
        const std::size_t size = static_cast<std::size_t>(store->geometry().block_bytes() * 4);
        std::byte* data = store->view(0).data;
        for (std::size_t i = 0; i < size; ++i) {
          data[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
        }
        const std::vector<std::byte> before(data, data + size);
        ASSERT_TRUE(store->copy({.from = BlockId{2}, .to = BlockId{1}, .tokens = tokens}).ok());
        const auto at = [&](const std::byte* bytes, int layer) {
          tensor::PagedKVView view = store->view(layer);
          view.data = const_cast<std::byte*>(bytes) + (view.data - data);
          return view;
        };
        const int whole = (tokens + pack - 1) / pack * pack;  // what shares words of V comes too
        for (int layer = 0; layer < 3; ++layer) {
          for (int head = 0; head < 2; ++head) {
            for (int slot = 0; slot < block_tokens; ++slot) {
              for (int block = 0; block < 4; ++block) {
                const int from = block == 1 && slot < tokens ? 2 : block;
                if (block == 1 && slot >= tokens && slot < whole) {
                  continue;
                }
                ASSERT_EQ(slot_bytes(at(data, layer), head, block, slot),
                          slot_bytes(at(before.data(), layer), head, from, slot))
                    << tensor::dtype_name(dtype) << " " << block_tokens << " " << tokens << " "
                    << block << " " << slot;
              }
            }
          }
        }
      }
    }
  }
}

TEST(PagedPool, CopyOntoItselfChangesNothing) {
  auto store = PagedPool::create(geometry_of(DType::kFloat32, 4), 1);
  ASSERT_TRUE(store.ok());
  std::memset(store->view(0).data, 0x5a, static_cast<std::size_t>(store->geometry().block_bytes()));
  ASSERT_TRUE(store->copy({.from = BlockId{0}, .to = BlockId{0}, .tokens = 4}).ok());
  EXPECT_EQ(*store->view(2).data, std::byte{0x5a});
}

TEST(PagedPoolDeathTest, WrongBlocksAndLayersAreCaught) {
  auto store = PagedPool::create(geometry_of(DType::kFloat32, 4), 2);
  ASSERT_TRUE(store.ok());
  EXPECT_DEATH((void)store->copy({.from = BlockId{0}, .to = BlockId{2}, .tokens = 1}),
               "no such block");
  EXPECT_DEATH((void)store->copy({.from = BlockId{-1}, .to = BlockId{1}, .tokens = 1}),
               "no such block");
  EXPECT_DEATH((void)store->copy({.from = BlockId{0}, .to = BlockId{1}, .tokens = 5}),
               "more tokens");
  EXPECT_DEATH((void)store->view(3), "no such layer");
}

// A store of half the machine's memory, of which one byte is written.
TEST(PagedPool, UntouchedMemoryIsNotResident) {
  KVGeometry geometry = geometry_of(DType::kBFloat16, 32, 128);
  geometry.layers = 32;
  const std::int64_t machine =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  const std::int32_t blocks =
      blocks_in_budget(geometry, std::min<std::int64_t>(machine / 2, std::int64_t{16} << 30));
  const auto store = PagedPool::create(geometry, blocks);
  ASSERT_TRUE(store.ok());
  const std::size_t size =
      static_cast<std::size_t>(geometry.block_bytes()) * static_cast<std::size_t>(blocks);
  *store->view(31).data = std::byte{1};
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((size + page - 1) / page);
  ASSERT_EQ(::mincore(store->view(0).data, size, resident.data()), 0);
  const auto count = std::count_if(resident.begin(), resident.end(),
                                   [](unsigned char flags) { return (flags & 1) != 0; });
  EXPECT_GE(count, 1);
  EXPECT_LE(count * static_cast<std::int64_t>(page), std::int64_t{4} << 20);  // two huge pages
}

// Blocks are given back one by one, in a pool whose blocks end inside of pages. A block whose
// neighbour is still there keeps the page that both have.
TEST(PagedPool, GivesThePagesOfWindowsBackOnceAllTheirBlocksHaveGone) {
  constexpr std::int32_t kBlocks = 256, kKept = 100;
  KVGeometry geometry = geometry_of(DType::kBFloat16, 32, 64, KVFormat::kInt8);
  geometry.window_tokens = {0, 64, 0};
  auto store = PagedPool::create(geometry, kBlocks, 40);
  ASSERT_TRUE(store.ok());
  std::vector<std::byte> bytes(static_cast<std::size_t>(geometry.block_bytes()), std::byte{7});
  std::vector<bool> gone(kBlocks);
  for (std::int32_t i = 0; i < kBlocks; ++i) {
    ASSERT_TRUE(store->write_blocks(std::vector{BlockId{i}}, bytes).ok());
  }
  for (std::int32_t i = 0; i < kBlocks; i += i + 1 == kKept ? 2 : 1) {
    gone[static_cast<std::size_t>(i)] = true;
    store->give_back(std::vector{BlockId{i}}, kv::BlockCopy::Parts::kWindow,
                     [&](BlockId id) { return gone[static_cast<std::size_t>(id.value)]; });
  }
  const auto resident = [&](const std::byte* begin, std::int64_t count) {
    const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto from = reinterpret_cast<std::uintptr_t>(begin) / page * page;
    const auto size =
        reinterpret_cast<std::uintptr_t>(begin) + static_cast<std::uintptr_t>(count) - from;
    std::vector<unsigned char> pages((size + page - 1) / page);
    EXPECT_EQ(::mincore(reinterpret_cast<void*>(from), size, pages.data()), 0);
    return std::ranges::count_if(pages, [](unsigned char flags) { return (flags & 1) != 0; });
  };
  const std::int64_t plane = geometry.head_block_bytes() * kBlocks;
  EXPECT_LE(resident(store->view(1).data, 2 * plane), 2 * (2 + 2));  // kept blocks, and both ends
  EXPECT_GE(resident(store->view(2).data, 2 * plane), 2 * plane / ::sysconf(_SC_PAGESIZE));
  std::vector<std::byte> read(bytes.size());
  ASSERT_TRUE(store->read_blocks(std::vector{BlockId{kKept}}, read).ok());
  EXPECT_EQ(read, bytes);
}

TEST(PagedPool, CopiesTheLayersWithAWindowAloneOrTheOthers) {
  KVGeometry geometry = geometry_of(DType::kBFloat16, 4);
  geometry.window_tokens = {0, 64, 0};
  auto store = PagedPool::create(geometry, 3, 2);
  ASSERT_TRUE(store.ok());
  const auto fill = [&](std::int32_t block, int value) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(geometry.block_bytes()),
                                 std::byte(value));
    ASSERT_TRUE(store->write_blocks(std::vector{BlockId{block}}, bytes).ok());
  };
  using Parts = kv::BlockCopy::Parts;
  for (const Parts parts : {Parts::kAll, Parts::kFull, Parts::kWindow}) {
    fill(0, 1);
    fill(2, 9);
    ASSERT_TRUE(
        store->copy({.from = {0}, .to = {2}, .tokens = 4, .format = {}, .parts = parts}).ok());
    for (int layer = 0; layer < 3; ++layer) {
      const bool copied = parts == Parts::kAll || (parts == Parts::kWindow) == (layer == 1);
      EXPECT_EQ(store->head_blocks(layer, 1, BlockId{2}).front(), std::byte(copied ? 1 : 9))
          << layer;
    }
  }
}

TEST(PagedPool, RefusesGeometriesOutsideTheirRangesByName) {
  const auto message = [](const KVGeometry& geometry, std::int32_t blocks, ErrorCode code) {
    const auto store = PagedPool::create(geometry, blocks);
    EXPECT_FALSE(store.ok());
    EXPECT_EQ(store.error().code, code);
    return store.error().message;
  };
  const KVGeometry good = geometry_of(DType::kBFloat16, 32);
  KVGeometry bad = good;
  bad.layers = 0;
  EXPECT_EQ(message(bad, 1, ErrorCode::kInvalidArgument),
            "kv store: layers is 0, must be at least 1");
  bad = good;
  bad.kv_heads = -4;
  EXPECT_EQ(message(bad, 1, ErrorCode::kInvalidArgument),
            "kv store: kv_heads is -4, must be at least 1");
  bad = good;
  bad.head_dim = 577;
  EXPECT_EQ(message(bad, 1, ErrorCode::kInvalidArgument),
            "kv store: head_dim is 577, must be at most 576");
  bad = good;
  bad.block_tokens = 300;
  EXPECT_EQ(message(bad, 1, ErrorCode::kInvalidArgument),
            "kv store: block_tokens is 300, must be at most 256");
  EXPECT_EQ(message(good, 0, ErrorCode::kInvalidArgument),
            "kv store: num_blocks is 0, must be at least 1");
}

TEST(PagedPool, RefusesMoreThanTheMachineHasWithBothNumbers) {
  KVGeometry geometry = geometry_of(DType::kFloat32, 256, 256);
  geometry.layers = 1000;
  const auto large = PagedPool::create(geometry, 1000000);
  ASSERT_FALSE(large.ok());
  EXPECT_EQ(large.error().code, ErrorCode::kOutOfBlocks);
  EXPECT_EQ(large.error().needed_bytes, geometry.block_bytes() * 1000000);
  EXPECT_GT(large.error().free_bytes, 0);
  EXPECT_NE(large.error().message.find("1000000 blocks"), std::string::npos);
  geometry.layers = std::numeric_limits<int>::max();  // the product is no 64-bit number
  geometry.kv_heads = std::numeric_limits<int>::max();
  const auto overflow = PagedPool::create(geometry, std::numeric_limits<std::int32_t>::max());
  ASSERT_FALSE(overflow.ok());
  EXPECT_EQ(overflow.error().code, ErrorCode::kOutOfBlocks);
}

TEST(BlocksInBudget, RoundsDownAndNeverBelowZero) {
  KVGeometry geometry = geometry_of(DType::kBFloat16, 32);
  const std::int64_t bytes = geometry.block_bytes();
  EXPECT_EQ(blocks_in_budget(geometry, bytes * 7), 7);
  EXPECT_EQ(blocks_in_budget(geometry, bytes * 7 - 1), 6);
  EXPECT_EQ(blocks_in_budget(geometry, bytes - 1), 0);
  EXPECT_EQ(blocks_in_budget(geometry, 0), 0);
  EXPECT_EQ(blocks_in_budget(geometry, -5), 0);
  EXPECT_EQ(blocks_in_budget(geometry, std::numeric_limits<std::int64_t>::max()),
            std::numeric_limits<std::int32_t>::max());
  geometry.layers = 0;
  EXPECT_EQ(blocks_in_budget(geometry, bytes), 0);
  geometry.layers = geometry.kv_heads = std::numeric_limits<int>::max();
  EXPECT_EQ(blocks_in_budget(geometry, std::numeric_limits<std::int64_t>::max()), 0);
}

void fill(PagedPool& store) {
  const auto size = static_cast<std::size_t>(store.geometry().block_bytes() * store.num_blocks());
  std::byte* data = store.view(0).data;
  for (std::size_t i = 0; i < size; ++i) {
    data[i] = static_cast<std::byte>((i * 2654435761u) >> 13);
  }
}

TEST(PagedPool, ACopyOfALayerHoldsTheBytesOfItsBlocksInTheirOrder) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat16}) {
    auto store = PagedPool::create(geometry_of(dtype, 7), 12).value();
    fill(store);
    const std::vector<BlockId> blocks = {{8}, {0}, {11}, {8}};
    for (int layer = 0; layer < 3; ++layer) {
      const PagedPool copy = store.copy_of_layer(layer, blocks).value();
      EXPECT_EQ(copy.geometry().layers, 1);
      ASSERT_EQ(copy.num_blocks(), 4);
      for (int head = 0; head < 2; ++head) {
        for (std::int32_t i = 0; i < 4; ++i) {
          EXPECT_TRUE(std::ranges::equal(
              std::as_const(copy).head_blocks(0, head, {i}),
              std::as_const(store).head_blocks(layer, head, blocks[std::size_t(i)])))
              << layer << " " << head << " " << i;
        }
      }
    }
  }
}

TEST(PagedPool, CopyRunMovesEverySlotToWhereItsTokenIsAndTouchesNoOther) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat16}) {
    for (const int block_tokens : {1, 7, 32}) {
      auto store = PagedPool::create(geometry_of(dtype, block_tokens), 12).value();
      const std::vector<BlockId> from = {{3}, {1}, {8}}, to = {{0}, {9}, {4}};
      for (int first = 0; first < 3 * block_tokens; first += 1 + block_tokens / 5) {
        const int count = 3 * block_tokens - first;
        fill(store);
        auto before = PagedPool::create(geometry_of(dtype, block_tokens), 12).value();
        fill(before);
        ASSERT_TRUE(store.copy_run(from, first, count, to).ok());
        for (int layer = 0; layer < 3; ++layer) {
          const auto now = store.view(layer), then = before.view(layer);
          const auto at = [&](const tensor::PagedKVView& view, const std::vector<BlockId>& run,
                              int slot) {
            return slot_bytes(view, 1, run[static_cast<std::size_t>(slot / block_tokens)].value,
                              slot % block_tokens);
          };
          for (int slot = 0; slot < 3 * block_tokens; ++slot) {
            EXPECT_EQ(at(now, from, slot), at(then, from, slot));
            EXPECT_EQ(at(now, to, slot),
                      slot < count ? at(then, from, first + slot) : at(then, to, slot));
          }
        }
      }
    }
  }
}

TEST(PagedPool, CopyMovesSlotsToOtherSlotsOfABlockAndTouchesNoOther) {
  constexpr int kBlockTokens = 7;
  for (const auto& [dtype, format] :
       {std::pair{DType::kBFloat16, KVFormat::kPlain}, std::pair{DType::kFloat32, KVFormat::kPlain},
        std::pair{DType::kBFloat16, KVFormat::kInt8}}) {
    for (int from = 0; from < kBlockTokens; ++from) {
      for (int to = from == 0 ? 1 : 0; to < kBlockTokens; ++to) {
        const KVGeometry geometry = geometry_of(dtype, kBlockTokens, 40, format);
        auto store = PagedPool::create(geometry, 4).value();
        auto before = PagedPool::create(geometry, 4).value();
        fill(store);
        fill(before);
        const int tokens = kBlockTokens - std::max(from, to);
        ASSERT_TRUE(
            store.copy({.from = {2}, .to = {1}, .tokens = tokens, .from_slot = from, .to_slot = to})
                .ok());
        for (int slot = 0; slot < kBlockTokens; ++slot) {
          const bool copied = slot >= to && slot < to + tokens;
          EXPECT_EQ(slot_bytes(store.view(2), 1, 1, slot),
                    copied ? slot_bytes(before.view(2), 1, 2, from + slot - to)
                           : slot_bytes(before.view(2), 1, 1, slot));
          EXPECT_EQ(slot_bytes(store.view(2), 1, 2, slot), slot_bytes(before.view(2), 1, 2, slot));
        }
      }
    }
  }
}

// Layer 1 of the small geometry has a window, layer 0 none.
TEST(PagedPoolParts, OfBlocksAreCopiedToHostMemoryAndBackAlone) {
  using Parts = kv::BlockCopy::Parts;
  const PagedPool from = random_pool(small_geometry(), 5, 71);
  const std::vector<BlockId> blocks = ids({3, 1});
  EXPECT_EQ(from.bytes_of(Parts::kAll), small_geometry().block_bytes());
  EXPECT_EQ(from.bytes_of(Parts::kWindow), small_geometry().window_group().block_bytes);
  EXPECT_EQ(from.bytes_of(Parts::kFull) + from.bytes_of(Parts::kWindow),
            from.bytes_of(Parts::kAll));
  for (const Parts parts : {Parts::kFull, Parts::kWindow}) {
    PagedPool to = random_pool(small_geometry(), 5, 72);
    const PagedPool before = random_pool(small_geometry(), 5, 72);
    std::vector<std::byte> bytes(static_cast<std::size_t>(2 * from.bytes_of(parts)));
    ASSERT_TRUE(from.read_blocks(blocks, bytes, {}, parts).ok());
    ASSERT_TRUE(to.write_blocks(blocks, bytes, {}, parts).ok());
    for (int layer = 0; layer < 2; ++layer) {
      const PagedPool& want = (layer == 1) == (parts == Parts::kWindow) ? from : before;
      for (int head = 0; head < 2; ++head) {
        for (const BlockId id : blocks) {
          EXPECT_TRUE(std::ranges::equal(std::as_const(to).head_blocks(layer, head, id),
                                         want.head_blocks(layer, head, id)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::kv_store
