// Packed weights beside the store. A second start maps what the first one packed, and computes the
// same bits; whatever is wrong with them is a miss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <ios>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A copy of the demo model, and a store beside it. The weights file is the CPU's.
class WeightsCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::copy(kModel, model_); }

  LLMOptions options() const { return {.threads = 2, .store = store_, .cache_weights = true}; }

  // Amounts that a start with `options` packs and maps, and the logits that it computes.
  struct Start {
    double read_bytes = 0, mapped_bytes = 0, weight_bytes = 0;
    std::vector<std::string> remarks;
    std::vector<float> logits;
  };
  static Start start(const std::string& model, const LLMOptions& options) {
    auto llm = LLM::open(model, options);
    EXPECT_TRUE(llm.ok()) << (llm.ok() ? "" : llm.error().message);
    return started(*llm);
  }
  Start start() const { return start(model_, options()); }
  static Start started(LLM& llm) {
    return {.read_bytes = stat(llm, "load_bytes"),
            .mapped_bytes = stat(llm, "mapped_weight_bytes"),
            .weight_bytes = stat(llm, "weight_bytes"),
            .remarks = llm.remarks().value(),
            .logits = llm.forward(some_ids(40, 7))->logits};
  }

  // Returns the files of weights in the store.
  std::vector<fs::path> files() const {
    std::vector<fs::path> files;
    std::error_code none;
    for (const auto& item : fs::directory_iterator(fs::path(store_) / "weights", none)) {
      files.push_back(item.path());
    }
    return files;
  }

  // Flips a bit of the first weight of the first tensor.
  void edit_model() {
    const fs::path path = fs::path(model_) / "model.safetensors";
    std::uint64_t header_bytes = 0;
    std::ifstream(path, std::ios::binary)
        .read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    flip_byte(path, static_cast<std::int64_t>(8 + header_bytes + 1));
  }

  static void flip_byte(const fs::path& path, std::int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get() ^ 4);
    file.seekp(at);
    file.put(byte);
  }

  TemporaryFolder folder_;
  std::string model_ = folder_.path() / "model";
  std::string store_ = folder_.path() / "store";
};

