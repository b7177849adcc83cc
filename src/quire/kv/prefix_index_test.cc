#include "quire/kv/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/test_length.h"
#include "quire/kv/block_pool.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

using Tokens = std::vector<TokenId>;

BlockRef block(std::int32_t id, std::uint32_t generation = 0) { return {BlockId{id}, generation}; }

PrefixIndex::Eviction evict(PrefixIndex& index, std::optional<PrefixMiss::Why> why = {}) {
  const PrefixIndex::Eviction next = index.next_eviction(why);
  index.evict(next);
  return next;
}

std::vector<BlockRef> evicted(PrefixIndex& index) {
  const std::span<const BlockRef> blocks = evict(index).blocks;
  return {blocks.begin(), blocks.end()};
}

TEST(PrefixIndex, FindsTheLongestPathOfWholeBlocks) {
  PrefixIndex index(4, 2);
  index.insert(kIndexRoot, block(0), Tokens{1, 2});
  index.insert(block(0), block(1), Tokens{3, 4});
  EXPECT_EQ(index.match(Tokens{1, 2, 3, 4, 5}), (std::vector{block(0), block(1)}));
  EXPECT_EQ(index.match(Tokens{1, 2, 3}), (std::vector{block(0)}));
  EXPECT_TRUE(index.match(Tokens{1}).empty());
  EXPECT_TRUE(index.match(Tokens{2, 1, 3, 4}).empty());
}

TEST(PrefixIndex, TheSameTokensAfterOthersAreNotTheSameBlock) {
  PrefixIndex index(4, 1);
  index.insert(kIndexRoot, block(0), Tokens{1});
  index.insert(kIndexRoot, block(1), Tokens{2});
  index.insert(block(0), block(2), Tokens{7});
  EXPECT_EQ(index.match(Tokens{1, 7}).size(), 2U);
  EXPECT_EQ(index.match(Tokens{2, 7}).size(), 1U);
  EXPECT_TRUE(index.match(Tokens{7}).empty());
}

TEST(PrefixIndex, AHashIsAHint) {
  PrefixIndex index(8, 1, 0);  // every hash is 0
  index.insert(kIndexRoot, block(3), Tokens{1});
  index.insert(block(3), block(5), Tokens{1});
  index.insert(kIndexRoot, block(1), Tokens{2});
  EXPECT_EQ(index.match(Tokens{1, 1, 1}), (std::vector{block(3), block(5)}));
  EXPECT_EQ(index.match(Tokens{2, 1}), (std::vector{block(1)}));
  EXPECT_TRUE(index.match(Tokens{3}).empty());
}

TEST(PrefixIndex, EvictsTheLeastRecentlyUnusedFirst) {
  PrefixIndex index(4, 1);
  for (const std::int32_t id : {0, 1, 2}) {
    index.insert(kIndexRoot, block(id), Tokens{id});
  }
  for (const std::int32_t id : {1, 0, 2}) {
    index.set_unused(block(id));
  }
  index.set_used(block(1));
  index.set_unused(block(1));
  EXPECT_EQ(evicted(index), (std::vector{block(0)}));
  EXPECT_EQ(evicted(index), (std::vector{block(2)}));
  EXPECT_EQ(evicted(index), (std::vector{block(1)}));
  EXPECT_EQ(index.num_unused(), 0);
}

TEST(PrefixIndex, AMovedBlockIsFoundAtItsPlaceAndGoesInItsTurn) {
  PrefixIndex index(8, 1);
  index.insert(kIndexRoot, block(0), Tokens{1});
  for (const std::int32_t id : {1, 2, 3}) {
    index.insert(block(0), block(id), Tokens{id});
  }
  index.insert(block(2), block(4), Tokens{9});
  for (const std::int32_t id : {1, 4, 2, 3, 0}) {
    index.set_unused(block(id));
  }
  index.move(block(2), block(7, 5));
  index.move(block(0), block(2, 1));
  EXPECT_FALSE(index.contains(block(0)));
  EXPECT_EQ(index.match(Tokens{1, 2, 9}), (std::vector{block(2, 1), block(7, 5), block(4)}));
  EXPECT_EQ(index.match(Tokens{1, 3}), (std::vector{block(2, 1), block(3)}));
  const Status status = index.check();
  EXPECT_TRUE(status.ok()) << status.error().message;
  for (const BlockRef next : {block(1), block(4), block(7, 5), block(3), block(2, 1)}) {
    EXPECT_EQ(evicted(index), std::vector{next});
  }
}

