// KV files with the states of layers that carry one. The oracle is what was written, and the golden
// files of tests/golden/kv_store, which were made from the document.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/saved_states.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/state_view.h"

namespace quire::kv_store {
namespace {

using tensor::StateForm;
using tensor::StatePart;
using ::testing::HasSubstr;
using State = std::vector<std::byte>;

// The parts of the golden file, with a gap behind each layer in memory.
const std::vector<StatePart> golden_parts = {
    {.layer = 1, .form = StateForm::kConvTail, .bytes = 24, .offset = 0},
    {.layer = 1, .form = StateForm::kDeltaMatrix, .bytes = 64, .offset = 24},
    {.layer = 3, .form = StateForm::kConvTail, .bytes = 24, .offset = 128}};
constexpr std::size_t kStateBytes = 192;

// Returns state `index` of the golden file in memory; 0xee where no part is.
State golden_state(int index) {
  State state(kStateBytes, std::byte{0xee});
  for (std::size_t part = 0; part < golden_parts.size(); ++part) {
    const auto to = part_of(golden_parts[part], std::span(state));
    for (std::size_t i = 0; i * 4 < to.size(); ++i) {
      const auto number = static_cast<float>(index * 100 + static_cast<int>(part) * 10) +
                          0.5F * static_cast<float>(i);
      std::memcpy(&to[i * 4], &number, sizeof(number));
    }
  }
  return state;
}

class KVFileStates : public ::testing::Test {
 protected:
  KVFileStates() {
    content_ = {.fingerprint = fingerprint_of(1),
                .geometry = small_geometry(),
                .runs = {{.tokens = {7, 10, 13, 16, 19, 22}, .start_position = 0},
                         {.tokens = {100, 50, 0}, .start_position = 32000}},
                .metadata_json = R"({"name":"golden","é":[1,2]})"};
    content_.states = {.parts = golden_parts, .at = {{.tokens = 3, .stays = true}, {.tokens = 9}}};
    for (int i = 0; i < 4; ++i) {
      content_.object_hash += "0123456789abcdef";
    }
  }

  [[nodiscard]] Status write() const {
    const std::vector<std::span<const std::byte>> bytes(states_.begin(), states_.end());
    return write_kv_file(path_, content_, pool_, blocks_, {.sync = false, .states = bytes});
  }

