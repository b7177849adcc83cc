// Files of every format version, made from the document by tests/golden/kv_store/make_goldens.py.
// They can be read for ever, and what is written today is the same, byte for byte.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/format.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"

namespace quire::kv_store {
namespace {

const std::filesystem::path golden_folder =
    std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden/kv_store";

KVFileContent golden_content() {
  std::string hash;
  for (int i = 0; i < 4; ++i) {
    hash += "0123456789abcdef";
  }
  return {.fingerprint = fingerprint_of(1),
          .geometry = small_geometry(),
          .runs = {{.tokens = {7, 10, 13, 16, 19, 22}, .start_position = 0},
                   {.tokens = {100, 50, 0}, .start_position = 32000}},
          .metadata_json = R"({"name":"golden","é":[1,2]})",
          .object_hash = hash};
}

// Run 0 in blocks 0 and 1, run 1 in block 2; slots without a token hold chance.
const std::vector<std::vector<BlockId>> golden_blocks = {ids({0, 1}), ids({2})};

// Content of version 2: a run that is lost as a whole, and one without its first block.
KVFileContent golden_with_lost() {
  KVFileContent content = golden_content();
  content.geometry.window_tokens = {5, 3};
  content.runs = {{.tokens = {9, 8, 7, 6}, .start_position = 0, .lost_blocks = 1},
                  {.tokens = {7, 10, 13, 16, 19, 22}, .start_position = 4, .lost_blocks = 1}};
  return content;
}

void set_golden_block(PagedPool& pool, BlockId id, int run, int block, int tokens) {
  const auto set = [](std::span<std::byte> block, int index, int value) {
    const auto bits = static_cast<std::uint16_t>(value);
    std::memcpy(&block[static_cast<std::size_t>(index) * 2], &bits, 2);
  };
  for (int i = 0; i < 2 * 2; ++i) {
    const int layer = i / 2, head = i % 2;
    const auto bytes = pool.head_blocks(layer, head, id);
    for (int slot = 0; slot < tokens; ++slot) {
      for (int dim = 0; dim < 32; ++dim) {
        const int at = ((run * 2 + layer) * 2 + head) * 8 + block;
        const int value = 0x3f00 + (at * 131 + slot * 7 + dim * 3) % 256;
        set(bytes, (dim / 2 * 4 + slot) * 2 + dim % 2, value);
        set(bytes, 128 + (slot / 2 * 32 + dim) * 2 + slot % 2, value ^ 0x8000);
      }
    }
  }
}

PagedPool golden_pool() {
  PagedPool pool = random_pool(small_geometry(), 3, 61);
  set_golden_block(pool, {0}, 0, 0, 4);
  set_golden_block(pool, {1}, 0, 1, 2);
  set_golden_block(pool, {2}, 1, 0, 3);
  return pool;
}

TEST(KVFileGolden, FilesOfVersion1AreRead) {
  const PagedPool expected = golden_pool();
  for (const char* name : {"v1_raw.qkv", "v1_planes.qkv"}) {
    const auto file = KVFile::open(golden_folder / name);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE(file->verify().ok());
    const KVFileContent content = golden_content();
    EXPECT_TRUE(file->check_fits(content.fingerprint, content.geometry).ok());
    EXPECT_EQ(file->content().metadata_json, content.metadata_json);
    EXPECT_EQ(file->content().object_hash, content.object_hash);
    ASSERT_EQ(file->content().runs.size(), 2U);
    PagedPool to = random_pool(small_geometry(), 3, 62);
    for (std::size_t run = 0; run < 2; ++run) {
      EXPECT_EQ(file->content().runs[run].tokens, content.runs[run].tokens);
      EXPECT_EQ(file->content().runs[run].start_position, content.runs[run].start_position);
      ASSERT_TRUE(read_run(*file, static_cast<int>(run), golden_blocks[run], to).ok());
      EXPECT_EQ(pool_bytes(to, golden_blocks[run]),
                kv_bytes(expected, golden_blocks[run], content.runs[run].tokens.size()));
    }
  }
}

TEST(KVFileGolden, AFileOfVersion2HasLostBlocksAndIsWhatIsWritten) {
  const KVFileContent content = golden_with_lost();
  PagedPool pool = random_pool(content.geometry, 2, 63);
  set_golden_block(pool, {1}, 1, 1, 2);
  const auto file = KVFile::open(golden_folder / "v2_lost.qkv");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify().ok());
  for (std::size_t run = 0; run < 2; ++run) {
    EXPECT_EQ(file->content().runs[run].tokens, content.runs[run].tokens);
    EXPECT_EQ(file->content().runs[run].start_position, content.runs[run].start_position);
    EXPECT_EQ(file->content().runs[run].lost_blocks, 1);
  }
  PagedPool to = random_pool(content.geometry, 1, 64);
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(file->read_layer(1, layer, 1, ids({0}), to).ok());
  }
  EXPECT_EQ(pool_bytes(to, ids({0})), kv_bytes(pool, ids({1}), 2));
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, content, pool, {{{}, ids({1})}}).ok());
  EXPECT_EQ(file_bytes_of(path), file_bytes_of(golden_folder / "v2_lost.qkv"));
}

