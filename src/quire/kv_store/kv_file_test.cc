#include "quire/kv_store/kv_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/kv_fingerprint.h"
#include "quire/base/temporary_folder.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/dtype.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using tensor::DType;
using tensor::KVGeometry;
using ::testing::HasSubstr;

// Two runs: 10 tokens in 3 blocks out of order, 4 tokens in exactly one block.
struct SavedFile {
  KVFileContent content;
  std::vector<std::vector<BlockId>> blocks;
};

SavedFile two_runs(const KVGeometry& geometry) {
  return {.content = {.fingerprint = fingerprint_of(1),
                      .geometry = geometry,
                      .runs = {run_of(10, 0), run_of(4, 32000, 90)},
                      .metadata_json = R"({"name":"a","é":[1,2]})"},
          .blocks = {ids({5, 1, 2}), ids({3})}};
}

TEST(KVFile, GivesBackEveryByteInAnyBlocksAndZerosBehindTheLastToken) {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat16}) {
    for (const auto compress : {Compression::kNone, Compression::kZstd, Compression::kLz4}) {
      const PagedPool from = random_pool(small_geometry(dtype), 6, 1);
      const SavedFile saved = two_runs(from.geometry());
      const auto path = folder.path() / "a.qkv";
      ASSERT_TRUE(
          write_kv_file(path, saved.content, from, saved.blocks, {.compress = compress}).ok());
      const auto file = KVFile::open(path);
      ASSERT_TRUE(file.ok()) << file.error().message;
      EXPECT_TRUE(file->verify().ok());
      EXPECT_EQ(static_cast<int>(file->codec()), static_cast<int>(compress));
      EXPECT_EQ(file->content().metadata_json, saved.content.metadata_json);
      EXPECT_TRUE(file->content().fingerprint == saved.content.fingerprint);
      EXPECT_EQ(file->content().geometry.window_tokens, from.geometry().window_tokens);
      PagedPool to = random_pool(small_geometry(dtype), 9, 2);
      const std::vector<std::vector<BlockId>> targets = {ids({8, 0, 1}), ids({6})};
      for (std::size_t run = 0; run < 2; ++run) {
        EXPECT_EQ(file->content().runs[run].tokens, saved.content.runs[run].tokens);
        EXPECT_EQ(file->content().runs[run].start_position, saved.content.runs[run].start_position);
        ASSERT_TRUE(read_run(*file, static_cast<int>(run), targets[run], to).ok());
        EXPECT_EQ(pool_bytes(to, targets[run]),
                  kv_bytes(from, saved.blocks[run], saved.content.runs[run].tokens.size()));
      }
    }
  }
}

// In memory and on a disk; head blocks of whole pages, and smaller ones, which no file system
// takes.
TEST(KVFile, IsTheSameWhetherItIsWrittenThroughThePageCacheOrPastIt) {
  KVGeometry pages = small_geometry();
  pages.head_dim = 64;
  pages.block_tokens = 16;
  ASSERT_EQ(pages.head_block_bytes(), 4096);
  const TemporaryFolder in_memory;
  const base::TemporaryFolder on_disk(::testing::TempDir());
  for (const std::filesystem::path& folder : {in_memory.path(), on_disk.path()}) {
    for (const KVGeometry& geometry : {pages, small_geometry()}) {
      const PagedPool from = random_pool(geometry, 200, 1);
      KVFileContent content = two_runs(geometry).content;
      const int block_tokens = geometry.block_tokens;
      content.runs = {run_of(2 * block_tokens + 2), run_of(3 * block_tokens, 900, 90)};
      const std::vector<std::vector<BlockId>> blocks = {ids({5, 150, 2}), ids({3, 8, 9})};
      for (const auto compress : {Compression::kNone, Compression::kZstd, Compression::kLz4}) {
        const auto write = [&](const char* name, bool direct) {
          const Status written =
              write_kv_file(folder / name, content, from, blocks,
                            {.sync = direct, .compress = compress, .direct = direct});
          EXPECT_TRUE(written.ok());
          return file_bytes_of(folder / name);
        };
        EXPECT_EQ(write("past", true), write("through", false)) << folder << compress;
        EXPECT_TRUE(KVFile::open(folder / "past")->verify().ok());
      }
    }
  }
}

