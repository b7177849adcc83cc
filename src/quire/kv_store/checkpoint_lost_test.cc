// Checkpoints of sequences whose window moves on: what it has freed is saved as tokens, and what
// earlier checkpoints have of it goes with them. The oracle is the pool that has all of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/test_length.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/sequence.h"
#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

using ::testing::HasSubstr;

constexpr int kLostBlocks = 400;
constexpr int kWindow = 4 * 100;  // as many blocks as several ranges have

tensor::KVGeometry widely_windowed() {
  tensor::KVGeometry geometry = small_geometry();
  geometry.window_tokens = {kWindow, 7};
  return geometry;
}

class CheckpointsOfAWindow : public ::testing::Test {
 protected:
  CheckpointsOfAWindow()
      : store_(Store::open(folder_.path() / "store", {.write = {.sync = false}}).value()) {}

  CheckpointManager manager(CheckpointOptions options = {.keep = 1}) {
    return CheckpointManager::create(store_, std::move(options)).value();
  }

  // The first `num_tokens` tokens of what blocks 0, 1, ... of the pool hold.
  LiveSequence sequence(int num_tokens) const {
    LiveSequence made{.name = "a", .fingerprint = fingerprint_of(1), .kernels = "any"};
    LiveRun& live = made.runs.emplace_back();
    live.run = run_of(num_tokens);
    live.run.lost_blocks =
        kv::blocks_behind_window({.block_tokens = 4, .window_tokens = kWindow}, num_tokens);
    for (std::int32_t i = live.run.lost_blocks; i < live.run.num_blocks(4); ++i) {
      live.blocks.push_back({i});
    }
    return made;
  }

  Checkpoint save(CheckpointManager& checkpoints, const LiveSequence& live) {
    return checkpoints.save("", {&live, 1}, pool_).value();
  }

  // Expects the saved sequence to read back, from the first block that is there on.
  void expect_saved(const CheckpointManager& checkpoints, const Checkpoint& saved,
                    const LiveSequence& live) {
    const auto read = checkpoints.tokens_of(saved.sequences[0]);
    ASSERT_TRUE(read.ok()) << read.error().message;
    const SavedRun& run = read->runs[0].run;
    EXPECT_EQ(run.tokens, live.runs[0].run.tokens);
    EXPECT_EQ(run.lost_blocks, live.runs[0].run.lost_blocks);
    PagedPool to = random_pool(widely_windowed(), kLostBlocks, 9);
    ASSERT_TRUE(
        checkpoints.read(saved.sequences[0], 0, run.lost_blocks, live.runs[0].blocks, to).ok());
    const auto tokens = run.tokens.size() - static_cast<std::size_t>(run.lost_tokens(4));
    EXPECT_EQ(kv_bytes(to, live.runs[0].blocks, tokens),
              kv_bytes(pool_, live.runs[0].blocks, tokens));
  }

  [[nodiscard]] std::vector<std::filesystem::path> objects() const {
    std::vector<std::filesystem::path> files;
    for (const auto& file :
         std::filesystem::recursive_directory_iterator(folder_.path() / "store" / "objects")) {
      if (file.path().extension() == ".qkv") {
        files.push_back(file.path());
      }
    }
    return files;
  }

  // Blocks whose KV is in the store.
  [[nodiscard]] std::int64_t blocks_in_store() const {
    std::int64_t bytes = 0;
    for (const auto& path : objects()) {
      bytes += KVFile::open(path).value().payload_bytes();
    }
    return bytes / widely_windowed().block_bytes();
  }

  const TemporaryFolder folder_;
  const PagedPool pool_ = random_pool(widely_windowed(), kLostBlocks, 1);
  Store store_;
};

TEST_F(CheckpointsOfAWindow, GiveBackWhatIsThereAndTheTokensOfWhatIsNot) {
  CheckpointManager checkpoints = manager();
  for (const int tokens : {399, 402, 403, 500, 803, 1598}) {
    const LiveSequence live = sequence(tokens);
    expect_saved(checkpoints, save(checkpoints, live), live);
  }
  const Checkpoint compacted = checkpoints.compact(checkpoints.list()->front().name).value();
  EXPECT_LT(compacted.sequences[0].parts.size(), 20U);
  expect_saved(checkpoints, compacted, sequence(1598));
}

