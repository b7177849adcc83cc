// KV files of runs in several formats. The oracle is the pool that has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using tensor::DType;
using tensor::KVFormat;
using ::testing::HasSubstr;

constexpr kv::FormatId kCodedBlocks{1}, kFloatBlocks{2};
constexpr KVType kCodes{DType::kBFloat16, KVFormat::kInt8};
constexpr KVType kFloats{DType::kFloat32, KVFormat::kPlain};

// Returns a pool of bfloat16 whose bytes are blocks of int8 and of float32, too.
PagedPool pool_of_formats(std::int32_t num_blocks, std::uint64_t seed) {
  PagedPool pool = random_pool(small_geometry(), num_blocks, seed);
  EXPECT_EQ(pool.add_format(small_geometry(DType::kBFloat16, 4, KVFormat::kInt8)).value(),
            kCodedBlocks);
  EXPECT_EQ(pool.add_format(small_geometry(DType::kFloat32)).value(), kFloatBlocks);
  return pool;
}

SavedRun run_in(KVType type, int num_tokens) {
  SavedRun run = run_of(num_tokens);
  run.type = type;
  return run;
}

KVFileContent content_of_types(std::vector<SavedRun> runs) {
  return {.fingerprint = fingerprint_of(1), .geometry = small_geometry(), .runs = std::move(runs)};
}

std::vector<std::byte> slots_of(const PagedPool& pool, BlockId block, int tokens,
                                kv::FormatId format) {
  const auto size = static_cast<std::size_t>(pool.geometry(format).head_block_bytes());
  std::vector<std::byte> all, head(size);
  for (int i = 0; i < 2 * 2; ++i) {
    pool.read_slots(i / 2, i % 2, block, tokens, head, format);
    all.insert(all.end(), head.begin(), head.end());
  }
  return all;
}

class KVFileTypes : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "a.qkv";
  const PagedPool from_ = pool_of_formats(12, 1);
};

TEST_F(KVFileTypes, EachRunComesBackInItsFormat) {
  const KVFileContent content =
      content_of_types({run_in(kCodes, 7), run_of(5), run_in(kFloats, 4), run_in(kCodes, 1)});
  const std::vector<std::vector<BlockId>> blocks = {ids({3, 1}), ids({4, 5}), ids({5}), ids({0})};
  for (const Compression compress :
       {Compression(), Compression(Compression::kZstd), Compression(Compression::kLz4)}) {
    ASSERT_TRUE(write_kv_file(path_, content, from_, blocks, {.compress = compress}).ok());
    const auto file = KVFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file_bytes_of(path_)[8], 3) << "the version";
    EXPECT_TRUE(file->verify().ok());
    EXPECT_EQ(file->payload_bytes(), 3 * from_.geometry(kCodedBlocks).block_bytes() +
                                         2 * from_.geometry().block_bytes() +
                                         from_.geometry(kFloatBlocks).block_bytes());
    PagedPool to = pool_of_formats(12, 2);
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(file->read_layer(0, layer, 0, ids({0, 6}), to).ok());
      ASSERT_TRUE(file->read_layer(1, layer, 0, ids({8, 7}), to).ok());
      ASSERT_TRUE(file->read_layer(2, layer, 0, ids({5}), to).ok());
    }
    EXPECT_EQ(slots_of(to, {0}, 4, kCodedBlocks), slots_of(from_, {3}, 4, kCodedBlocks));
    EXPECT_EQ(slots_of(to, {6}, 4, kCodedBlocks), slots_of(from_, {1}, 3, kCodedBlocks))
        << "zeros behind";
    EXPECT_EQ(slots_of(to, {8}, 4, {}), slots_of(from_, {4}, 4, {}));
    EXPECT_EQ(slots_of(to, {7}, 4, {}), slots_of(from_, {5}, 1, {}));
    EXPECT_EQ(slots_of(to, {5}, 4, kFloatBlocks), slots_of(from_, {5}, 4, kFloatBlocks));
  }
}

TEST_F(KVFileTypes, AFileInOneFormatIsOfVersion1WhateverFormatOfThePoolThatIs) {
  KVFileContent content = content_of_types({run_of(7)});
  content.geometry = from_.geometry(kCodedBlocks);
  ASSERT_TRUE(write_kv_file(path_, content, from_, {{ids({2, 9})}}).ok());
  EXPECT_EQ(file_bytes_of(path_)[8], 1);
  PagedPool to = pool_of_formats(12, 2);
  const auto file = KVFile::open(path_);
  ASSERT_TRUE(file->read_layer(0, 1, 0, ids({2, 9}), to).ok());
  PagedPool plain = random_pool(small_geometry(), 12, 3);
  EXPECT_THAT(file->read_layer(0, 1, 0, ids({2, 9}), plain).error().message,
              HasSubstr("kv_dtype is int8, here it is bfloat16"));
}

TEST_F(KVFileTypes, WhatThePoolHasNotAndARepeatedTypeAreNotWritten) {
  const auto message = [&](const SavedRun& run, const PagedPool& pool) {
    const Status written = write_kv_file(path_, content_of_types({run}), pool, {{ids({0})}});
    EXPECT_EQ(written.error().code, ErrorCode::kInvalidArgument);
    return written.error().message;
  };
  const PagedPool plain = random_pool(small_geometry(), 12, 3);
  EXPECT_THAT(message(run_in(kCodes, 3), plain),
              HasSubstr("run 0: kv_dtype is int8, here it is bfloat16"));
  EXPECT_THAT(message(run_in({DType::kBFloat16, KVFormat::kPlain}, 3), from_),
              HasSubstr("run 0 repeats the type of the file's KV"));
}

// A header says anything, under checksums that are right.
TEST_F(KVFileTypes, ALieAboutATypeIsDamage) {
  KVFileHeader header = make_header(content_of_types({run_in(kCodes, 4)}), Codec::kRaw);
  header.head_blocks[0].offset = place_payload(header).offsets[0];
  const auto open_with = [&](std::uint32_t type) {
    std::vector<std::byte> bytes = encode_header(header);
    // Behind fingerprint, hash, 8 numbers, 2 windows, and what versions 1 and 2 say of the run.
    std::memcpy(&bytes[32 + 64 + 8 * 4 + 2 * 4 + 16 + 4], &type, sizeof(type));
    const auto file_bytes = static_cast<std::size_t>(place_payload(header).file_bytes);
    std::vector<std::byte> all = encode_preamble({.version = kKVFileVersionWithTypes,
                                                  .header_bytes = bytes.size(),
                                                  .file_bytes = file_bytes,
                                                  .header_checksum = checksum(bytes)});
    all.insert(all.end(), bytes.begin(), bytes.end());
    all.resize(file_bytes);
    Descriptor file(::memfd_create("lie", MFD_CLOEXEC));
    EXPECT_TRUE(write_at(file, all, 0, "memory").ok());
    return KVFile::open(std::move(file), "lie.qkv");
  };
  ASSERT_TRUE(open_with(5).ok()) << "int8 computed in bfloat16";
  EXPECT_THAT(open_with(0).error().message, HasSubstr("no run has a type of its own"));
  EXPECT_EQ(open_with(2).error().code, ErrorCode::kCorrupt) << "it repeats that of the file";
  EXPECT_EQ(open_with(1).error().code, ErrorCode::kCorrupt) << "the payload is of another size";
  EXPECT_EQ(open_with(77).error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace quire::kv_store
