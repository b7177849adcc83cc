// Damage of every kind to small files: each is an error, or what is read is exactly what was saved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/test_length.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;

Result<KVFile> open_bytes(std::span<const char> bytes) {
  Descriptor file(::memfd_create("damaged", MFD_CLOEXEC));
  EXPECT_TRUE(write_at(file, std::as_bytes(bytes), 0, "memory").ok());
  return KVFile::open(std::move(file), "damaged.qkv");
}

// One saved file and what reading it must give.
class Faults : public ::testing::TestWithParam<Compression::Codec> {
 protected:
  Faults()
      : from_(random_pool(small_geometry(), 6, 21)), to_(random_pool(small_geometry(), 6, 22)) {
    content_ = {.fingerprint = fingerprint_of(1),
                .geometry = from_.geometry(),
                .runs = {run_of(10), run_of(3, 10)},
                .metadata_json = R"({"n":1})"};
    const TemporaryFolder folder;
    const auto path = folder.path() / "a";
    // Something that compresses, so that decompression sees the damage too.
    for (int head = 0; head < 2; ++head) {
      const auto bytes = from_.head_blocks(0, head, BlockId{0}, 6);
      std::fill(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2),
                std::byte{9});
    }
    EXPECT_TRUE(write_kv_file(path, content_, from_, blocks_, {.compress = GetParam()}).ok());
    bytes_ = file_bytes_of(path);
  }

  // True when the damage was noticed; fails the test when it was not and something changed.
  bool noticed(std::span<const char> damaged) {
    ++faults_;
    const auto file = open_bytes(damaged);
    if (!file.ok()) {
      EXPECT_TRUE(file.error().code == ErrorCode::kCorrupt ||
                  file.error().code == ErrorCode::kUnsupported)
          << file.error().message;
      EXPECT_THAT(file.error().message, HasSubstr("damaged.qkv"));
      return true;
    }
    EXPECT_EQ(file->content().metadata_json, content_.metadata_json);
    EXPECT_TRUE(file->check_fits(content_.fingerprint, content_.geometry).ok());
    EXPECT_EQ(file->content().runs.size(), 2U);
    bool any = false;
    for (std::size_t run = 0; run < 2; ++run) {
      EXPECT_EQ(file->content().runs[run].tokens, content_.runs[run].tokens);
      EXPECT_EQ(file->content().runs[run].start_position, content_.runs[run].start_position);
      const Status read = read_run(*file, static_cast<int>(run), targets_[run], to_);
      if (!read.ok()) {
        EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
        any = true;
        continue;
      }
      EXPECT_EQ(pool_bytes(to_, targets_[run]),
                kv_bytes(from_, blocks_[run], content_.runs[run].tokens.size()));
    }
    EXPECT_EQ(file->verify().ok(), !any);
    return any;
  }

  PagedPool from_;
  PagedPool to_;
  KVFileContent content_;
  std::vector<std::vector<BlockId>> blocks_ = {ids({5, 1, 2}), ids({3})};
  std::vector<std::vector<BlockId>> targets_ = {ids({0, 1, 4}), ids({2})};
  std::vector<char> bytes_;
  int faults_ = 0;
};

// A compressed block may have bits that change nothing of what it says.
TEST_P(Faults, EveryFlippedBitIsNoticed) {
  std::mt19937_64 random(23);
  const auto header = make_header(content_, Codec::kRaw);
  const std::size_t front = kPreambleBytes + header_size(header);
  int unnoticed = 0;
  for (std::size_t i = 0; i < bytes_.size(); i += i < front ? 1 : 3) {
    std::vector<char> damaged = bytes_;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (random() % 8)));
    const bool seen = noticed(damaged);
    EXPECT_TRUE(seen || (GetParam() != Compression::kNone && i >= kPayloadAlignment))
        << "byte " << i;
    unnoticed += seen ? 0 : 1;
  }
  // Equal bytes that follow each other may be copied from any place among them. With lz4 that is a
  // match of each of 16 head blocks, whose offset has bits without a meaning.
  EXPECT_LE(unnoticed, GetParam() == Compression::kLz4 ? 16 : 4);
}

TEST_P(Faults, EveryTruncationIsNoticed) {
  for (std::size_t size = 0; size < bytes_.size(); size += size < 1200 ? 1 : 7) {
    EXPECT_TRUE(noticed(std::span(bytes_).first(size))) << size;
  }
}

