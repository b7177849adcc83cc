// Weights files: what comes back, damage of every kind, and which of a store's files go.
#include "quire/kv_store/weights_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/file_time.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kernels/packed_part.h"
#include "quire/kernels/packed_weights.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/store_fixture.h"
#include "quire/kv_store/test_support.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using kernels::PackedPart;
using kernels::WeightFormat;
using ::testing::HasSubstr;
using State = WeightsReport::State;

Result<WeightsFile> open_weights(std::span<const char> bytes) {
  const Descriptor file(::memfd_create("weights", MFD_CLOEXEC));
  EXPECT_TRUE(write_at(file, std::as_bytes(bytes), 0, "memory").ok());
  return WeightsFile::open(file, "damaged.qw");
}

// Three weights of chance in a file of a store, and the model's file that they are said to be of.
class WeightsFileTest : public StoreTest {
 protected:
  WeightsFileTest() {
    store_ = open().path();
    std::ofstream(model_) << "a model";
    struct stat info{};
    EXPECT_EQ(::stat(model_.c_str(), &info), 0);
    content_ = {.key = test_hash("key"),
                .digest = test_hash("digest"),
                .model = folder_.path(),
                .sources = {{.path = model_, .bytes = 7, .modified_ns = base::modified_ns(info)}}};
    add({.format = WeightFormat::kQ8g32, .columns = 33, .depth = 40});
    add({.columns = 5});
    add({.format = WeightFormat::kBf16, .columns = 32, .depth = 64});
  }

  void add(PackedPart part) {
    std::vector<std::byte>& bytes =
        bytes_.emplace_back(static_cast<std::size_t>(kernels::bytes_of(part).value_or(0)));
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random_()); });
    part.bytes = bytes;
    content_.parts.push_back(part);
  }

  Folder weights_folder() { return Folder::open(store_).value().open_in("weights", true).value(); }
  std::filesystem::path path() const { return store_ / "weights" / (content_.key + ".qw"); }

  // The file's bytes, once written.
  std::vector<char> written() {
    const auto size = write_weights_file(weights_folder(), content_, pool_);
    EXPECT_TRUE(size.ok()) << size.error().message;
    std::vector<char> bytes = file_bytes_of(path());
    EXPECT_EQ(std::ssize(bytes), *size);
    return bytes;
  }

  // True when the damage was noticed; fails the test when it was not and a weight differs.
  bool noticed(std::span<const char> damaged) {
    const auto file = open_weights(damaged);
    const Status whole = file.ok() ? file->verify(pool_) : Status(file.error());
    if (!whole.ok()) {
      EXPECT_TRUE(whole.error().code == ErrorCode::kCorrupt ||
                  whole.error().code == ErrorCode::kUnsupported)
          << whole.error().message;
      EXPECT_THAT(whole.error().message, HasSubstr("damaged.qw"));
      return true;
    }
    expect_content(*file);
    return false;
  }

  void expect_content(const WeightsFile& file) const {
    EXPECT_EQ(file.content().key, content_.key);
    EXPECT_EQ(file.content().digest, content_.digest);
    EXPECT_EQ(file.content().model, content_.model);
    EXPECT_EQ(file.content().sources, content_.sources);
    ASSERT_EQ(file.content().parts.size(), content_.parts.size());
    for (std::size_t i = 0; i < content_.parts.size(); ++i) {
      const PackedPart& read = file.content().parts[i];
      EXPECT_EQ(read.format, content_.parts[i].format);
      EXPECT_EQ(read.columns, content_.parts[i].columns);
      EXPECT_EQ(read.depth, content_.parts[i].depth);
      EXPECT_TRUE(std::ranges::equal(read.bytes, content_.parts[i].bytes)) << i;
    }
  }

  std::mt19937_64 random_{41};
  device::ThreadPool pool_{2};
  std::filesystem::path store_;
  std::filesystem::path model_ = folder_.path() / "model";
  std::deque<std::vector<std::byte>> bytes_;  // of the parts, which stay where they are
  WeightsContent content_;
};

TEST_F(WeightsFileTest, PartsComeBackWhereTheyCanBeUsed) {
  written();
  const auto file = WeightsFile::open(weights_folder(), content_.key);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify(pool_).ok());
  expect_content(*file);
  for (const PackedPart& part : file->content().parts) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.bytes.data()) % 4096, 0U);  // NOLINT
  }
  struct stat info{};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

// Made from the document by tests/golden/kv_store/make_goldens.py.
TEST_F(WeightsFileTest, WhatIsWrittenIsWhatTheDocumentSays) {
  content_ = {.model = "/models/golden",
              .sources = {{.path = "/models/golden/a.safetensors",
                           .bytes = 123,
                           .modified_ns = 1'700'000'000'000'000'001}}};
  for (int i = 0; i < 4; ++i) {
    content_.key += "0123456789abcdef";
    content_.digest += "fedcba9876543210";
  }
  add({.format = WeightFormat::kQ4g32, .columns = 33, .depth = 40});
  add({.columns = 5});
  add({.format = WeightFormat::kBf16, .columns = 32, .depth = 64});
  for (std::size_t part = 0; part < 3; ++part) {
    std::vector<std::byte>& bytes = bytes_[bytes_.size() - 3 + part];
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(part * 31 + i * 7 + i / 256);
    }
  }
  const std::filesystem::path golden =
      std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden/kv_store/v1_weights.qw";
  EXPECT_EQ(written(), file_bytes_of(golden));
  const auto file = WeightsFile::open(open_file(golden).value(), golden);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify(pool_).ok());
  expect_content(*file);
}