// The oracle is the naive layout of tensor/paged_kv_view.h.
TEST(KVFile, NothingOfASlotWithoutATokenIsWritten) {
  const TemporaryFolder folder;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat16}) {
    for (const int tokens : {1, 2, 3, 4}) {
      PagedPool from = random_pool(small_geometry(dtype), 2, 3);
      KVFileContent content = two_runs(from.geometry()).content;
      content.runs = {run_of(tokens)};
      const auto a = folder.path() / "a", b = folder.path() / "b";
      ASSERT_TRUE(write_kv_file(a, content, from, {{ids({1})}}, {.sync = false}).ok());
      const int pack = dtype == DType::kFloat32 ? 1 : 2, dim = 32, slots = 4;
      const int value_bytes = tensor::dtype_bytes(dtype);
      std::span<std::byte> block = from.head_blocks(1, 1, BlockId{1});
      for (int slot = tokens; slot < slots; ++slot) {
        for (int d = 0; d < dim; ++d) {
          const int k = (d / pack * slots + slot) * pack + d % pack;
          const int v = dim * slots + (slot / pack * dim + d) * pack + slot % pack;
          for (int byte = 0; byte < value_bytes; ++byte) {
            block[static_cast<std::size_t>(k * value_bytes + byte)] ^= std::byte{0xff};
            block[static_cast<std::size_t>(v * value_bytes + byte)] ^= std::byte{0xff};
          }
        }
      }
      ASSERT_TRUE(write_kv_file(b, content, from, {{ids({1})}}, {.sync = false}).ok());
      EXPECT_EQ(file_bytes_of(a), file_bytes_of(b)) << tokens;
      block[0] ^= std::byte{1};  // slot 0 has a token
      ASSERT_TRUE(write_kv_file(b, content, from, {{ids({1})}}, {.sync = false}).ok());
      EXPECT_NE(file_bytes_of(a), file_bytes_of(b));
    }
  }
}

// Covers codes and scales of int8. The file gives back every byte, compressed or not.
TEST(KVFile, Int8KeepsCodesAndScalesOfTokensAndNothingElse) {
  const TemporaryFolder folder;
  constexpr std::array<int, 4> kOrder = {0, 2, 1, 3};
  const int dim = 32, slots = 4;
  for (const int tokens : {1, 2, 3, 4}) {
    PagedPool from =
        random_pool(small_geometry(DType::kBFloat16, 4, tensor::KVFormat::kInt8), 2, 3);
    KVFileContent content = two_runs(from.geometry()).content;
    content.runs = {run_of(tokens)};
    for (const auto compress : {Compression::kNone, Compression::kZstd, Compression::kLz4}) {
      const WriteOptions options = {.sync = false, .compress = compress};
      const auto a = folder.path() / "a", b = folder.path() / "b";
      ASSERT_TRUE(write_kv_file(a, content, from, {{ids({1})}}, options).ok());
      std::span<std::byte> block = from.head_blocks(1, 1, BlockId{1});
      const auto flip = [&](int at) { block[static_cast<std::size_t>(at)] ^= std::byte{0xff}; };
      for (int slot = tokens; slot < slots; ++slot) {
        for (int d = 0; d < dim; ++d) {
          flip((d / 4 * slots + slot) * 4 + d % 4);
          flip(dim * slots + d * 4 + kOrder[static_cast<std::size_t>(slot)]);
        }
        flip(2 * dim * slots + 2 * slot);
        flip(2 * dim * slots + 2 * (slots + slot));
      }
      ASSERT_TRUE(write_kv_file(b, content, from, {{ids({1})}}, options).ok());
      EXPECT_EQ(file_bytes_of(a), file_bytes_of(b)) << tokens << compress;
      flip(2 * dim * slots + 2 * slots);  // the scale of V of slot 0, which has a token
      ASSERT_TRUE(write_kv_file(b, content, from, {{ids({1})}}, options).ok());
      EXPECT_NE(file_bytes_of(a), file_bytes_of(b));
      const auto file = KVFile::open(b);
      ASSERT_TRUE(file.ok()) << file.error().message;
      EXPECT_EQ(file->content().geometry.format, tensor::KVFormat::kInt8);
      EXPECT_TRUE(file->verify().ok());
      EXPECT_EQ(geometry_difference(file->content().geometry, small_geometry()),
                "kv_dtype is int8, here it is bfloat16");
    }
  }
}