// The first checkpoint has ranges of 32 blocks; then each sees the window pass one block more.
TEST_F(CheckpointsOfAWindow, KeepTheKvOfTheWindowAloneAndWriteLittleAgain) {
  const int saves = base::test_length(250, 50);
  CheckpointManager checkpoints = manager();
  int tokens = kWindow - 1;
  static_cast<void>(save(checkpoints, sequence(tokens)));
  std::int64_t written = 0;
  for (int i = 0; i < saves; ++i) {
    tokens += 4;
    const LiveSequence live = sequence(tokens);
    const Checkpoint saved = save(checkpoints, live);
    written += saved.written_bytes;
    ASSERT_EQ(blocks_in_store(), std::ssize(live.runs[0].blocks)) << i;
    ASSERT_LE(saved.written_objects, 8) << i;
    if (i % 25 == 0) {
      expect_saved(checkpoints, saved, live);
    }
  }
  // One block is new each time. Headers are pages, so they count as two blocks of this geometry.
  EXPECT_LT(written,
            std::int64_t{8} * saves * (widely_windowed().block_bytes() + kPayloadAlignment));
}

// Damage is a typed error that names the object, and saving again mends it.
TEST_F(CheckpointsOfAWindow, WhoseLostTokensAreDamagedAreRefused) {
  CheckpointManager checkpoints = manager();
  const LiveSequence live = sequence(803);
  const Checkpoint saved = save(checkpoints, live);
  const std::string first = saved.sequences[0].parts[0].object;
  const auto path = folder_.path() / "store" / "objects" / first.substr(0, 2) / (first + ".qkv");
  auto bytes = file_bytes_of(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 4);
  write_bytes(path, bytes);
  EXPECT_EQ(checkpoints.tokens_of(saved.sequences[0]).error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(checkpoints.latest().error().message, HasSubstr(first));
  expect_saved(checkpoints, save(checkpoints, live), live);
}

// A stranger's file: ranges that are all right by themselves, in an order that nobody has written.
TEST_F(CheckpointsOfAWindow, ThatHaveLostWhatTheirWindowStillSeesAreRefused) {
  CheckpointManager checkpoints = manager();
  LiveSequence live = sequence(803);
  live.runs[0].run.lost_blocks += 1;  // one too many
  live.runs[0].blocks.erase(live.runs[0].blocks.begin());
  const Checkpoint one_more = save(checkpoints, live);
  const auto refused = checkpoints.tokens_of(one_more.sequences[0]);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.error().message, HasSubstr("has lost its first 102 blocks"));
  EXPECT_EQ(checkpoints.compact(one_more.name).error().code, ErrorCode::kCorrupt);
  CheckpointManager early = manager({.series = "early"});
  const Checkpoint whole = save(early, sequence(399));
  SavedSequence mixed = save(checkpoints, sequence(803)).sequences[0];
  mixed.parts[0] = whole.sequences[0].parts[0];  // with KV, in front of what is lost
  EXPECT_EQ(checkpoints.tokens_of(mixed).error().code, ErrorCode::kCorrupt);
}

TEST_F(CheckpointsOfAWindow, NameTokensWithoutKvApartFromThoseWithIt) {
  const LiveSequence live = sequence(803);
  const SavedRangeNames names(live, "", pool_);
  LiveSequence whole = live;
  whole.runs[0].run.lost_blocks = 0;
  whole.runs[0].blocks.clear();
  for (std::int32_t i = 0; i < whole.runs[0].run.num_blocks(4); ++i) {
    whole.runs[0].blocks.push_back({i});
  }
  const SavedRangeNames all(whole, "", pool_);
  EXPECT_NE(names.name(0, 0, 128), all.name(0, 0, 128)) << "tokens without KV are another object";
  EXPECT_EQ(names.name(0, 404, 532), all.name(0, 404, 532));
  LiveSequence changed = live;
  changed.follows_from_tokens = false;  // the KV is in the names, what is lost is not
  const SavedRangeNames by_kv(changed, "", pool_);
  whole.follows_from_tokens = false;
  EXPECT_EQ(by_kv.name(0, 404, 532), SavedRangeNames(whole, "", pool_).name(0, 404, 532));
  EXPECT_NE(by_kv.name(0, 404, 532), names.name(0, 404, 532));
}

}  // namespace
}  // namespace quire::kv_store
