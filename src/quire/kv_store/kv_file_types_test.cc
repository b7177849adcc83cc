// KV files of runs in several formats. The oracle is the pool that has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kernels/kv_codes.h"
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
#include "quire/tensor/paged_kv_view.h"

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

TEST_F(KVFileTypes, ALieAboutATypeIsDamage) {
  const auto open_with = [](std::uint32_t type) {
    return open_lie(make_header(content_of_types({run_in(kCodes, 4)}), Codec::kRaw),
                    kKVFileVersionWithTypes, [&](std::span<std::byte> header) {
                      // Behind fingerprint, hash, 8 numbers, 2 windows, and what versions 1 and 2
                      // say of the run.
                      std::memcpy(&header[32 + 64 + 8 * 4 + 2 * 4 + 16 + 4], &type, sizeof(type));
                    });
  };
  ASSERT_TRUE(open_with(5).ok()) << "int8 computed in bfloat16";
  EXPECT_THAT(open_with(0).error().message, HasSubstr("no run has a type of its own"));
  EXPECT_EQ(open_with(2).error().code, ErrorCode::kCorrupt) << "it repeats that of the file";
  EXPECT_EQ(open_with(1).error().code, ErrorCode::kCorrupt) << "the payload is of another size";
  EXPECT_EQ(open_with(77).error().code, ErrorCode::kUnsupported);
}

// A pool of blocks that are written whole, with sound scales, whose open blocks are of bfloat16.
PagedPool sealed_pool(KVFormat format, std::uint64_t seed) {
  const tensor::KVGeometry geometry = small_geometry(DType::kBFloat16, 32, format);
  PagedPool pool = random_pool(geometry, 8, seed);
  for (int i = 0; i < 2 * 2 * 8; ++i) {
    const auto block = pool.head_blocks(i / 16, i / 8 % 2, {i % 8});
    const auto codes = block.first(static_cast<std::size_t>(geometry.scale_offset()));
    const auto scales = block.subspan(codes.size());
    if (format == KVFormat::kFp8) {
      for (std::byte& code : codes) {
        code &= std::byte{0xf7};  // no NaN
      }
      std::ranges::fill(scales, std::byte{0});
      const float pair[] = {0.5F, 2.0F + static_cast<float>(i)};
      std::memcpy(scales.data(), pair, sizeof(pair));
    } else {
      for (std::size_t at = 1; at < scales.size(); at += 2) {
        scales[at] &= std::byte{0x3b};  // fp16 from 0 to 2
      }
    }
  }
  EXPECT_TRUE(pool.add_format(small_geometry(DType::kBFloat16, 32)).ok());
  return pool;
}

class KVFileOfBlocks : public ::testing::TestWithParam<KVFormat> {
 protected:
  [[nodiscard]] KVFileContent content(std::vector<SavedRun> runs) const {
    return {.fingerprint = fingerprint_of(1),
            .geometry = small_geometry(DType::kBFloat16, 32, GetParam()),
            .runs = std::move(runs)};
  }
  [[nodiscard]] static SavedRun rest(int num_tokens) {
    return run_in({DType::kBFloat16, KVFormat::kPlain}, num_tokens);
  }
  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "a.qkv";
};

TEST_P(KVFileOfBlocks, ComeBackAsTheyWereWhateverTheCodec) {
  const PagedPool from = sealed_pool(GetParam(), 1);
  const KVFileContent saved = content({run_of(64), rest(5)});
  for (const Compression compress :
       {Compression(), Compression(Compression::kZstd), Compression(Compression::kLz4)}) {
    ASSERT_TRUE(
        write_kv_file(path_, saved, from, {{ids({3, 5}), ids({0})}}, {.compress = compress}).ok());
    const auto file = KVFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE(file->verify().ok());
    PagedPool to = sealed_pool(GetParam(), 2);
    ASSERT_TRUE(read_run(*file, 0, ids({1, 7}), to).ok());
    EXPECT_EQ(pool_bytes(to, ids({1, 7})), pool_bytes(from, ids({3, 5})));
    ASSERT_TRUE(read_run(*file, 1, ids({0}), to).ok());
    EXPECT_EQ(slots_of(to, {0}, 32, kv::FormatId{1}), slots_of(from, {0}, 5, kv::FormatId{1}));
  }
}