TEST(KVFile, EqualInputGivesEqualBytesWhereverItsBlocksLie) {
  const TemporaryFolder folder;
  const PagedPool from = random_pool(small_geometry(), 6, 4);
  PagedPool copy = random_pool(small_geometry(), 6, 5);
  const SavedFile saved = two_runs(from.geometry());
  const auto a = folder.path() / "a", b = folder.path() / "b";
  for (const auto compress : {Compression::kNone, Compression::kZstd, Compression::kLz4}) {
    ASSERT_TRUE(write_kv_file(a, saved.content, from, saved.blocks, {.compress = compress}).ok());
    const auto file = KVFile::open(a);
    ASSERT_TRUE(file.ok());
    const std::vector<std::vector<BlockId>> moved = {ids({0, 2, 4}), ids({1})};
    ASSERT_TRUE(read_run(*file, 0, moved[0], copy).ok());
    ASSERT_TRUE(read_run(*file, 1, moved[1], copy).ok());
    ASSERT_TRUE(write_kv_file(b, saved.content, copy, moved, {.compress = compress}).ok());
    EXPECT_EQ(file_bytes_of(a), file_bytes_of(b));
  }
}

TEST(KVFile, ReadsAPartOfARun) {
  const TemporaryFolder folder;
  const PagedPool from = random_pool(small_geometry(), 100, 6);
  SavedFile saved = two_runs(from.geometry());
  saved.content.runs = {run_of(4 * 90)};
  saved.blocks.assign(1, {});
  for (std::int32_t i = 0; i < 90; ++i) {
    saved.blocks[0].push_back(BlockId{(i * 37) % 100});  // more than a batch, in no order
  }
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, saved.content, from, saved.blocks).ok());
  const auto file = KVFile::open(path);
  ASSERT_TRUE(file.ok());
  PagedPool to = random_pool(small_geometry(), 80, 7);
  std::vector<BlockId> targets, sources;
  for (std::int32_t i = 0; i < 70; ++i) {
    targets.push_back(BlockId{i < 35 ? i : 79 - (i - 35)});
    sources.push_back(saved.blocks[0][static_cast<std::size_t>(i + 13)]);
  }
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(file->read_layer(0, layer, 13, targets, to).ok());
  }
  EXPECT_EQ(pool_bytes(to, targets), pool_bytes(from, sources));
  // By way of memory.
  PagedPool again = random_pool(small_geometry(), 80, 8);
  std::vector<std::byte> bytes(targets.size() *
                               static_cast<std::size_t>(again.geometry().block_bytes() / 2));
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(file->read_layer(0, layer, 13, bytes).ok());
    ASSERT_TRUE(again.write_layer(layer, targets, bytes).ok());
  }
  EXPECT_EQ(pool_bytes(again, targets), pool_bytes(from, sources));
}

TEST(KVFile, APayloadAsInMemoryBeginsAtAPage) {
  const TemporaryFolder folder;
  const PagedPool from = random_pool(small_geometry(), 6, 8);
  const SavedFile saved = two_runs(from.geometry());
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, saved.content, from, saved.blocks).ok());
  const std::vector<char> bytes = file_bytes_of(path);
  const auto second = pool_bytes(from, saved.blocks[1]);
  ASSERT_EQ(bytes.size(),
            2 * 4096 + kv_bytes(from, saved.blocks[0], 10).size() / 4096 * 4096 + second.size());
  EXPECT_TRUE(std::equal(
      second.begin(), second.end(),
      std::as_bytes(std::span(bytes)).end() - static_cast<std::ptrdiff_t>(second.size())));
}