// Run 0 has the numbers of version 1 in float32: their upper halves are those of bf16.
TEST(KVFileGolden, AFileOfVersion3HasTypesOfRunsAndIsWhatIsWritten) {
  KVFileContent content = golden_content();
  content.runs[0].type = {.dtype = tensor::DType::kFloat32};
  const auto file = KVFile::open(golden_folder / "v3_types.qkv");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify().ok());
  EXPECT_EQ(file->content().runs[0].type, content.runs[0].type);
  EXPECT_EQ(file->content().runs[1].type, std::nullopt);
  PagedPool pool = random_pool(small_geometry(), 7, 65);
  ASSERT_TRUE(pool.add_format(small_geometry(tensor::DType::kFloat32)).ok());
  const std::vector<std::vector<BlockId>> blocks = {ids({1, 0}), ids({6})};
  for (int run = 0; run < 2; ++run) {
    ASSERT_TRUE(read_run(*file, run, blocks[static_cast<std::size_t>(run)], pool).ok());
  }
  const PagedPool bf16 = golden_pool();
  const auto wide = pool.head_blocks(1, 0, {1}, 1, kv::FormatId{1});
  const auto narrow = bf16.head_blocks(1, 0, {0});
  EXPECT_EQ(wide[2], narrow[0]) << "K of slot 0";
  EXPECT_EQ(wide[3], narrow[1]);
  EXPECT_EQ(pool_bytes(pool, blocks[1]), kv_bytes(bf16, golden_blocks[1], 3));
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, content, pool, blocks).ok());
  EXPECT_EQ(file_bytes_of(path), file_bytes_of(golden_folder / "v3_types.qkv"));
}

// A full block of codes in the file's format, then the rest in bfloat16.
TEST(KVFileGolden, FilesOfBlocksOfCodesAreReadAndAreWhatIsWritten) {
  for (const auto format : {tensor::KVFormat::kFp8, tensor::KVFormat::kInt4}) {
    const bool fp8 = format == tensor::KVFormat::kFp8;
    const auto golden = golden_folder / (fp8 ? "v3_fp8.qkv" : "v3_int4.qkv");
    KVFileContent content = golden_content();
    content.geometry = small_geometry(tensor::DType::kBFloat16, 32, format);
    content.runs = {{}, {.tokens = {5, 6, 7}, .start_position = 32}};
    for (TokenId id = 40; id < 72; ++id) {
      content.runs[0].tokens.push_back(id);
    }
    content.runs[1].type = {.dtype = tensor::DType::kBFloat16};
    const auto file = KVFile::open(golden);
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_TRUE(file->verify().ok()) << file->verify().error().message;
    EXPECT_TRUE(file->check_fits(content.fingerprint, content.geometry).ok());
    PagedPool pool = random_pool(content.geometry, 9, 65);
    ASSERT_TRUE(pool.add_format(small_geometry(tensor::DType::kBFloat16, 32)).ok());
    const std::vector<std::vector<BlockId>> blocks = {ids({0}), ids({1})};  // of other bytes
    for (int run = 0; run < 2; ++run) {
      EXPECT_EQ(file->content().runs[static_cast<std::size_t>(run)].type,
                content.runs[static_cast<std::size_t>(run)].type);
      ASSERT_TRUE(read_run(*file, run, blocks[static_cast<std::size_t>(run)], pool).ok());
    }
    EXPECT_EQ(pool.head_blocks(0, 0, {0})[9], std::byte{9 * 7});
    const TemporaryFolder folder;
    const auto path = folder.path() / "a";
    ASSERT_TRUE(write_kv_file(path, content, pool, blocks).ok());
    EXPECT_EQ(file_bytes_of(path), file_bytes_of(golden));
  }
}

TEST(KVFileGolden, AFileOfVersion6HasLostWindowPartsAndIsWhatIsWritten) {
  KVFileContent content = golden_content();
  content.runs[0].lost_parts = 1;
  const PagedPool pool = golden_pool();
  const auto file = KVFile::open(golden_folder / "v6_parts.qkv");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify().ok());
  EXPECT_EQ(file->content().runs[0].lost_parts, 1);
  EXPECT_EQ(file->content().runs[1].lost_parts, 0);
  PagedPool to = random_pool(small_geometry(), 3, 66);
  ASSERT_TRUE(file->read_layer(0, 0, 0, golden_blocks[0], to).ok());
  ASSERT_TRUE(file->read_layer(0, 1, 1, ids({1}), to).ok());
  EXPECT_EQ(pool_bytes(to, ids({1})), kv_bytes(pool, ids({1}), 2));
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, content, pool, golden_blocks).ok());
  EXPECT_EQ(file_bytes_of(path), file_bytes_of(golden_folder / "v6_parts.qkv"));
}

TEST(KVFileGolden, WhatIsWrittenIsWhatTheDocumentSays) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a";
  const PagedPool pool = golden_pool();
  ASSERT_TRUE(write_kv_file(path, golden_content(), pool, golden_blocks).ok());
  EXPECT_EQ(file_bytes_of(path), file_bytes_of(golden_folder / "v1_raw.qkv"));
  // zstd promises to read what it once wrote, not to write the same for ever.
  ASSERT_TRUE(write_kv_file(path, golden_content(), pool, golden_blocks, {.compress = true}).ok());
  EXPECT_LT(std::filesystem::file_size(path),
            std::filesystem::file_size(golden_folder / "v1_raw.qkv"));
  KVFileContent metadata_alone = golden_content();
  metadata_alone.runs.clear();
  ASSERT_TRUE(write_kv_file(path, metadata_alone, pool, {}).ok());
  EXPECT_EQ(file_bytes_of(path), file_bytes_of(golden_folder / "v1_metadata.qkv"));
}

}  // namespace
}  // namespace quire::kv_store