// Codes and scales of tokens that do not count do not leave the pool.
TEST_P(KVFileOfBlocks, ABlockThatIsUsedInPartLosesTheOthersTokens) {
  const PagedPool from = sealed_pool(GetParam(), 1);
  ASSERT_TRUE(write_kv_file(path_, content({run_of(32 + 11)}), from, {{ids({3, 5})}}).ok());
  PagedPool to = sealed_pool(GetParam(), 2);
  const auto file = KVFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(read_run(*file, 0, ids({1, 7}), to).ok());
  const tensor::PagedKVView a = from.view(1), b = to.view(1);
  std::vector<float> wanted(8), got(8);
  for (int token = 0; token < 32; ++token) {
    kernels::read_coded_value(a, 1, {5, token}, wanted);
    kernels::read_coded_value(b, 1, {7, token}, got);
    EXPECT_EQ(got, token < 11 ? wanted : std::vector<float>(8)) << token;
    if (token < 11) {
      kernels::read_coded_key(a, 1, {5, token}, wanted);
      kernels::read_coded_key(b, 1, {7, token}, got);
      EXPECT_EQ(got, wanted) << token;
    }
  }
  std::vector<std::byte> again(static_cast<std::size_t>(from.geometry().head_block_bytes()));
  from.read_slots(1, 1, {5}, 11, again);
  EXPECT_TRUE(std::ranges::equal(again, to.head_blocks(1, 1, {7})));
  to.read_slots(1, 1, {7}, 11, again);
  EXPECT_TRUE(std::ranges::equal(again, to.head_blocks(1, 1, {7}))) << "nothing else was left";
}

// The checksums are right, the writer was not.
TEST_P(KVFileOfBlocks, CodesAndScalesThatAreNoNumbersAreDamage) {
  const bool fp8 = GetParam() == KVFormat::kFp8;
  const PagedPool sound = sealed_pool(GetParam(), 1);
  const auto scales_at = static_cast<std::size_t>(sound.geometry().scale_offset());
  struct Lie {
    std::size_t at;
    std::vector<std::uint8_t> bytes;
  };
  const std::vector<Lie> lies =
      fp8 ? std::vector<Lie>{{scales_at, {0, 0, 0xc0, 0x7f}},      // NaN
                             {scales_at + 4, {0, 0, 0x80, 0x7f}},  // infinity
                             {scales_at + 4, {0, 0, 0, 0xbf}},     // below 0
                             {scales_at, {0, 0, 0x7f, 0x7f}},      // 448 times that overflows
                             {3, {0x7f}},
                             {scales_at - 1, {0xff}}}
          : std::vector<Lie>{{scales_at, {1, 0x7e}},       // NaN as a scale of K
                             {scales_at + 64, {0, 0xfc}},  // minus infinity as a minimum of K
                             {scales_at + 2, {0, 0xbc}},   // a scale below 0
                             {scales_at + 128 + 62, {0, 0x7c}},
                             {scales_at + 128 + 64, {0, 0x7e}}};
  for (const Lie& lie : lies) {
    PagedPool pool = sealed_pool(GetParam(), 1);
    std::memcpy(&pool.head_blocks(1, 0, {2})[lie.at], lie.bytes.data(), lie.bytes.size());
    for (const bool compress : {false, true}) {
      ASSERT_TRUE(
          write_kv_file(path_, content({run_of(32)}), pool, {{ids({2})}}, {.compress = compress})
              .ok());
      const auto file = KVFile::open(path_);
      ASSERT_TRUE(file.ok()) << file.error().message;
      const Status verified = file->verify();
      EXPECT_EQ(verified.error().code, ErrorCode::kCorrupt) << lie.at;
      EXPECT_THAT(verified.error().message, HasSubstr("layer 1, head 0, block 0 is no number"));
      PagedPool to = sealed_pool(GetParam(), 2);
      EXPECT_FALSE(read_run(*file, 0, ids({1}), to).ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, KVFileOfBlocks, testing::Values(KVFormat::kFp8, KVFormat::kInt4),
                         [](const auto& info) {
                           return tensor::kv_format_name(info.param, DType::kBFloat16);
                         });

TEST_F(KVFileTypes, BlocksOfInt4AreWholeRunsOf32Tokens) {
  const Status written =
      write_kv_file(path_, content_of_types({run_in({DType::kBFloat16, KVFormat::kInt4}, 4)}),
                    from_, {{ids({0})}});
  EXPECT_THAT(written.error().message,
              HasSubstr("run 0 has blocks of 4 tokens, int4 needs a multiple of 32"));
}

}  // namespace
}  // namespace quire::kv_store