TEST(KVFile, HoldsMetadataAlone) {
  const TemporaryFolder folder;
  const PagedPool pool = random_pool(small_geometry(), 1, 9);
  const KVFileContent content{.fingerprint = fingerprint_of(1),
                              .geometry = pool.geometry(),
                              .metadata_json = R"({"turns":[]})"};
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, content, pool, {}).ok());
  const auto file = KVFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->content().metadata_json, content.metadata_json);
  EXPECT_EQ(file->payload_bytes(), 0);
  EXPECT_TRUE(file->verify().ok());
}

TEST(KVFile, SmallValuesCompressAndChanceStaysAsItIs) {
  const TemporaryFolder folder;
  PagedPool pool = random_pool(small_geometry(DType::kBFloat16, 32), 4, 10);
  KVFileContent content = two_runs(pool.geometry()).content;
  content.runs = {run_of(128)};
  const std::vector<std::vector<BlockId>> blocks = {ids({0, 1, 2, 3})};
  const auto raw = folder.path() / "raw", packed = folder.path() / "packed";
  const auto sizes = [&] {
    EXPECT_TRUE(write_kv_file(raw, content, pool, blocks).ok());
    EXPECT_TRUE(write_kv_file(packed, content, pool, blocks, {.compress = true}).ok());
    const auto file = KVFile::open(packed);
    EXPECT_TRUE(file.ok() && file->verify().ok());
    return std::pair(std::filesystem::file_size(raw), std::filesystem::file_size(packed));
  };
  const auto [raw_chance, packed_chance] = sizes();
  EXPECT_LE(packed_chance, raw_chance + 4096);  // a size for each head block, one page at most
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) {
      const auto bytes = pool.head_blocks(layer, head, BlockId{0}, 4);
      for (std::size_t i = 0; i < bytes.size(); i += 2) {
        const std::uint16_t bits = tensor::float_to_bf16(normal(random));
        std::memcpy(&bytes[i], &bits, 2);
      }
    }
  }
  const auto [raw_normal, packed_normal] = sizes();
  EXPECT_LT(static_cast<double>(packed_normal), 0.85 * static_cast<double>(raw_normal));
}

TEST(KVFile, SaysWhatDiffersFromTheModel) {
  const TemporaryFolder folder;
  const PagedPool pool = random_pool(small_geometry(), 6, 12);
  const SavedFile saved = two_runs(pool.geometry());
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, saved.content, pool, saved.blocks).ok());
  const auto file = KVFile::open(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->check_fits(fingerprint_of(1), small_geometry()).ok());
  const auto message = [&](const base::KVFingerprint& fingerprint, const KVGeometry& geometry) {
    const Status fits = file->check_fits(fingerprint, geometry);
    EXPECT_FALSE(fits.ok());
    EXPECT_EQ(fits.error().code, ErrorCode::kIncompatible);
    return fits.error().message;
  };
  EXPECT_THAT(message(fingerprint_of(2), small_geometry()), HasSubstr("another model"));
  KVGeometry other = small_geometry();
  other.layers = 3;
  EXPECT_THAT(message(fingerprint_of(1), other), HasSubstr("layers is 2, here it is 3"));
  other = small_geometry();
  other.kv_heads = 1;
  EXPECT_THAT(message(fingerprint_of(1), other), HasSubstr("kv_heads is 2, here it is 1"));
  other = small_geometry();
  other.head_dim = 9;
  EXPECT_THAT(message(fingerprint_of(1), other), HasSubstr("head_dim is 8, here it is 9"));
  other = small_geometry(DType::kFloat32);
  EXPECT_THAT(message(fingerprint_of(1), other),
              HasSubstr("dtype is bfloat16, here it is float32"));
  other = small_geometry(DType::kFloat16);  // of the same size
  EXPECT_THAT(message(fingerprint_of(1), other),
              HasSubstr("dtype is bfloat16, here it is float16"));
  other = small_geometry(DType::kBFloat16, 8);
  EXPECT_THAT(message(fingerprint_of(1), other), HasSubstr("block_tokens is 4, here it is 8"));
  other = small_geometry();
  other.window_tokens[1] = 0;
  EXPECT_THAT(message(fingerprint_of(1), other), HasSubstr("the window of layer 1 is 16"));
  PagedPool pool_of_other = random_pool(small_geometry(DType::kFloat32), 6, 1);
  EXPECT_EQ(file->read_layer(1, 0, 0, ids({0}), pool_of_other).error().code,
            ErrorCode::kIncompatible);
}

