// Checkpoints of sequences that have lost their window parts: KV of layers with a window, where
// others have none. The oracle is a pool that still has them; the pool that is saved from has other
// bytes where parts have gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/behind_window.h"
#include "quire/kv/sequence.h"
#include "quire/kv/types.h"
#include "quire/kv_store/checkpoint.h"
#include "quire/kv_store/checkpoint_manager.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/kv_store/saved_ranges.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/test_support.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

constexpr int kPoolBlocks = 300;
constexpr int kSeenTokens = 4 * 40;

// Layer 0 sees all tokens, layer 1 the last ones.
tensor::KVGeometry partly_windowed() {
  tensor::KVGeometry geometry = small_geometry();
  geometry.window_tokens = {0, kSeenTokens};
  return geometry;
}

class CheckpointsOfParts : public ::testing::Test {
 protected:
  CheckpointsOfParts()
      : store_(Store::open(folder_.path() / "store", {.write = {.sync = false}}).value()) {}

  CheckpointManager manager(CheckpointOptions options = {}) {
    return CheckpointManager::create(store_, std::move(options)).value();
  }

  // The first `num_tokens` tokens of what the pool holds. It loses what the window has passed.
  LiveSequence sequence(int num_tokens, const std::string& name = "a") {
    LiveSequence made{.name = name, .fingerprint = fingerprint_of(1), .kernels = "any"};
    LiveRun& live = made.runs.emplace_back();
    live.run = run_of(num_tokens);
    live.run.lost_parts = kv::parts_behind_window(
        {.block_tokens = 4, .window_group = {.tokens = kSeenTokens, .block_bytes = 1}}, num_tokens);
    for (std::int32_t i = 0; i < live.run.num_blocks(4); ++i) {
      live.blocks.push_back({i});
    }
    for (int head = 0; head < 2; ++head) {
      for (std::int32_t i = 0; i < live.run.lost_parts; ++i) {
        std::ranges::fill(pool_.head_blocks(1, head, {i}), std::byte{0x77});
      }
    }
    return made;
  }

  Checkpoint save(CheckpointManager& checkpoints, const LiveSequence& live) {
    return checkpoints.save("", {&live, 1}, pool_).value();
  }

  // Expects the saved sequence to read back all that the live one has.
  void expect_saved(const CheckpointManager& checkpoints, const SavedSequence& saved,
                    const LiveSequence& live) {
    const auto read = checkpoints.tokens_of(saved);
    ASSERT_TRUE(read.ok()) << read.error().message;
    const SavedRun& run = read->runs[0].run;
    EXPECT_EQ(run.tokens, live.runs[0].run.tokens);
    ASSERT_LE(run.lost_parts, live.runs[0].run.lost_parts) << "earlier ones may have more";
    PagedPool to = random_pool(partly_windowed(), kPoolBlocks, 9);
    const std::vector<BlockId>& blocks = live.runs[0].blocks;
    const Status status = checkpoints.read(saved, 0, 0, blocks, to, run.lost_parts);
    ASSERT_TRUE(status.ok()) << status.error().message;
    for (int layer = 0; layer < 2; ++layer) {
      for (std::int32_t i = run.lost_in(partly_windowed(), layer); i < std::ssize(blocks); ++i) {
        const auto tokens = std::min<std::int64_t>(4, std::ssize(run.tokens) - i * 4L);
        std::vector<std::byte> want(to.head_blocks(layer, 0, {i}).size());
        for (int head = 0; head < 2; ++head) {
          whole_.read_slots(layer, head, {i}, static_cast<int>(tokens), want);
          EXPECT_TRUE(std::ranges::equal(to.head_blocks(layer, head, {i}), want))
              << "layer " << layer << " block " << i;
        }
      }
    }
  }

  // Damages the payload of all objects of a checkpoint.
  void damage_objects() const {
    for (const auto& file :
         std::filesystem::recursive_directory_iterator(folder_.path() / "store" / "objects")) {
      if (file.path().extension() == ".qkv") {
        std::vector<char> bytes = file_bytes_of(file.path());
        bytes.back() = static_cast<char>(bytes.back() ^ 1);
        write_bytes(file.path(), bytes);
      }
    }
  }

