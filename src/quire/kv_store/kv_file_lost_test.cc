// KV files of runs whose first blocks a window has freed. The oracle is the pool that has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
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
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;

// Blocks of 4 tokens, and a window that has passed 2 of them at 13 tokens.
tensor::KVGeometry windowed() {
  tensor::KVGeometry geometry = small_geometry();
  geometry.window_tokens = {6, 5};
  return geometry;
}

SavedRun run_without(int lost_blocks, int num_tokens) {
  SavedRun run = run_of(num_tokens);
  run.lost_blocks = lost_blocks;
  return run;
}

KVFileContent content_of(std::vector<SavedRun> runs) {
  return {.fingerprint = fingerprint_of(1), .geometry = windowed(), .runs = std::move(runs)};
}

class KVFileLost : public ::testing::Test {
 protected:
  [[nodiscard]] Status write(const KVFileContent& content,
                             const std::vector<std::vector<BlockId>>& blocks,
                             bool compress = false) const {
    return write_kv_file(path_, content, from_, blocks, {.sync = false, .compress = compress});
  }

  [[nodiscard]] static Result<KVFile> open_lie(const std::function<void(std::span<std::byte>)>& lie,
                                               std::uint32_t version = kKVFileVersionWithLost) {
    return kv_store::open_lie(make_header(content_of({run_without(2, 13)}), Codec::kRaw), version,
                              lie);
  }

  // Sets the lost blocks of the one run: behind fingerprint, hash, 8 numbers, 2 windows and what
  // version 1 says of it.
  static void set_lost(std::span<std::byte> header, std::int32_t lost) {
    std::memcpy(&header[32 + 64 + 8 * 4 + 2 * 4 + 16], &lost, sizeof(lost));
  }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "a.qkv";
  const PagedPool from_ = random_pool(windowed(), 6, 1);
};

TEST_F(KVFileLost, AFileGivesBackWhatIsThereAndSaysWhatIsNot) {
  for (const bool compress : {false, true}) {
    const KVFileContent content =
        content_of({run_without(2, 8), run_without(2, 13), run_without(0, 3)});
    ASSERT_TRUE(write(content, {{}, ids({4, 1}), ids({2})}, compress).ok());
    const auto file = KVFile::open(path_);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE(file->verify().ok());
    EXPECT_EQ(file->payload_bytes(), 3 * windowed().block_bytes());
    for (std::size_t run = 0; run < 3; ++run) {
      EXPECT_EQ(file->content().runs[run].tokens, content.runs[run].tokens);
      EXPECT_EQ(file->content().runs[run].lost_blocks, content.runs[run].lost_blocks);
    }
    PagedPool to = random_pool(windowed(), 3, 2);
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(file->read_layer(1, layer, 2, ids({2, 0}), to).ok());
      ASSERT_TRUE(file->read_layer(2, layer, 0, ids({1}), to).ok());
      EXPECT_TRUE(file->read_layer(0, layer, 2, {}, to).ok());
    }
    EXPECT_EQ(pool_bytes(to, ids({2, 0})), kv_bytes(from_, ids({4, 1}), 5));
    EXPECT_EQ(pool_bytes(to, ids({1})), kv_bytes(from_, ids({2}), 3));
    EXPECT_THAT(file->read_layer(1, 0, 1, ids({2}), to).error().message,
                HasSubstr("1 blocks from block 1 on, the run has 4, the first 2 without KV"));
    EXPECT_THAT(file->read_layer(0, 0, 0, ids({2}), to).error().message, HasSubstr("run has 2"));
  }
}

TEST_F(KVFileLost, AFileOfTokensAloneEndsWithItsHeader) {
  const KVFileContent content = content_of({run_without(3, 12)});
  ASSERT_TRUE(write(content, {{}}).ok());
  EXPECT_LT(std::filesystem::file_size(path_), 400U);
  const auto file = KVFile::open(path_);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify().ok());
  EXPECT_EQ(file->payload_bytes(), 0);
}

TEST_F(KVFileLost, OnlyAFileThatHasSomeIsOfVersion2) {
  ASSERT_TRUE(write(content_of({run_without(0, 13)}), {ids({0, 1, 2, 3})}).ok());
  EXPECT_EQ(file_bytes_of(path_)[8], 1);
  ASSERT_TRUE(write(content_of({run_without(1, 13)}), {ids({1, 2, 3})}).ok());
  EXPECT_EQ(file_bytes_of(path_)[8], 2);
}

TEST_F(KVFileLost, WhatCannotBeLostIsNotWritten) {
  const auto message = [&](const KVFileContent& content, const std::vector<BlockId>& blocks) {
    const Status written = write(content, {blocks});
    EXPECT_EQ(written.error().code, ErrorCode::kInvalidArgument);
    return written.error().message;
  };
  EXPECT_THAT(message(content_of({run_without(4, 13)}), {}),
              HasSubstr("run 0 has lost 4 blocks, its 13 tokens fill 3"));
  EXPECT_THAT(message(content_of({run_without(-1, 13)}), ids({0, 1, 2, 3, 4})),
              HasSubstr("has lost -1 blocks"));
  EXPECT_THAT(message(content_of({run_without(1, 13)}), ids({0, 1, 2, 3})),
              HasSubstr("needs 3 blocks, given are 4"));
  KVFileContent forgets_none = content_of({run_without(1, 13)});
  forgets_none.geometry.window_tokens = {0, 5};
  EXPECT_THAT(message(forgets_none, ids({1, 2, 3})), HasSubstr("a layer has no window"));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(KVFileLost, LiesAboutWhatIsLostAreRefused) {
  ASSERT_TRUE(open_lie([](auto) {}).ok());
  const auto refused = [&](std::int32_t lost) {
    const auto file = open_lie([&](std::span<std::byte> header) { set_lost(header, lost); });
    EXPECT_FALSE(file.ok()) << lost;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << lost;
    EXPECT_THAT(file.error().message, HasSubstr("lie.qkv"));
    return file.error().message;
  };
  EXPECT_THAT(refused(4), HasSubstr("run 0 has lost 4 blocks, its 13 tokens fill 3"));
  EXPECT_THAT(refused(-1), HasSubstr("has lost -1 blocks"));
  EXPECT_THAT(refused(0), HasSubstr("no run has lost blocks"));
  for (const std::int32_t lost :
       {1, 3, std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min()}) {
    refused(lost);  // the payload is that of another number
  }
  const auto forgets_none =
      open_lie([](std::span<std::byte> header) { std::memset(&header[32 + 64 + 8 * 4], 0, 4); });
  EXPECT_THAT(forgets_none.error().message, HasSubstr("a layer has no window"));
  EXPECT_EQ(open_lie([](auto) {}, kKVFileVersion).error().code, ErrorCode::kCorrupt)
      << "its tokens begin where version 1 has none";
}

TEST_F(KVFileLost, ARunGoesOnOnlyIfItsWindowHasPassedWhatIsLost) {
  EXPECT_TRUE(check_goes_on(windowed(), run_without(2, 13)).ok());
  const Status refused = check_goes_on(windowed(), run_without(2, 12));
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.error().message,
              HasSubstr("a saved run of 12 tokens has lost its first 2 blocks, of which the window "
                        "of 6 tokens has passed 1"));
}

}  // namespace
}  // namespace quire::kv_store
