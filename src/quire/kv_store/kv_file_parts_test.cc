// KV files of runs whose first blocks have lost their window parts: KV of layers with a window,
// where others have none. The oracle is the pool that has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;

// Layer 1 has a window of 16 tokens. At 27 tokens it has passed 3 blocks of 4.
SavedRun run_without_parts(int lost_parts, int num_tokens) {
  SavedRun run = run_of(num_tokens);
  run.lost_parts = lost_parts;
  return run;
}

KVFileContent content_with(std::vector<SavedRun> runs) {
  return {.fingerprint = fingerprint_of(1), .geometry = small_geometry(), .runs = std::move(runs)};
}

// Layers 0 and 2 have a window, and heads of another size.
tensor::KVGeometry windowed_sizes() {
  return {.layers = 3,
          .kv_heads = 2,
          .head_dim = 32,
          .dtype = tensor::DType::kFloat32,
          .block_tokens = 4,
          .window_tokens = {6, 0, 6},
          .layer_sizes = {{2, 24}, {1, 40}, {2, 24}}};
}

// Returns the head blocks of one layer: those of `blocks` from the one at `first` on.
std::vector<std::byte> layer_bytes(const PagedPool& pool, int layer,
                                   std::span<const BlockId> blocks, std::size_t first) {
  std::vector<std::byte> all;
  for (int head = 0; head < pool.geometry().stored_heads(layer); ++head) {
    for (const BlockId id : blocks.subspan(first)) {
      const auto block = pool.head_blocks(layer, head, id);
      all.insert(all.end(), block.begin(), block.end());
    }
  }
  return all;
}

class KVFileParts : public ::testing::Test {
 protected:
  [[nodiscard]] Status write(const KVFileContent& content,
                             const std::vector<std::vector<BlockId>>& blocks,
                             const WriteOptions& options = {.sync = false}) const {
    return write_kv_file(path_, content, from_, blocks, options);
  }

  [[nodiscard]] static Result<KVFile> open_lie(const std::function<void(std::span<std::byte>)>& lie,
                                               std::uint32_t version = kKVFileVersionWithParts) {
    return kv_store::open_lie(make_header(content_with({run_without_parts(2, 13)}), Codec::kRaw),
                              version, lie);
  }

  // Sets a number that stands so many bytes behind fingerprint, hash, 8 numbers and 2 windows.
  static void set(std::span<std::byte> header, std::size_t at, std::int32_t value) {
    std::memcpy(&header[32 + 64 + 8 * 4 + 2 * 4 + at], &value, sizeof(value));
  }
  static constexpr std::size_t kNumSizesAt = 0;
  static constexpr std::size_t kLostPartsAt =
      4 + 16 + 4 + 4;  // behind what version 3 says of a run

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "a.qkv";
  const PagedPool from_ = random_pool(small_geometry(), 8, 1);
  const std::vector<BlockId> blocks_ = ids({4, 1, 6, 0, 3, 7, 2});
};

TEST_F(KVFileParts, AFileGivesBackWhatIsThereAndSaysWhatIsNot) {
  for (const bool compress : {false, true}) {
    const KVFileContent content = content_with({run_without_parts(3, 28), run_of(3)});
    ASSERT_TRUE(write(content, {blocks_, ids({5})}, {.sync = false, .compress = compress}).ok());
    EXPECT_EQ(file_bytes_of(path_)[8], 6);
    const auto file = KVFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE(file->verify().ok());
    EXPECT_EQ(file->payload_bytes(),
              8 * small_geometry().block_bytes() - 3 * small_geometry().window_group().block_bytes);
    EXPECT_EQ(file->content().runs[0].lost_parts, 3);
    EXPECT_EQ(file->content().runs[1].lost_parts, 0);
    PagedPool to = random_pool(small_geometry(), 8, 2);
    const PagedPool before = random_pool(small_geometry(), 8, 2);
    const BlockRange range{.to = blocks_, .without_part = 3};
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(read_layer(*file, layer, range, to).ok());
      ASSERT_TRUE(file->read_layer(1, layer, 0, ids({5}), to).ok());
    }
    EXPECT_EQ(layer_bytes(to, 0, blocks_, 0), layer_bytes(from_, 0, blocks_, 0));
    EXPECT_EQ(layer_bytes(to, 1, blocks_, 3), layer_bytes(from_, 1, blocks_, 3));
    const auto first = std::span(blocks_).first(3);
    EXPECT_EQ(layer_bytes(to, 1, first, 0), layer_bytes(before, 1, first, 0)) << "nothing is read";
    EXPECT_EQ(pool_bytes(to, ids({5})), kv_bytes(from_, ids({5}), 3));
    EXPECT_THAT(file->read_layer(0, 1, 2, ids({2}), to).error().message,
                HasSubstr("1 blocks from block 2 on, the run has 7, the first 3 without KV"));
  }
}

TEST_F(KVFileParts, PartsOfARangeAreReadAndVerifiedWhereTheyAre) {
  ASSERT_TRUE(write(content_with({run_without_parts(3, 28)}), {blocks_}).ok());
  const auto file = std::make_shared<const KVFile>(KVFile::open(path_).value());
  PagedPool to = random_pool(small_geometry(), 8, 2);
  const BlockRange all{.to = blocks_, .without_part = 3};
  for (std::int32_t first = 0; first < 7; ++first) {
    const KVFileRange part{.file = file, .blocks = all.part(first, 7 - first)};
    EXPECT_EQ(part.blocks.without_part, std::max(3 - first, 0));
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(part.read_layer(layer, to).ok());
      ASSERT_TRUE(part.verify_layer(layer).ok());
    }
    const KVFileRange one{.file = file, .blocks = all.part(first, 1)};
    EXPECT_TRUE(one.read_layer(1, to).ok() && one.verify_layer(1).ok()) << "also where all is lost";
    const auto at = static_cast<std::size_t>(first);
    EXPECT_EQ(layer_bytes(to, 0, blocks_, at), layer_bytes(from_, 0, blocks_, at));
    EXPECT_EQ(layer_bytes(to, 1, blocks_, std::max<std::size_t>(at, 3)),
              layer_bytes(from_, 1, blocks_, std::max<std::size_t>(at, 3)));
  }
}