TEST(PrefixIndex, EvictionOfAnAncestorTakesItsSubtreeAlong) {
  PrefixIndex index(4, 1);
  index.insert(kIndexRoot, block(0), Tokens{1});
  index.insert(block(0), block(1), Tokens{2});
  index.insert(block(1), block(2), Tokens{3});
  index.insert(kIndexRoot, block(3), Tokens{9});
  index.set_unused(block(0));
  index.set_unused(block(3));
  EXPECT_EQ(evicted(index), (std::vector{block(2), block(1), block(0)}));
  EXPECT_FALSE(index.contains(block(2)));
  EXPECT_TRUE(index.contains(block(3)));
}

TEST(PrefixIndex, ALaterTenantOfAnIdIsAnotherBlock) {
  PrefixIndex index(1, 1);
  index.insert(kIndexRoot, block(0, 5), Tokens{1});
  EXPECT_TRUE(index.contains(block(0, 5)));
  EXPECT_FALSE(index.contains(block(0, 4)));
  EXPECT_FALSE(index.is_unused(block(0, 4)));
}

TEST(PrefixIndex, WhatOneSaltHasComputedIsNotFoundByAnother) {
  for (const std::uint64_t hash_mask : {~std::uint64_t{0}, std::uint64_t{0}}) {
    PrefixIndex index(4, 2, hash_mask);
    index.insert(index.root("a"), block(0), Tokens{1, 2});
    index.insert(block(0), block(1), Tokens{3, 4});
    EXPECT_EQ(index.match(Tokens{1, 2, 3, 4}, "a").size(), 2U);
    EXPECT_TRUE(index.match(Tokens{1, 2, 3, 4}).empty());
    EXPECT_TRUE(index.match(Tokens{1, 2, 3, 4}, "b").empty());
    index.insert(index.root("b"), block(2), Tokens{1, 2});
    index.insert(kIndexRoot, block(3), Tokens{1, 2});
    EXPECT_EQ(index.match(Tokens{1, 2, 3, 4}, "b"), (std::vector{block(2)}));
    EXPECT_EQ(index.match(Tokens{1, 2, 3, 4}, ""), (std::vector{block(3)}));
    EXPECT_EQ(index.match(Tokens{1, 2, 3, 4}, "a"), (std::vector{block(0), block(1)}));
  }
}

TEST(PrefixIndex, ASaltIsForgottenWithItsLastBlock) {
  PrefixIndex index(4, 1);
  const BlockRef root = index.root("a");
  index.insert(root, block(0), Tokens{1});
  index.insert(root, block(1), Tokens{2});
  index.set_unused(block(0));
  index.set_unused(block(1));
  (void)evict(index);
  EXPECT_EQ(index.find_root("a"), root);
  (void)evict(index);
  EXPECT_EQ(index.find_root("a"), std::nullopt);
  EXPECT_FALSE(index.contains(root));
  EXPECT_EQ(index.root("b"), root) << "its place is used again";
  index.insert(root, block(2), Tokens{1});
  EXPECT_TRUE(index.match(Tokens{1}, "a").empty());
  EXPECT_EQ(index.explain(Tokens{1, 1}, "a").why, PrefixMiss::Why::kEvicted);
  EXPECT_EQ(index.explain(Tokens{2, 1}, "b").why, PrefixMiss::Why::kNeverSeen);
  EXPECT_TRUE(index.check().ok());
}

TEST(PrefixIndex, ExplainsNothingOfAnotherSalt) {
  using Why = PrefixMiss::Why;
  PrefixIndex index(4, 2);
  index.insert(index.root("a"), block(0), Tokens{1, 2});
  EXPECT_EQ(index.explain(Tokens{1, 2, 3}, "b").why, Why::kNeverSeen);
  EXPECT_EQ(index.explain(Tokens{1, 2, 3}).why, Why::kNeverSeen)
      << "the empty salt is a tenant too";
  EXPECT_EQ(index.explain(Tokens{1, 9, 3}, "b").why, Why::kNeverSeen);
  EXPECT_EQ(index.explain(Tokens{1, 9, 3}, "a").why, Why::kDiffers);
  index.insert(kIndexRoot, block(1), Tokens{1, 7});
  EXPECT_EQ(index.explain(Tokens{1, 2, 3}).why, Why::kDiffers);
  EXPECT_EQ(index.explain(Tokens{1, 2, 3}, "b").why, Why::kNeverSeen);
}

TEST(PrefixIndexDeathTest, BrokenPreconditionsAbort) {
  PrefixIndex index(2, 1);
  EXPECT_DEATH((void)evict(index), "nothing to evict");
  EXPECT_DEATH(index.insert(block(1), block(0), Tokens{1}), "parent");
  index.insert(kIndexRoot, block(0), Tokens{1});
  EXPECT_DEATH(index.insert(kIndexRoot, block(0), Tokens{2}), "twice");
  EXPECT_DEATH(index.set_used(block(0)), "in use");
  EXPECT_DEATH(index.move(block(0), block(1)), "in use");
}