TEST_P(Faults, TornAndReorderedSectorsAreNoticedOrChangeNothing) {
  std::mt19937_64 random(24);
  constexpr std::size_t kSector = 512;
  const std::size_t sectors = bytes_.size() / kSector;
  int changed = 0;
  for (int i = 0; i < 1500; ++i) {
    std::vector<char> damaged = bytes_;
    const auto sector = [&] {
      return damaged.begin() + static_cast<std::ptrdiff_t>(random() % sectors * kSector);
    };
    const auto a = sector(), b = sector();
    switch (random() % 4) {
      case 0:  // two sectors in each other's place
        std::swap_ranges(a, a + kSector, b);
        break;
      case 1:  // a sector never arrived
        std::fill(a, a + kSector, '\0');
        break;
      case 2:  // everything from here on is what was on the disk before
        std::generate(a, damaged.end(), [&] { return static_cast<char>(random()); });
        break;
      default:  // a sector written to a wrong place
        std::copy(a, a + kSector, b);
    }
    const bool seen = noticed(damaged);
    changed += damaged != bytes_ ? 1 : 0;
    EXPECT_TRUE(!seen || damaged != bytes_);
  }
  EXPECT_GT(changed, 1000);
}

TEST_P(Faults, WhatIsAppendedIsNoticed) {
  std::mt19937_64 random(25);
  for (int i = 0; i < 300; ++i) {
    std::vector<char> damaged = bytes_;
    damaged.resize(bytes_.size() + 1 + random() % 9000, static_cast<char>(random()));
    EXPECT_TRUE(noticed(damaged));
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, Faults,
                         ::testing::Values(Compression::kNone, Compression::kZstd,
                                           Compression::kLz4),
                         [](const auto& info) {
                           return info.param == Compression::kNone   ? "Raw"
                                  : info.param == Compression::kZstd ? "Zstd"
                                                                     : "Lz4";
                         });

// Checksums keep chance out, not a stranger: here the lie is sealed with checksums that are right.
std::vector<char> sealed(std::vector<std::byte> header, std::size_t payload) {
  const auto file_bytes = static_cast<std::int64_t>(kPreambleBytes + header.size() + payload);
  std::vector<std::byte> all =
      encode_preamble({.header_bytes = header.size(),
                       .file_bytes = static_cast<std::uint64_t>(file_bytes),
                       .header_checksum = checksum(header)});
  all.insert(all.end(), header.begin(), header.end());
  all.resize(static_cast<std::size_t>(file_bytes));
  std::vector<char> text(all.size());
  std::transform(all.begin(), all.end(), text.begin(),
                 [](std::byte byte) { return static_cast<char>(byte); });
  return text;
}

TEST(KVFileHostile, SealedLiesAreRefusedWithoutLargeAllocations) {
  const KVFileContent content{
      .fingerprint = fingerprint_of(1), .geometry = small_geometry(), .runs = {run_of(10)}};
  KVFileHeader header = make_header(content, Codec::kRaw);
  header.head_blocks[0].offset = place_payload(header).offsets[0];
  const std::vector<std::byte> good = encode_header(header);
  const auto payload =
      static_cast<std::size_t>(place_payload(header).file_bytes) - kPreambleBytes - good.size();
  ASSERT_TRUE(open_bytes(sealed(good, payload)).ok());
  std::mt19937_64 random(26);
  const int rounds = base::test_length(20'000, 2'000);
  int refused = 0;
  for (int i = 0; i < rounds; ++i) {
    std::vector<std::byte> bad = good;
    // A 32-bit field becomes small, large, negative or chance.
    const std::size_t at = random() % (bad.size() - 3);
    const std::uint32_t values[] = {0,          1,          0x7fffffff,
                                    0xffffffff, 0x80000000, static_cast<std::uint32_t>(random())};
    const std::uint32_t value = values[random() % 6];
    for (std::size_t byte = 0; byte < 4; ++byte) {
      bad[at + byte] = static_cast<std::byte>(value >> (8 * byte));
    }
    const auto file = open_bytes(sealed(bad, payload));
    if (!file.ok()) {
      ++refused;
      continue;
    }
    static_cast<void>(file->verify());
    PagedPool pool = random_pool(small_geometry(), 3, 1);
    static_cast<void>(read_run(*file, 0, ids({0, 1, 2}), pool));
  }
  EXPECT_GT(refused, rounds / 10);
}

TEST(KVFileHostile, LaterVersionsAndUnknownCodecsAreUnsupportedWithBothNumbers) {
  const KVFileContent content{.fingerprint = fingerprint_of(1), .geometry = small_geometry()};
  std::vector<std::byte> header = encode_header(make_header(content, Codec::kRaw));
  std::vector<char> file = sealed(header, 0);
  ASSERT_TRUE(open_bytes(file).ok());
  file[8] = 7;
  const auto later = open_bytes(file);
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(later.error().message,
              HasSubstr("kv file format version 7, this build reads versions 1 to 6"));
  header[32 + 64 + 5 * 4] = std::byte{7};
  const auto codec = open_bytes(sealed(header, 0));
  ASSERT_FALSE(codec.ok());
  EXPECT_EQ(codec.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(codec.error().message, HasSubstr("codec 7"));
}

}  // namespace
}  // namespace quire::kv_store