TEST_F(KVFileParts, LayersOfOtherSizesLoseTheirsToo) {
  PagedPool from = PagedPool::create(windowed_sizes(), 4).value();
  std::uint8_t next = 0;
  for (std::byte& byte : from.all_bytes()) {
    byte = std::byte{next++};
  }
  const std::vector<BlockId> blocks = ids({2, 0, 3, 1});
  KVFileContent content{.fingerprint = fingerprint_of(1), .geometry = windowed_sizes()};
  content.runs = {run_without_parts(2, 16)};
  ASSERT_TRUE(write_kv_file(path_, content, from, {{blocks}}, {.sync = false}).ok());
  EXPECT_EQ(file_bytes_of(path_)[8], 6);
  const auto file = KVFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify().ok());
  EXPECT_EQ(file->content().geometry.layer_sizes, windowed_sizes().layer_sizes);
  EXPECT_EQ(file->payload_bytes(),
            4 * windowed_sizes().block_bytes() - 2 * windowed_sizes().window_group().block_bytes);
  PagedPool to = PagedPool::create(windowed_sizes(), 4).value();
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_TRUE(read_layer(*file, layer, {.to = blocks, .without_part = 2}, to).ok());
    const std::size_t first = layer == 1 ? 0 : 2;
    EXPECT_EQ(layer_bytes(to, layer, blocks, first), layer_bytes(from, layer, blocks, first));
  }
}

TEST_F(KVFileParts, WhatCannotBeLostIsNotWritten) {
  const auto message = [&](const KVFileContent& content) {
    const Status written = write(content, {ids({0, 1, 2, 3})});
    EXPECT_EQ(written.error().code, ErrorCode::kInvalidArgument);
    return written.error().message;
  };
  EXPECT_THAT(message(content_with({run_without_parts(4, 13)})),
              HasSubstr("run 0 has lost the window parts of 4 blocks, its 13 tokens fill 3"));
  EXPECT_THAT(message(content_with({run_without_parts(-1, 13)})),
              HasSubstr("has lost the window parts of -1 blocks"));
  for (const std::vector<int>& windows : {std::vector{0, 0}, std::vector{5, 5}}) {
    KVFileContent whole = content_with({run_without_parts(1, 13)});
    whole.geometry.window_tokens = windows;
    EXPECT_THAT(message(whole), HasSubstr("in a model whose blocks have none"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(KVFileParts, LiesAboutWhatIsLostAreRefused) {
  ASSERT_TRUE(open_lie([](auto) {}).ok());
  const auto refused = [&](std::size_t at, std::int32_t value) {
    const auto file = open_lie([&](std::span<std::byte> header) { set(header, at, value); });
    EXPECT_FALSE(file.ok()) << value;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << value;
    EXPECT_THAT(file.error().message, HasSubstr("lie.qkv"));
    return file.error().message;
  };
  EXPECT_THAT(refused(kLostPartsAt, 4), HasSubstr("the window parts of 4 blocks, its 13 tokens"));
  EXPECT_THAT(refused(kLostPartsAt, -1), HasSubstr("the window parts of -1 blocks"));
  EXPECT_THAT(refused(kLostPartsAt, 0), HasSubstr("no run has lost window parts"));
  for (const std::int32_t lost :
       {1, 3, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    refused(kLostPartsAt, lost);  // the payload is that of another number
  }
  EXPECT_THAT(refused(kNumSizesAt, 3), HasSubstr("sizes of 3 of 2 layers"));
  refused(kNumSizesAt, 2);  // what follows is no sizes
  refused(kNumSizesAt, -1);
  const auto whole = open_lie(
      [](std::span<std::byte> header) { std::memset(&header[32 + 64 + 8 * 4 + 4], 0, 4); });
  EXPECT_THAT(whole.error().message, HasSubstr("in a model whose blocks have none"));
  EXPECT_FALSE(open_lie([](auto) {}, kKVFileVersionWithSizes).ok()) << "its fields are others";
}

TEST_F(KVFileParts, EveryDamagedByteIsFound) {
  ASSERT_TRUE(write(content_with({run_without_parts(3, 26)}), {blocks_}).ok());
  const std::vector<char> whole = file_bytes_of(path_);
  PagedPool to = random_pool(small_geometry(), 8, 2);
  for (std::size_t at = 0; at < whole.size(); at += 1 + at % 5) {
    std::vector<char> damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    write_bytes(path_, damaged);
    const auto file = KVFile::open(path_);
    EXPECT_FALSE(file.ok() && file->verify().ok()) << "byte " << at;
  }
}

TEST_F(KVFileParts, ARunGoesOnOnlyIfItsWindowHasPassedWhatIsLost) {
  EXPECT_TRUE(check_goes_on(small_geometry(), run_without_parts(3, 27)).ok());
  const Status refused = check_goes_on(small_geometry(), run_without_parts(3, 26));
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.error().message,
              HasSubstr("a saved run of 26 tokens has lost the window parts of its first 3 blocks, "
                        "of which the window of 16 tokens has passed 2"));
}

}  // namespace
}  // namespace quire::kv_store