// The oracle: every known path written out, searched and evicted by looking at all of them.
class BruteForce {
 public:
  struct Entry {
    Tokens path;
    BlockRef block;
    bool unused = false;
    std::int64_t since = 0;
  };

  [[nodiscard]] std::vector<BlockRef> match(const Tokens& tokens) const {
    std::vector<const Entry*> found;
    for (const Entry& entry : entries) {
      if (is_prefix(entry.path, tokens)) {
        found.push_back(&entry);
      }
    }
    std::ranges::sort(found, {}, [](const Entry* entry) { return entry->path.size(); });
    std::vector<BlockRef> path;
    for (const Entry* entry : found) {
      path.push_back(entry->block);
    }
    return path;
  }

  std::vector<BlockRef> evict() {
    const Entry* oldest = nullptr;
    for (const Entry& entry : entries) {
      if (entry.unused && !has_unused_child(entry) &&
          (oldest == nullptr || entry.since < oldest->since)) {
        oldest = &entry;
      }
    }
    const Tokens path = oldest->path;
    std::vector<BlockRef> removed;
    std::erase_if(entries, [&](const Entry& entry) {
      const bool below = is_prefix(path, entry.path);
      if (below) {
        removed.push_back(entry.block);
      }
      return below;
    });
    return removed;
  }

  std::vector<Entry> entries;
  std::size_t block_tokens = 1;

 private:
  // Paths grow by one block.
  [[nodiscard]] bool has_unused_child(const Entry& parent) const {
    return std::ranges::any_of(entries, [&](const Entry& entry) {
      return entry.unused && entry.path.size() == parent.path.size() + block_tokens &&
             is_prefix(parent.path, entry.path);
    });
  }

  static bool is_prefix(const Tokens& prefix, const Tokens& tokens) {
    return prefix.size() <= tokens.size() &&
           std::equal(prefix.begin(), prefix.end(), tokens.begin());
  }
};

class RandomWalk {
 public:
  RandomWalk(std::int32_t num_blocks, std::int32_t block_tokens, std::uint64_t hash_mask)
      : block_tokens_(block_tokens),
        index_(num_blocks, block_tokens, hash_mask),
        random_(static_cast<std::uint32_t>(num_blocks * 1000 + block_tokens)) {
    oracle_.block_tokens = static_cast<std::size_t>(block_tokens);
    for (std::int32_t id = 0; id < num_blocks; ++id) {
      free_.push_back(block(id));
    }
  }

  void step(std::int64_t time) {
    switch (random_() % 6) {
      case 0:
        return insert();
      case 1:
        return change_use(time);
      case 2:
        return evict();
      case 3:
        return move();
      default:
        return look_up();
    }
  }

  [[nodiscard]] const PrefixIndex& index() const { return index_; }

 private:
  // In the oracle the salt is one more token before the others.
  static constexpr std::array<const char*, 3> kSalts = {"", "a", "b"};
  TokenId random_salt() { return static_cast<TokenId>(random_() % kSalts.size()); }
  static const char* salt_of(TokenId salt) { return kSalts[static_cast<std::size_t>(salt)]; }

  Tokens random_tokens(std::size_t count) {
    Tokens tokens(count);
    std::ranges::generate(tokens, [this] { return static_cast<TokenId>(random_() % 2); });
    return tokens;
  }

  void insert() {
    if (free_.empty()) {
      return;
    }
    const std::size_t pick = random_() % (oracle_.entries.size() + 1);
    const bool at_root = pick == oracle_.entries.size();
    const TokenId salt = random_salt();
    const auto parent =
        at_root ? index_.find_root(salt_of(salt)) : std::optional(oracle_.entries[pick].block);
    Tokens path = at_root ? Tokens{salt} : oracle_.entries[pick].path;
    const Tokens added = random_tokens(static_cast<std::size_t>(block_tokens_));
    path.insert(path.end(), added.begin(), added.end());
    const bool known = std::ranges::any_of(
        oracle_.entries, [&](const BruteForce::Entry& entry) { return entry.path == path; });
    ASSERT_EQ(parent && index_.find(*parent, added).has_value(), known);
    if (known) {
      return;
    }
    index_.insert(parent ? *parent : index_.root(salt_of(salt)), free_.back(), added);
    oracle_.entries.push_back({.path = path, .block = free_.back()});
    free_.pop_back();
  }