TEST_F(WeightsFileTest, WhatIsMissingIsNotFound) {
  EXPECT_EQ(WeightsFile::open(weights_folder(), test_hash("other")).error().code,
            ErrorCode::kNotFound);
}

TEST_F(WeightsFileTest, AFileUnderTheNameOfAnotherIsRefused) {
  written();
  const std::string other = test_hash("other");
  std::filesystem::rename(path(), path().parent_path() / (other + ".qw"));
  const auto file = WeightsFile::open(weights_folder(), other);
  EXPECT_EQ(file.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(file.error().message, HasSubstr("holds other weights"));
}

TEST_F(WeightsFileTest, ALinkInPlaceOfAFileIsNotFollowed) {
  written();
  std::filesystem::rename(path(), folder_.path() / "elsewhere");
  std::filesystem::create_symlink(folder_.path() / "elsewhere", path());
  EXPECT_EQ(WeightsFile::open(weights_folder(), content_.key).error().code, ErrorCode::kIo);
  Store store = open();
  EXPECT_EQ(store.inspector().weights().front().state, State::kUnreadable);
  EXPECT_EQ(store.collector().gc()->removed_weights, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(path())) << "what cannot be read now is kept";
}

TEST_F(WeightsFileTest, EveryFlippedBitIsNoticedAlsoBetweenTheWeights) {
  const std::vector<char> bytes = written();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::vector<char> damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (random_() % 8)));
    ASSERT_TRUE(noticed(damaged)) << "byte " << i;
  }
}

TEST_F(WeightsFileTest, EveryTruncationIsNoticed) {
  const std::vector<char> bytes = written();
  for (std::size_t size = 0; size < bytes.size(); size += size < 1200 ? 1 : 7) {
    EXPECT_TRUE(noticed(std::span(bytes).first(size))) << size;
  }
  std::vector<char> longer = bytes;
  longer.push_back('\0');
  EXPECT_TRUE(noticed(longer));
}

// Right checksums over wrong numbers: what a stranger would write.
TEST_F(WeightsFileTest, NumbersThatContradictTheFileAreRefused) {
  const std::vector<char> bytes = written();
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 16, sizeof header_bytes);
  const auto header = std::as_bytes(std::span(bytes)).subspan(kPreambleBytes, header_bytes);
  for (std::size_t at = 2 * 64; at + 8 <= header.size(); ++at) {
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{1} << 31U, ~std::uint64_t{0}, std::uint64_t{1} << 62U}) {
      std::vector<std::byte> changed(header.begin(), header.end());
      std::memcpy(changed.data() + at, &value, sizeof value);
      const auto parsed = parse_weights_header(changed, std::ssize(bytes));
      if (parsed.ok()) {  // a path, a size or a time of the model, a checksum: any value may be
        EXPECT_EQ(encode_weights_header(*parsed), changed) << at;
        EXPECT_EQ(parsed->parts.size(), content_.parts.size()) << at;
      }
    }
  }
}

TEST_F(WeightsFileTest, AnotherVersionOfPackingIsUnsupported) {
  const std::vector<char> bytes = written();
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 16, sizeof header_bytes);
  const auto header = std::as_bytes(std::span(bytes)).subspan(kPreambleBytes, header_bytes);
  std::vector<std::byte> changed(header.begin(), header.end());
  changed[std::size_t{2} * 64] = std::byte{kernels::kPackingVersion + 1};
  EXPECT_EQ(parse_weights_header(changed, std::ssize(bytes)).error().code, ErrorCode::kUnsupported);
}

TEST_F(WeightsFileTest, AStoreKnowsWhichOfItsFilesAreOfUse) {
  EXPECT_TRUE(open().inspector().weights().empty());
  std::vector<char> bytes = written();
  ASSERT_EQ(open().inspector().weights(true).size(), 1U);
  const WeightsReport report = open().inspector().weights(true).front();
  EXPECT_EQ(report.state, State::kOk) << report.message;
  EXPECT_EQ(report.key, content_.key);
  EXPECT_EQ(report.model, content_.model);
  EXPECT_EQ(report.bytes, std::ssize(bytes));
  EXPECT_GT(report.written_ms, 0);
  EXPECT_EQ(open().collector().gc()->removed_weights, 0);

  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_bytes(path(), bytes);
  EXPECT_EQ(open().inspector().weights(false).front().state, State::kOk)
      << "headers alone are read";
  EXPECT_EQ(open().inspector().weights(true).front().state, State::kDamaged);

  std::ofstream(model_) << "A model";
  EXPECT_EQ(open().inspector().weights().front().state, State::kStale);
  EXPECT_THAT(open().inspector().weights().front().message, HasSubstr("model has changed"));
  const auto cleaned = open().collector().gc();
  EXPECT_EQ(cleaned->removed_weights, 1);
  EXPECT_EQ(cleaned->removed_weight_bytes, std::ssize(bytes));
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(WeightsFileTest, CollectingTakesWhatNobodyCanUse) {
  const std::vector<char> bytes = written();
  write_bytes(path().parent_path() / (test_hash("torn") + ".qw"), std::span(bytes).first(100));
  write_bytes(path().parent_path() / ".tmp-0123", bytes);
  ahead_ms_ += 3'600'000;
  const auto report = open().collector().gc();
  EXPECT_EQ(report->removed_weights, 1);
  EXPECT_EQ(report->removed_temporaries, 1);
  std::filesystem::remove(model_);
  EXPECT_THAT(open().inspector().weights().front().message, HasSubstr("is gone"));
  EXPECT_EQ(open().collector().gc()->removed_weights, 1);
  EXPECT_TRUE(open().inspector().weights().empty());
}

}  // namespace
}  // namespace quire::kv_store