TEST_F(WeightsCacheTest, ASecondStartMapsWhatTheFirstPacked) {
  for (const char* const quantize : {"", "q8g32", "q4g32"}) {
    LLMOptions cached = options();
    cached.quantize = quantize;
    const Start plain = start(model_, {.quantize = quantize, .threads = 2});
    const Start first = start(model_, cached);
    const Start second = start(model_, cached);
    EXPECT_GT(first.read_bytes, 0) << quantize;
    EXPECT_EQ(first.mapped_bytes, 0);
    EXPECT_EQ(second.read_bytes, 0) << "no tensor is read";
    EXPECT_EQ(second.mapped_bytes, first.weight_bytes);
    EXPECT_EQ(second.weight_bytes, first.weight_bytes);
    EXPECT_EQ(first.logits, plain.logits);
    EXPECT_EQ(second.logits, plain.logits) << "to the bit";
    EXPECT_THAT(first.remarks, IsEmpty());
    EXPECT_THAT(second.remarks, IsEmpty());
  }
  ASSERT_EQ(files().size(), 3U) << "one for each format";
  struct stat info{};
  ASSERT_EQ(::stat(files().front().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(WeightsCacheTest, AnotherNumberOfThreadsMapsTheSameFile) {
  const Start first = start();
  LLMOptions one = options();
  one.threads = 1;
  const Start second = start(model_, one);
  EXPECT_EQ(second.read_bytes, 0);
  EXPECT_EQ(second.logits, first.logits);
}

TEST_F(WeightsCacheTest, ChunksOfPackedAndMappedWeightsAreTheSame) {
  const auto id = [&] {
    ChunkedLLM llm = ChunkedLLM::open(model_, options(), {}).value();
    return llm.register_chunk({.content = some_ids(20, 3)}).value();
  };
  const std::string packed = id();
  EXPECT_EQ(id(), packed) << "the digest of the weights is in it";
}

TEST_F(WeightsCacheTest, AnEditedModelIsPackedAnew) {
  const Start first = start();
  edit_model();
  const Start edited = start();
  EXPECT_GT(edited.read_bytes, 0);
  EXPECT_EQ(edited.mapped_bytes, 0);
  EXPECT_NE(edited.logits, first.logits);
  EXPECT_EQ(edited.logits, start(model_, {.threads = 2}).logits);
  EXPECT_EQ(start().logits, edited.logits);
  EXPECT_EQ(files().size(), 2U);
  Store store = Store::open(store_).value();
  EXPECT_EQ(store.gc()->removed_weights, 1);
  EXPECT_EQ(start().read_bytes, 0) << "the file that is of use stays";
}

TEST_F(WeightsCacheTest, AModelOfTheSameSizeAndTimeIsToldByItsTensors) {
  const Start first = start();
  const fs::path path = fs::path(model_) / "model.safetensors";
  const auto time = fs::last_write_time(path);
  edit_model();
  fs::last_write_time(path, time);
  const Start edited = start();
  EXPECT_GT(edited.read_bytes, 0);
  EXPECT_NE(edited.logits, first.logits);
}

TEST_F(WeightsCacheTest, ChangedConfigIsAMiss) {
  const Start first = start();
  const fs::path path = fs::path(model_) / "config.json";
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string config = text.str();
  const std::string theta = "10000.0";
  ASSERT_NE(config.find(theta), config.npos);
  config.replace(config.find(theta), theta.size(), "20000.0");
  std::ofstream(path) << config;
  const Start other = start();
  EXPECT_GT(other.read_bytes, 0);
  EXPECT_EQ(other.logits, start(model_, {.threads = 2}).logits);
}

TEST_F(WeightsCacheTest, DamageIsAMissAndReplaced) {
  const Start first = start();
  ASSERT_EQ(files().size(), 1U);
  const fs::path path = files().front();
  const auto size = static_cast<std::int64_t>(fs::file_size(path));
  const auto expect_packed_anew = [&](const std::string& what) {
    const Start second = start();
    EXPECT_GT(second.read_bytes, 0) << what;
    EXPECT_EQ(second.mapped_bytes, 0) << what;
    EXPECT_EQ(second.logits, first.logits) << what;
    EXPECT_THAT(second.remarks, ElementsAre(HasSubstr("packed anew"))) << what;
    EXPECT_EQ(start().read_bytes, 0) << what << ": it was replaced";
  };
  for (const std::int64_t at : {std::int64_t{3}, std::int64_t{8}, std::int64_t{40},
                                std::int64_t{100}, size / 2, size - 1}) {
    flip_byte(path, at);
    expect_packed_anew("a flipped bit of byte " + std::to_string(at));
  }
  fs::resize_file(path, static_cast<std::uintmax_t>(size / 3));
  expect_packed_anew("a cut file");
  fs::resize_file(path, 0);
  expect_packed_anew("an empty file");
}

TEST_F(WeightsCacheTest, AFullDiskOrAStrangePlaceIsARemark) {
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 1 << 16, .rlim_max = before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // a refused write is an error then
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Start full = start();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(full.remarks, ElementsAre(HasSubstr("not cached: cannot write")));
  EXPECT_THAT(files(), IsEmpty()) << "nothing half written stays";

  LLMOptions strange = options();
  strange.store = model_ + "/config.json/store";
  const Start nowhere = start(model_, strange);
  EXPECT_THAT(nowhere.remarks, ElementsAre(HasSubstr("not cached: cannot")));
  EXPECT_EQ(nowhere.logits, full.logits);
}

using WeightsCacheThreads = WeightsCacheTest;
TEST_F(WeightsCacheThreads, StartsAtTheSameTimeLeaveOneWholeFile) {
  std::vector<Start> starts(3);
  std::vector<std::thread> threads;
  for (Start& each : starts) {
    threads.emplace_back([&] { each = start(); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const Start& each : starts) {
    EXPECT_THAT(each.remarks, IsEmpty());
    EXPECT_EQ(each.logits, starts[0].logits);
  }
  EXPECT_EQ(files().size(), 1U);
  EXPECT_EQ(start().read_bytes, 0);
}

TEST_F(WeightsCacheTest, RemovingTheFileLeavesAModelThatMapsIt) {
  const Start first = start();
  LLM llm = LLM::open(model_, options()).value();
  fs::remove(files().front());
  EXPECT_EQ(started(llm).logits, first.logits);
}

TEST_F(WeightsCacheTest, WhatCannotBeMeantIsAnError) {
  LLMOptions wrong = options();
  wrong.store.clear();
  auto llm = LLM::open(model_, wrong);
  EXPECT_EQ(llm.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(llm.error().message, HasSubstr("cache_weights needs a store"));
  wrong = options();
  wrong.device = "cuda";
  EXPECT_EQ(LLM::open(model_, wrong).error().code, ErrorCode::kUnsupported);
  llm = LLM::open("preset:tinyllama-1.1b", options());
  EXPECT_EQ(llm.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(llm.error().message, HasSubstr("preset:tinyllama-1.1b has no file"));
  wrong = options();
  wrong.store = model_;
  llm = LLM::open(model_, wrong);
  EXPECT_EQ(llm.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(llm.error().message, HasSubstr("is not a quire store"));
}

}  // namespace
}  // namespace quire
