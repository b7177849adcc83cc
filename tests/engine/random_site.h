// The engine under test with its small pool, the oracle, the files written to disk, and the rules
// of right refusals, for all random operations.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "copies_oracle.h"
#include "quire/api/test_support.h"
#include "quire/chunks.h"
#include "quire/drafter.h"
#include "quire/llm.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

struct Scenario {
  std::string model;
  std::int32_t block_tokens = 8;
  std::int32_t blocks = 40;
  std::int32_t max_batch_tokens = 64;
  bool prefix_cache = true;
  bool stores = false;  // of chunks and of items
  ReuseMode context = ReuseMode::kAnchored;
  bool sequences_only = false;
  std::string kv_dtype = "auto";
  bool mixed = false;    // chunks have formats of their own
  bool guesses = false;  // trees, at random
  bool frees = false;    // some layers have a window, whose part of a block goes before it
  bool carries = false;  // some layers carry a state; host memory keeps what the pool gives up
  int steps = 0;

  // Returns whether KV is stored block by block. Blocks have two formats then.
  [[nodiscard]] bool by_block() const { return kv_dtype == "int4" || kv_dtype == "fp8"; }
  [[nodiscard]] bool one_format() const { return !mixed && !by_block(); }
  // Returns whether all blocks have the same bytes, and keep them.
  [[nodiscard]] bool counts_blocks() const { return one_format() && !frees && !carries; }
  // Returns whether KV cannot move to where it has other tokens before it.
  [[nodiscard]] bool refuses_moves() const { return carries; }
};

// Guesses trees at random, of tokens that came last.
class RandomTrees final : public Drafter {
 public:
  std::vector<TokenId> propose(std::span<const TokenId> /*tokens*/,
                               std::int32_t /*most*/) override {
    return {};
  }
  DraftTree propose_tree(std::span<const TokenId> tokens, std::int32_t /*most*/,
                         std::int32_t most_in_tree) override {
    const auto recent = tokens.last(std::min<std::size_t>(tokens.size(), 6));
    DraftTree tree;
    std::vector<std::int32_t> path;
    for (std::int32_t i = 0; i < most_in_tree; ++i) {
      path.resize(std::min<std::size_t>(draws_() % 5, path.size()));
      tree.tokens.push_back(recent[draws_() % recent.size()]);
      tree.parents.push_back(path.empty() ? -1 : path.back());
      path.push_back(i);
    }
    return tree;
  }

 private:
  std::mt19937 draws_{4};
};

// State that outlives an engine.
struct Disk {
  std::filesystem::path folder;
  std::map<std::string, Copy> files;   // saved sequences
  std::map<std::string, bool> chunks;  // registered in a store; whether they are pinned
  std::vector<std::string> items;      // of a context
};

// Done and refused, by name: a test that only refuses has tested nothing.
using Counts = std::map<std::string, std::pair<int, int>>;

struct Site {
  Site(const Scenario& given, Oracle& cold, Disk& kept, std::uint32_t seed)
      : scenario(given), oracle(cold), disk(kept), random(seed), llm(open()) {
    num_blocks = static_cast<std::int64_t>(stat(llm, "blocks_total"));
    block_bytes = static_cast<std::int64_t>(stat(llm, "block_bytes"));
  }

  [[nodiscard]] std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  }
  template <class T>
  [[nodiscard]] auto& any(T& list) {
    return *std::next(list.begin(), below(std::ssize(list)));
  }

  // Few ones, so that prefixes are met again.
  [[nodiscard]] Ids piece() {
    const std::int64_t which = below(24);
    Ids ids = some_ids(static_cast<std::size_t>(1 + which / 2), static_cast<std::uint32_t>(which));
    for (TokenId& id : ids) {
      id = 20 + id % 100;
    }
    return ids;
  }

  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return (tokens + scenario.block_tokens - 1) / scenario.block_tokens;
  }

  [[nodiscard]] std::string store(const char* name) const {
    return scenario.stores ? disk.folder / name : "";
  }

  // Returns whether it failed, which it may only for want of `blocks`, at the most.
  template <class T>
  [[nodiscard]] bool refused(const T& result, std::int64_t blocks) {
    if (result.ok()) {
      return false;
    }
    const Error& error = result.error();
    EXPECT_THAT(error.code, testing::AnyOf(ErrorCode::kOutOfBlocks, ErrorCode::kOverflow))
        << error.message;
    // A slab that has one open block in use lends none of its other bytes.
    EXPECT_TRUE(!scenario.counts_blocks() || blocks > num_blocks - in_use) << error.message;
    was_refused = true;
    return true;
  }

  const Scenario scenario;
  Oracle& oracle;
  Disk& disk;
  std::mt19937 random;
  ChunkedLLM llm;
  std::int64_t num_blocks = 0, block_bytes = 0;
  std::int64_t in_use = 0;  // blocks, before the operation
  bool was_refused = false;

 private:
  // A GPU takes the stems of these trees.
  static std::string trees() {
    return std::string(R"({"method": "custom", "max_tokens": 4, "adapt": false)") +
           (on_gpu() ? "}" : R"(, "width": 3})");
  }

  [[nodiscard]] ChunkedLLM open() const {
    const auto bytes = static_cast<std::int64_t>(stat(oracle.llm(), "block_bytes"));
    return ChunkedLLM::open(
               scenario.model,
               here({.kv_dtype = scenario.kv_dtype,
                     .block_tokens = scenario.block_tokens,
                     // Three quarters are states where layers carry some.
                     .kv_budget_bytes = scenario.blocks * bytes * (scenario.carries ? 4 : 1),
                     .state_share = scenario.carries ? 0.75 : LLMOptions().state_share,
                     .host_kv_budget_bytes =
                         scenario.carries && !on_gpu() ? 3 * scenario.blocks * bytes : 0,
                     .max_batch_tokens = scenario.max_batch_tokens,
                     .threads = 1,
                     .prefix_cache = scenario.prefix_cache,
                     .speculate = scenario.guesses ? trees() : "",
                     .drafter = scenario.guesses ? std::make_shared<RandomTrees>() : nullptr}),
               {.store = store("chunks")})
        .value();
  }
};

// Which blocks are held; those that several hold count once.
class BlockSet {
 public:
  void add(std::span<const std::int32_t> blocks) {
    for (const std::int32_t block : blocks) {
      if (block >= 0) {  // else the window has left it behind
        held_.insert(block);
      }
    }
  }
  [[nodiscard]] std::int64_t size() const { return std::ssize(held_); }

 private:
  std::set<std::int32_t> held_;
};

struct Operation {
  std::string name;
  int weight = 1;
  std::function<bool()> run;  // false: there was nothing to do it on
};

}  // namespace quire