  const TemporaryFolder folder_;
  const PagedPool whole_ = random_pool(partly_windowed(), kPoolBlocks, 1);
  PagedPool pool_ = random_pool(partly_windowed(), kPoolBlocks, 1);
  Store store_;
};

TEST_F(CheckpointsOfParts, GiveBackWhatIsThere) {
  for (const std::int64_t keep : {0, 1}) {
    CheckpointManager checkpoints = manager({.series = std::to_string(keep), .keep = keep});
    for (const int tokens : {100, 163, 164, 300, 310, 500, 900, 1198}) {
      const LiveSequence live = sequence(tokens);
      const Checkpoint saved = save(checkpoints, live);
      expect_saved(checkpoints, saved.sequences[0], live);
      ASSERT_FALSE(testing::Test::HasFailure()) << tokens;
    }
    pool_ = random_pool(partly_windowed(), kPoolBlocks, 1);
  }
}

TEST_F(CheckpointsOfParts, WriteNothingAgainThatTheWindowHasPassed) {
  CheckpointManager checkpoints = manager();
  static_cast<void>(save(checkpoints, sequence(400)));
  for (int tokens = 440; tokens <= 1000; tokens += 40) {
    const LiveSequence live = sequence(tokens);
    const Checkpoint saved = save(checkpoints, live);
    expect_saved(checkpoints, saved.sequences[0], live);
    EXPECT_LE(saved.written_bytes, 10 * partly_windowed().block_bytes() + 3 * 8192) << tokens;
  }
}

TEST_F(CheckpointsOfParts, HaveWhatIsLeftWhereAnEarlierOneIsDamaged) {
  CheckpointManager checkpoints = manager();
  for (const int tokens : {200, 300, 400, 700}) {
    static_cast<void>(save(checkpoints, sequence(tokens)));
    Store again = Store::open(folder_.path() / "store", {.write = {.sync = false}}).value();
    CheckpointManager others = CheckpointManager::create(again, {}).value();
    damage_objects();
    const LiveSequence live = sequence(tokens + 60);
    const Checkpoint saved = save(others, live);
    expect_saved(others, saved.sequences[0], live);
    EXPECT_TRUE(others.latest().ok());
  }
}

TEST_F(CheckpointsOfParts, OfForksHaveThePartsThatEachHas) {
  CheckpointManager checkpoints = manager();
  const std::vector<LiveSequence> both = {sequence(300, "short"), sequence(420, "long")};
  pool_ = random_pool(partly_windowed(), kPoolBlocks, 1);
  const Checkpoint saved = checkpoints.save("", both, pool_).value();
  ASSERT_EQ(saved.sequences.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    expect_saved(checkpoints, saved.sequences[i], both[i]);
  }
}

TEST_F(CheckpointsOfParts, AreCompactedWithWhatIsThere) {
  CheckpointManager checkpoints = manager({.keep = 1});
  for (const int step : {40, 200}) {
    for (int tokens = 160; tokens <= 1160; tokens += step) {
      static_cast<void>(save(checkpoints, sequence(tokens)));
    }
    const Checkpoint before = checkpoints.list()->front();
    const Checkpoint compacted = checkpoints.compact(before.name).value();
    EXPECT_LE(compacted.sequences[0].parts.size(), before.sequences[0].parts.size());
    EXPECT_LE(compacted.entry.bytes, before.entry.bytes);
    EXPECT_EQ(checkpoints.tokens_of(compacted.sequences[0])->runs[0].run.lost_parts,
              checkpoints.tokens_of(before.sequences[0])->runs[0].run.lost_parts);
    expect_saved(checkpoints, compacted.sequences[0], sequence(1160));
    pool_ = random_pool(partly_windowed(), kPoolBlocks, 1);
  }
}

}  // namespace
}  // namespace quire::kv_store