TEST(KVFile, RefusesToReadWhatIsNotThere) {
  const TemporaryFolder folder;
  PagedPool pool = random_pool(small_geometry(), 6, 13);
  const SavedFile saved = two_runs(pool.geometry());
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, saved.content, pool, saved.blocks).ok());
  const auto file = KVFile::open(path);
  ASSERT_TRUE(file.ok());
  const auto message = [&](int run, int layer, std::int32_t first, const std::vector<BlockId>& to) {
    const Status read = file->read_layer(run, layer, first, to, pool);
    EXPECT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument);
    return read.error().message;
  };
  EXPECT_THAT(message(2, 0, 0, ids({0})), HasSubstr("run 2 of 2"));
  EXPECT_THAT(message(-1, 0, 0, ids({0})), HasSubstr("run -1 of 2"));
  EXPECT_THAT(message(0, 2, 0, ids({0})), HasSubstr("layer 2 of 2"));
  EXPECT_THAT(message(0, 0, 2, ids({0, 1})), HasSubstr("2 blocks from block 2 on, the run has 3"));
  EXPECT_THAT(message(0, 0, -1, ids({0})), HasSubstr("from block -1 on"));
  EXPECT_THAT(message(0, 0, 4, {}), HasSubstr("from block 4 on"));
  EXPECT_THAT(message(0, 0, 0, ids({6})), HasSubstr("block 6 of 6"));
  EXPECT_TRUE(file->read_layer(0, 0, 3, {}, pool).ok());
  std::vector<std::byte> bytes(static_cast<std::size_t>(pool.geometry().block_bytes() / 2 + 1));
  EXPECT_THAT(file->read_layer(0, 0, 0, bytes).error().message, HasSubstr("whole blocks"));
  bytes.pop_back();
  EXPECT_TRUE(file->read_layer(0, 0, 0, bytes).ok());
  EXPECT_THAT(file->read_layer(0, 0, 3, bytes).error().message, HasSubstr("the run has 3"));
}