  KVFileContent content_;
  std::vector<State> states_ = {golden_state(0), golden_state(1)};
  const PagedPool pool_ = random_pool(small_geometry(), 3, 5);
  std::vector<std::vector<BlockId>> blocks_ = {ids({0, 1}), ids({2})};
  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "a";
};

TEST_F(KVFileStates, GoldenFilesOfVersion4AreReadAndAreWhatIsWritten) {
  const std::filesystem::path golden =
      std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden/kv_store/v4_states.qkv";
  const auto file = KVFile::open(golden);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->verify().ok()) << file->verify().error().message;
  EXPECT_EQ(file->content().states.at, content_.states.at);
  for (std::size_t i = 0; i < 2; ++i) {
    State read(kStateBytes, std::byte{0xee});
    ASSERT_TRUE(file->read_state(i, golden_parts, read).ok());
    EXPECT_EQ(read, states_[i]);
  }
  PagedPool pool = random_pool(small_geometry(), 3, 6);
  for (int run = 0; run < 2; ++run) {
    ASSERT_TRUE(read_run(*file, run, blocks_[static_cast<std::size_t>(run)], pool).ok());
  }
  const std::vector<std::span<const std::byte>> bytes(states_.begin(), states_.end());
  ASSERT_TRUE(write_kv_file(path_, content_, pool, blocks_, {.states = bytes}).ok());
  EXPECT_EQ(file_bytes_of(path_), file_bytes_of(golden));
  content_.runs.clear();
  content_.states.at.pop_back();
  ASSERT_TRUE(write_kv_file(path_, content_, pool, {}, {.states = std::span(bytes).first(1)}).ok());
  EXPECT_EQ(file_bytes_of(path_), file_bytes_of(golden.parent_path() / "v4_states_alone.qkv"));
}

TEST_F(KVFileStates, EveryFlippedBitAndEveryTruncationIsNoticed) {
  ASSERT_TRUE(write().ok());
  const std::vector<char> whole = file_bytes_of(path_);
  const auto seen = [&](std::span<const char> bytes) {
    write_bytes(path_, bytes);
    const auto file = KVFile::open(path_);
    return !file.ok() || !file->verify().ok();
  };
  for (std::size_t i = 0; i < whole.size(); i += i < 1000 || i > whole.size() - 300 ? 1 : 29) {
    std::vector<char> damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    EXPECT_TRUE(seen(damaged)) << "byte " << i;
  }
  for (std::size_t size = 0; size < whole.size(); size += size < 1000 ? 1 : 97) {
    EXPECT_TRUE(seen(std::span(whole).first(size))) << size;
  }
  EXPECT_FALSE(seen(whole));
}

TEST_F(KVFileStates, DamageAndNumbersThatAreNotFiniteNameTheirPart) {
  ASSERT_TRUE(write().ok());
  std::vector<char> damaged = file_bytes_of(path_);
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  write_bytes(path_, damaged);
  State read(kStateBytes);
  const auto file = KVFile::open(path_);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(file->read_state(0, golden_parts, read).ok());
  const Status status = file->read_state(1, golden_parts, read);
  EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(status.error().message, HasSubstr("the convolution tail of layer 3 behind 9 tokens"));
  const float bad = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(&states_[0][32], &bad, sizeof(bad));
  ASSERT_TRUE(write().ok());
  const Status nan = KVFile::open(path_)->read_state(0, golden_parts, read);
  EXPECT_EQ(nan.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(nan.error().message, HasSubstr("the gated delta state of layer 1"));
  EXPECT_THAT(nan.error().message, HasSubstr("not finite"));
}

TEST_F(KVFileStates, AFileWithoutAPartIsRefusedByItsName) {
  State read(kStateBytes);
  for (std::size_t lacking = 0; lacking < golden_parts.size(); ++lacking) {
    content_.states.parts = golden_parts;
    content_.states.parts.erase(content_.states.parts.begin() +
                                static_cast<std::ptrdiff_t>(lacking));
    ASSERT_TRUE(write().ok());
    const Status status = KVFile::open(path_)->read_state(0, golden_parts, read);
    EXPECT_EQ(status.error().code, ErrorCode::kIncompatible);
    EXPECT_THAT(status.error().message,
                HasSubstr("it lacks the " + part_name(golden_parts[lacking])));
  }
  content_.states.parts = golden_parts;
  ASSERT_TRUE(write().ok());
  std::vector<StatePart> scan = golden_parts;
  scan[1].form = StateForm::kScanMatrix;
  EXPECT_THAT(KVFile::open(path_)->check_states_fit(scan).error().message,
              HasSubstr("of another form: it has a gated delta state of layer 1, here it is a scan "
                        "state"));
  std::vector<StatePart> other = golden_parts;
  other[1].bytes = 32;
  EXPECT_THAT(KVFile::open(path_)->check_states_fit(other).error().message,
              HasSubstr("gated delta state of layer 1 has 64 bytes, here it has 32"));
  other.pop_back();
  other[1].bytes = 64;
  EXPECT_THAT(KVFile::open(path_)->check_states_fit(other).error().message,
              HasSubstr("convolution tail of layer 3, which the model has not"));
  content_.states = {};
  states_.clear();
  ASSERT_TRUE(write().ok());
  EXPECT_THAT(KVFile::open(path_)->check_states_fit(golden_parts).error().message,
              HasSubstr("has no states"));
}

TEST_F(KVFileStates, StatesThatContradictThemselvesAreNotWritten) {
  const auto refused = [&](const SavedStates& states) {
    content_.states = states;
    states_.resize(states.at.size(), golden_state(0));
    const Status status = write();
    return !status.ok() && status.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({.parts = golden_parts, .at = {{.tokens = 10}}})) << "behind the last token";
  EXPECT_TRUE(refused({.parts = golden_parts, .at = {{.tokens = 0}}}));
  EXPECT_TRUE(refused({.parts = golden_parts, .at = {{.tokens = 3}, {.tokens = 3}}}));
  EXPECT_TRUE(refused({.parts = {}, .at = {{.tokens = 3}}}));
  EXPECT_TRUE(refused({.parts = {golden_parts[1], golden_parts[0]}, .at = {{.tokens = 3}}}));
  EXPECT_TRUE(refused({.parts = {{.layer = 0, .bytes = 6}}, .at = {{.tokens = 3}}}));
  EXPECT_FALSE(refused({.parts = golden_parts, .at = {{.tokens = 9}}}));
}

TEST_F(KVFileStates, CheckpointsWriteAStateOnceAndFindItAgain) {
  Store store = Store::open(folder_.path() / "store", {.write = {.sync = false}}).value();
  CheckpointManager checkpoints = CheckpointManager::create(store, {}).value();
  LiveSequence live{.name = "a", .fingerprint = fingerprint_of(1), .kernels = "any"};
  live.runs.push_back({.run = run_of(6), .blocks = ids({0, 1})});
  live.states = {.parts = golden_parts, .at = {{.tokens = 3}, {.tokens = 6}}};
  live.state_bytes = {states_[0], states_[1]};
  const Checkpoint first = checkpoints.save("one", {&live, 1}, pool_).value();
  EXPECT_EQ(first.written_objects, 4) << "a full block, a last one, two states";
  EXPECT_EQ(checkpoints.save("two", {&live, 1}, pool_).value().written_objects, 0);
  const Checkpoint compacted = checkpoints.compact("two").value();
  for (const Checkpoint& saved : {first, compacted}) {
    ASSERT_EQ(saved.sequences[0].states.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      State read(kStateBytes, std::byte{0xee});
      const auto file = checkpoints.open_state(saved.sequences[0], i);
      ASSERT_TRUE(file.ok()) << file.error().message;
      ASSERT_TRUE(file->read_state(0, golden_parts, read).ok());
      EXPECT_EQ(read, states_[i]);
    }
  }
  EXPECT_TRUE(checkpoints.latest().ok());
  SavedSequence swapped = first.sequences[0];
  std::swap(swapped.states[0].object, swapped.states[1].object);
  EXPECT_EQ(checkpoints.open_state(swapped, 0).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace quire::kv_store