  void change_use(std::int64_t time) {
    if (oracle_.entries.empty()) {
      return;
    }
    BruteForce::Entry& entry = oracle_.entries[random_() % oracle_.entries.size()];
    ASSERT_EQ(index_.is_unused(entry.block), entry.unused);
    if (entry.unused) {
      index_.set_used(entry.block);
    } else {
      index_.set_unused(entry.block);
    }
    entry.unused = !entry.unused;
    entry.since = time;
  }

  void evict() {
    if (index_.num_unused() == 0 || random_() % 3 != 0) {
      return;
    }
    const auto by_id = [](BlockRef a, BlockRef b) { return a.id < b.id; };
    std::vector<BlockRef> removed = evicted(index_);
    std::vector<BlockRef> expected = oracle_.evict();
    std::ranges::sort(removed, by_id);
    std::ranges::sort(expected, by_id);
    ASSERT_EQ(removed, expected);
    for (BlockRef freed : removed) {
      ++freed.generation;
      free_.push_back(freed);
    }
  }

  void move() {
    if (free_.empty() || oracle_.entries.empty()) {
      return;
    }
    BruteForce::Entry& entry = oracle_.entries[random_() % oracle_.entries.size()];
    if (!entry.unused) {
      return;
    }
    index_.move(entry.block, free_.back());
    ++entry.block.generation;
    std::swap(entry.block, free_.back());
  }

  void look_up() {
    Tokens tokens = random_tokens(random_() % 12);
    const TokenId salt = random_salt();
    const std::vector<BlockRef> found = index_.match(tokens, salt_of(salt));
    tokens.insert(tokens.begin(), salt);
    ASSERT_EQ(found, oracle_.match(tokens));
  }

  std::int32_t block_tokens_;
  PrefixIndex index_;
  BruteForce oracle_;
  std::vector<BlockRef> free_;
  std::mt19937 random_;
};

TEST(PrefixIndex, ExplainsWhyAMatchEndsWhereItDoes) {
  using Why = PrefixMiss::Why;
  PrefixIndex index(8, 2);
  const BlockRef first{BlockId{0}, 1};
  const BlockRef second{BlockId{1}, 1};
  index.insert(kIndexRoot, first, Tokens{1, 2});
  index.insert(first, second, Tokens{3, 4});
  const auto why = [&](const Tokens& tokens) { return index.explain(tokens).why; };
  EXPECT_EQ(why({9, 9}), Why::kNeverSeen);
  EXPECT_EQ(why({1, 2, 3, 4}), Why::kTail);
  EXPECT_EQ(why({1, 2, 3}), Why::kTail);
  EXPECT_EQ(why({1, 2, 3, 4, 5, 6}), Why::kNeverSeen);
  EXPECT_EQ(index.explain(Tokens{1, 2, 3, 4, 5, 6}).token, 4);
  EXPECT_EQ(why({1, 2, 3, 9}), Why::kDiffers);
  EXPECT_EQ(index.explain(Tokens{1, 2, 3, 9}).token, 3);
  EXPECT_EQ(index.explain(Tokens{1, 2, 9, 9}).token, 2);
  EXPECT_EQ(index.explain(Tokens{1, 9}).token, 1);

  index.set_unused(second);
  index.set_unused(first);
  ASSERT_EQ(evict(index).blocks.size(), 1u);
  EXPECT_EQ(why({1, 2, 3, 4}), Why::kEvicted);
  EXPECT_EQ(index.explain(Tokens{1, 2, 3, 4}).token, 2);
  EXPECT_EQ(why({1, 2, 3, 9}), Why::kNeverSeen);
  ASSERT_EQ(evict(index, Why::kCleared).blocks.size(), 1u);
  EXPECT_EQ(why({1, 2, 3, 4}), Why::kCleared);
  EXPECT_EQ(index.explain(Tokens{1, 2, 3, 4}).token, 0);
}

TEST(PrefixIndex, MillionRandomOperationsEqualBruteForce) {
  const std::int64_t steps = base::test_length(1'000'000, 100'000) / 12 + 1;
  for (const std::int32_t num_blocks : {1, 7, 16, 24}) {
    for (const std::uint64_t hash_mask : {~std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{0}}) {
      RandomWalk walk(num_blocks, 1 + num_blocks % 3, hash_mask);
      for (std::int64_t time = 0; time < steps; ++time) {
        walk.step(time);
        ASSERT_FALSE(testing::Test::HasFatalFailure());
        const Status status = walk.index().check();
        ASSERT_TRUE(status.ok()) << status.error().message;
      }
    }
  }
}

}  // namespace
}  // namespace quire::kv