TEST(KVFile, RefusesToWriteWhatContradictsItself) {
  const TemporaryFolder folder;
  const PagedPool pool = random_pool(small_geometry(), 6, 14);
  const SavedFile good = two_runs(pool.geometry());
  const auto message = [&](const SavedFile& saved) {
    const Status written = write_kv_file(folder.path() / "a", saved.content, pool, saved.blocks);
    EXPECT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::kInvalidArgument);
    return written.ok() ? "" : written.error().message;
  };
  SavedFile bad = good;
  bad.content.fingerprint = {};
  EXPECT_THAT(message(bad), HasSubstr("fingerprint is empty"));
  bad = good;
  bad.content.geometry.kv_heads = 3;
  EXPECT_THAT(message(bad), HasSubstr("kv_heads is 3, here it is 2"));
  bad = good;
  bad.content.geometry.window_tokens = {0};
  EXPECT_THAT(message(bad), HasSubstr("1 windows for 2 layers"));
  bad = good;
  bad.content.runs[1].tokens.clear();
  EXPECT_THAT(message(bad), HasSubstr("run 1 has no tokens"));
  bad = good;
  bad.content.runs[0].tokens[3] = -2;
  EXPECT_THAT(message(bad), HasSubstr("token id -2 is negative"));
  bad = good;
  bad.content.runs[0].start_position = 2147483640;
  EXPECT_THAT(message(bad), HasSubstr("begins at position 2147483640 with 10 tokens"));
  bad = good;
  bad.blocks.pop_back();
  EXPECT_THAT(message(bad), HasSubstr("2 runs, but blocks for 1"));
  bad = good;
  bad.blocks[0].pop_back();
  EXPECT_THAT(message(bad), HasSubstr("run 0 of 10 tokens needs 3 blocks, given are 2"));
  bad = good;
  bad.blocks[0][1] = BlockId{6};
  EXPECT_THAT(message(bad), HasSubstr("run 0 names block 6, the paged pool has 6"));
  bad = good;
  bad.content.metadata_json = "[1]";
  EXPECT_THAT(message(bad), HasSubstr("not a json object"));
  bad = good;
  bad.content.metadata_json = R"({"a":")" + std::string(kMaxMetadataBytes, 'x') + R"("})";
  EXPECT_THAT(message(bad), HasSubstr("at most 1048576"));
  bad = good;
  bad.content.object_hash = "../../etc/passwd";
  EXPECT_THAT(message(bad), HasSubstr("not 64 hexadecimal digits"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(KVFile, IsPrivateToItsUser) {
  const TemporaryFolder folder;
  const PagedPool pool = random_pool(small_geometry(), 6, 15);
  const SavedFile saved = two_runs(pool.geometry());
  const mode_t before = ::umask(0);
  ASSERT_TRUE(write_kv_file(folder.path() / "a", saved.content, pool, saved.blocks).ok());
  ::umask(before);
  struct stat info{};
  ASSERT_EQ(::stat((folder.path() / "a").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(KVFile, ErrorsOfTheSystemNameThePathAndLeaveTheOldFileWhole) {
  const TemporaryFolder folder;
  const PagedPool pool = random_pool(small_geometry(), 6, 16);
  const SavedFile saved = two_runs(pool.geometry());
  const auto path = folder.path() / "a";
  EXPECT_EQ(KVFile::open(path).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(KVFile::open(folder.path()).error().code, ErrorCode::kIo);
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(KVFile::open(folder.path() / "pipe").error().message,
              HasSubstr("not a regular file"));
  ::unlink((folder.path() / "pipe").c_str());
  EXPECT_EQ(
      write_kv_file(folder.path() / "no" / "a", saved.content, pool, saved.blocks).error().code,
      ErrorCode::kNotFound);
  ASSERT_TRUE(write_kv_file(path, saved.content, pool, saved.blocks).ok());
  const std::vector<char> before = file_bytes_of(path);
  SavedFile larger = saved;
  larger.content.metadata_json = R"({"other":true})";
  // A full disk, at every size that a file may reach: EFBIG stands for ENOSPC.
  const auto old_action = ::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  int refused = 0;
  for (rlim_t bytes = 0; bytes < before.size(); bytes += 97) {
    const rlimit small{.rlim_cur = bytes, .rlim_max = limit.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    const Status written = write_kv_file(path, larger.content, pool, saved.blocks);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    ASSERT_FALSE(written.ok());
    EXPECT_EQ(written.error().code, ErrorCode::kIo);
    EXPECT_THAT(written.error().message, HasSubstr(path.string()));
    ++refused;
  }
  ::signal(SIGXFSZ, old_action);
  EXPECT_GT(refused, 50);
  EXPECT_EQ(file_bytes_of(path), before);
  const auto left = std::distance(std::filesystem::directory_iterator(folder.path()), {});
  EXPECT_EQ(left, 1) << "temporary files stay behind";
}

TEST(KVFile, NothingButAFileIsReplacedAndLinksAreFollowed) {
  const TemporaryFolder folder;
  const PagedPool pool = random_pool(small_geometry(), 6, 16);
  const SavedFile saved = two_runs(pool.geometry());
  ASSERT_EQ(::mkfifo((folder.path() / "pipe").c_str(), 0600), 0);
  std::filesystem::create_directory(folder.path() / "folder");
  std::filesystem::create_symlink("pipe", folder.path() / "to pipe");
  for (const std::string name : {"pipe", "folder", "to pipe"}) {
    const Status written = write_kv_file(folder.path() / name, saved.content, pool, saved.blocks);
    ASSERT_FALSE(written.ok()) << name;
    EXPECT_EQ(written.error().code, ErrorCode::kIo);
    EXPECT_THAT(written.error().message,
                HasSubstr(name == "folder" ? "directory" : "not a regular file"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(folder.path() / "pipe"));
  for (const std::filesystem::path& path : {folder.path() / "", std::filesystem::path()}) {
    EXPECT_EQ(write_kv_file(path, saved.content, pool, saved.blocks).error().code,
              ErrorCode::kInvalidArgument);
  }
  ASSERT_TRUE(write_kv_file(folder.path() / "a", saved.content, pool, saved.blocks).ok());
  std::filesystem::create_symlink("a", folder.path() / "link");
  const auto before = file_bytes_of(folder.path() / "a");
  SavedFile other = saved;
  other.content.metadata_json = R"({"other":true})";
  ASSERT_TRUE(write_kv_file(folder.path() / "link", other.content, pool, saved.blocks).ok());
  EXPECT_TRUE(std::filesystem::is_symlink(folder.path() / "link"));
  EXPECT_NE(file_bytes_of(folder.path() / "a"), before);
}

TEST(KVFile, BlocksThatAreVerifiedWithoutADestinationAreThoseThatAreAskedFor) {
  constexpr std::int32_t kBlocks = 300;  // more than are read at a time
  const TemporaryFolder folder;
  const PagedPool pool = random_pool(small_geometry(), kBlocks, 18);
  const auto path = folder.path() / "a";
  KVFileContent content = two_runs(pool.geometry()).content;
  content.runs = {run_of(kBlocks * pool.geometry().block_tokens)};
  std::vector<std::vector<BlockId>> blocks(1);
  for (std::int32_t block = 0; block < kBlocks; ++block) {
    blocks[0].push_back({block});
  }
  ASSERT_TRUE(write_kv_file(path, content, pool, blocks).ok());
  std::vector<char> bytes = file_bytes_of(path);
  std::mt19937_64 random(19);
  for (int round = 0; round < 50; ++round) {
    const auto piece = static_cast<std::int32_t>(random() % (4 * kBlocks));  // 2 layers, 2 heads
    const auto back = (std::int64_t{4} * kBlocks - piece) * pool.geometry().head_block_bytes();
    char& byte = *(bytes.end() - back);
    byte = static_cast<char>(byte ^ 1);
    write_bytes(path, bytes);
    byte = static_cast<char>(byte ^ 1);
    const KVFile file = KVFile::open(path).value();
    EXPECT_FALSE(file.verify().ok());
    const int layer = piece / (2 * kBlocks);
    const std::int32_t block = piece % kBlocks;
    EXPECT_EQ(file.verify_layer(0, layer, 0, kBlocks).error().code, ErrorCode::kCorrupt);
    EXPECT_TRUE(file.verify_layer(0, 1 - layer, 0, kBlocks).ok());
    EXPECT_TRUE(file.verify_layer(0, layer, 0, block).ok());
    EXPECT_FALSE(file.verify_layer(0, layer, 0, block + 1).ok());
    EXPECT_FALSE(file.verify_layer(0, layer, block, kBlocks - block).ok());
    EXPECT_TRUE(file.verify_layer(0, layer, block + 1, kBlocks - block - 1).ok());
    EXPECT_EQ(file.verify_layer(0, layer, block, kBlocks - block + 1).error().code,
              ErrorCode::kInvalidArgument);
  }
}

TEST(KVFile, AFileThatShrinksOrIsReplacedWhileOpenIsAnErrorOrTheOldFile) {
  const TemporaryFolder folder;
  PagedPool pool = random_pool(small_geometry(), 6, 17);
  const SavedFile saved = two_runs(pool.geometry());
  const auto path = folder.path() / "a";
  ASSERT_TRUE(write_kv_file(path, saved.content, pool, saved.blocks).ok());
  const auto file = KVFile::open(path);
  ASSERT_TRUE(file.ok());
  SavedFile other = saved;
  std::swap(other.blocks[0][0], other.blocks[0][1]);
  ASSERT_TRUE(write_kv_file(path, other.content, pool, other.blocks).ok());
  EXPECT_TRUE(file->verify().ok()) << "an open file is the one that was opened";
  const auto again = KVFile::open(path);
  ASSERT_TRUE(again.ok());
  ASSERT_EQ(::truncate(path.c_str(), 5000), 0);
  EXPECT_EQ(again->verify().error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(read_run(*again, 0, ids({0, 1, 2}), pool).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace quire::kv_store
