// Blocks between a GPU, host memory and a disk, in every format that a GPU computes with.
#include "quire/kv_store/device_paged_pool.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/accelerator.h"
#include "quire/kv/format.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using tensor::DType;

constexpr std::int32_t kBlocks = 12;

struct Types {
  DType dtype;
  tensor::KVFormat format;
};
constexpr Types kTypes[] = {{DType::kBFloat16, tensor::KVFormat::kPlain},
                            {DType::kFloat16, tensor::KVFormat::kPlain},
                            {DType::kBFloat16, tensor::KVFormat::kInt8}};

std::vector<std::byte> bytes_of(const PagedPool& pool, const std::vector<BlockId>& blocks) {
  std::vector<std::byte> bytes(blocks.size() *
                               static_cast<std::size_t>(pool.geometry().block_bytes()));
  EXPECT_TRUE(pool.read_blocks(blocks, bytes).ok());
  return bytes;
}

TEST(DevicePagedPool, ABlockGoesToTheHostToADiskAndBackWithEveryBit) {
  const auto accelerator = device::Accelerator::open("cuda").value();
  const TemporaryFolder folder;
  for (const auto& [dtype, format] : kTypes) {
    for (const int block_tokens : {4, 7, 32}) {
      const tensor::KVGeometry geometry = small_geometry(dtype, block_tokens, format);
      PagedPool pool = PagedPool::create_on(*accelerator, geometry, kBlocks).value();
      // Every bit pattern, those of no number too.
      const PagedPool chance = random_pool(geometry, kBlocks, 1);
      const std::vector<BlockId> blocks = ids({7, 2, 11}), others = ids({0, 9, 4});
      std::vector<std::byte> bytes = bytes_of(chance, blocks);
      ASSERT_TRUE(pool.write_blocks(blocks, bytes).ok());
      EXPECT_EQ(bytes_of(pool, blocks), bytes) << tensor::kv_format_name(format, dtype);
      if (block_tokens % 2 != 0) {
        continue;  // what lies beside the last token of such a block is nobody's
      }

      PagedPool host = pool.create_beside(3).value();
      ASSERT_TRUE(host.write_blocks(ids({0, 1, 2}), bytes).ok());
      const KVFileContent content{.fingerprint = fingerprint_of(1),
                                  .geometry = geometry,
                                  .runs = {run_of(3 * block_tokens)}};
      const auto path = folder.path() / "a.qkv";
      ASSERT_TRUE(write_kv_file(path, content, host, {{ids({0, 1, 2})}}, {.sync = false}).ok());
      const auto file = KVFile::open(path);
      ASSERT_TRUE(file.ok()) << file.error().message;
      EXPECT_EQ(file->content().geometry.dtype, dtype);
      EXPECT_EQ(file->content().geometry.format, format);
      PagedPool read = pool.create_beside(3).value();
      ASSERT_TRUE(read_run(*file, 0, ids({2, 0, 1}), read).ok());
      ASSERT_TRUE(pool.write_blocks(others, bytes_of(read, ids({2, 0, 1}))).ok());
      EXPECT_EQ(bytes_of(pool, others), kv_bytes(host, ids({0, 1, 2}), 3 * block_tokens));
      EXPECT_EQ(bytes_of(pool, blocks), bytes) << "the others are as they were";
    }
  }
}

// The oracle is the host's pool.
TEST(DevicePagedPool, CopiesOfSlotsCarryAllThatATokenHas) {
  const auto accelerator = device::Accelerator::open("cuda").value();
  for (const auto& [dtype, format] : kTypes) {
    for (const int block_tokens : {4, 32}) {
      const tensor::KVGeometry geometry = small_geometry(dtype, block_tokens, format);
      PagedPool pool = PagedPool::create_on(*accelerator, geometry, kBlocks).value();
      PagedPool host = random_pool(geometry, kBlocks, 3);
      std::vector<std::int32_t> all(kBlocks);
      std::iota(all.begin(), all.end(), 0);
      std::vector<BlockId> every;
      for (const std::int32_t block : all) {
        every.push_back(BlockId{block});
      }
      ASSERT_TRUE(pool.write_blocks(every, bytes_of(host, every)).ok());
      for (PagedPool* each : {&pool, &host}) {
        ASSERT_TRUE(each->copy_run(ids({1, 6, 3}), 3, 2 * block_tokens - 1, ids({8, 0, 10})).ok());
      }
      EXPECT_EQ(bytes_of(pool, every), bytes_of(host, every))
          << tensor::kv_format_name(format, dtype) << ", blocks of " << block_tokens;
    }
  }
}

// The oracle is the host's pool with the same formats.
TEST(DevicePagedPool, BlocksOfSeveralFormatsInOnePoolAreMovedAndCopiedEachAsItIs) {
  const auto accelerator = device::Accelerator::open("cuda").value();
  const tensor::KVGeometry own = small_geometry(DType::kBFloat16, 32);
  PagedPool pool = PagedPool::create_on(*accelerator, own, kBlocks).value();
  for (const tensor::KVFormat kind :
       {tensor::KVFormat::kInt8, tensor::KVFormat::kFp8, tensor::KVFormat::kInt4}) {
    tensor::KVGeometry geometry = own;
    geometry.format = kind;
    const kv::FormatId format = pool.add_format(geometry).value();
    PagedPool host = pool.create_beside(kBlocks, format).value();
    const PagedPool chance = random_pool(geometry, kBlocks, 5);
    std::vector<std::int32_t> all(kBlocks);
    std::iota(all.begin(), all.end(), 0);
    std::vector<BlockId> every;
    for (const std::int32_t block : all) {
      every.push_back(BlockId{block});
    }
    const std::vector<std::byte> bytes = bytes_of(chance, every);
    ASSERT_TRUE(pool.write_blocks(every, bytes, format).ok());
    ASSERT_TRUE(host.write_blocks(every, bytes).ok());
    ASSERT_TRUE(
        pool.copy({.from = BlockId{3}, .to = BlockId{9}, .tokens = 32, .format = format}).ok());
    ASSERT_TRUE(host.copy({.from = BlockId{3}, .to = BlockId{9}, .tokens = 32}).ok());
    std::vector<std::byte> got(bytes.size());
    ASSERT_TRUE(pool.read_blocks(every, got, format).ok());
    EXPECT_EQ(got, bytes_of(host, every)) << tensor::kv_format_name(kind, own.dtype);
    const PagedPool layer = pool.copy_of_layer(1, ids({9, 0}), format).value();
    const PagedPool want = host.copy_of_layer(1, ids({9, 0})).value();
    EXPECT_EQ(bytes_of(layer, ids({0, 1})), bytes_of(want, ids({0, 1})));
  }
}

TEST(DevicePagedPool, RefuseAFormatWithoutKernelsByName) {
  const auto accelerator = device::Accelerator::open("cuda").value();
  const auto pool = PagedPool::create_on(*accelerator, small_geometry(DType::kFloat32), 2);
  ASSERT_FALSE(pool.ok());
  EXPECT_EQ(pool.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(pool.error().message,
            "kv_dtype float32 is not supported on a GPU yet; use bfloat16 or float16");
}

}  // namespace
}  // namespace quire::kv_store
