// Radix tree over token ids at block granularity: which full block holds the KV of these tokens
// after exactly those before them. It also keeps the order of eviction. Every salt has a tree of
// its own, so that what one tenant has computed is not found by another.
//
// A node is a block, so nodes live in arrays indexed by block id. Nothing is allocated after
// construction but for a salt of which nothing is known. Children are found by hash; a hash is a
// hint, so parent and tokens are compared.
//
// Only an unused node with no unused child may be evicted; EvictionOrder decides which of them
// goes. A node takes its whole subtree along, because without it nothing below can be found.
// Without a window all of a node's descendants are unused when it is, so it is a leaf and exactly
// one block goes. With a window the first blocks of a running sequence are released alone; when
// they are evicted the blocks after them leave the index too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/eviction_order.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

// Parent of the blocks that begin a prompt without a salt.
inline constexpr BlockRef kIndexRoot{};

class PrefixIndex {
 public:
  // Makes an empty index. `hash_mask` is all ones except in tests that want collisions.
  PrefixIndex(std::int32_t num_blocks, std::int32_t block_tokens,
              std::uint64_t hash_mask = ~std::uint64_t{0});

  // Returns the parent of the blocks that begin a prompt of this salt. It goes with the last of
  // them. A new one must get a block inserted behind it before anything else happens.
  [[nodiscard]] BlockRef root(std::string_view salt);
  // Returns the root of this salt, or nullopt when nothing of it is known.
  [[nodiscard]] std::optional<BlockRef> find_root(std::string_view salt) const;

  // Returns the blocks of the longest known path of whole blocks that `tokens` begins with.
  // O(match).
  [[nodiscard]] std::vector<BlockRef> match(std::span<const TokenId> tokens,
                                            std::string_view salt = {}) const;

  // Returns, for each salt that has some, how many blocks match() finds. O(salts * match).
  [[nodiscard]] std::vector<std::int32_t> match_each_salt(std::span<const TokenId> tokens) const;

  // Returns the child of `parent` that holds `tokens` (one block of them).
  [[nodiscard]] std::optional<BlockRef> find(BlockRef parent,
                                             std::span<const TokenId> tokens) const;

  // Returns why match ends where it does. For people: evictions are known by hash alone, and only
  // the last ones. Cost: O(match + blocks).
  [[nodiscard]] PrefixMiss explain(std::span<const TokenId> tokens,
                                   std::string_view salt = {}) const;

  // Adds a block, as used by the one who computed it. Preconditions: `parent` is the root or known;
  // `block` is not known, and no sibling has the same tokens.
  void insert(BlockRef parent, BlockRef block, std::span<const TokenId> tokens,
              SessionRef session = {});

  // Returns whether this very block (not a later tenant of its id) is known; roots are.
  [[nodiscard]] bool contains(BlockRef block) const;
  [[nodiscard]] bool is_unused(BlockRef block) const;

  // Marks a block as used. Used blocks are not evicted by themselves. Precondition:
  // contains(block), which is not the root.
  void set_used(BlockRef block);
  void set_unused(BlockRef block);

  // Says that the KV of `from` lies in block `to` from now on. `to` takes over everything known of
  // `from`, its place in the order of eviction too. Preconditions: is_unused(from); `to` is not
  // known.
  void move(BlockRef from, BlockRef to);

  // Returns the eviction order, which has the hints of sessions and the time.
  [[nodiscard]] EvictionOrder& order() { return order_; }
  [[nodiscard]] const EvictionOrder& order() const { return order_; }

  struct Eviction {
    std::span<const BlockRef> blocks;  // children before parents; without a window it is one.
                                       // Valid until the next one
    PrefixMiss::Why why = PrefixMiss::Why::kEvicted;
  };
  // Returns the block whose turn it is with everything below it. `why`, for explain: the rule that
  // chose it if not given. Precondition: num_unused() > 0.
  [[nodiscard]] Eviction next_eviction(std::optional<PrefixMiss::Why> why = {});
  // Removes these blocks, which nothing has changed since.
  void evict(const Eviction& next);
  // Removes an unused block behind which nothing is known; else does nothing and says so.
  // Precondition: contains(block), which is not the root.
  [[nodiscard]] bool forget(BlockRef block);

  [[nodiscard]] std::int32_t num_unused() const { return num_unused_; }
  [[nodiscard]] std::vector<BlockRef> blocks() const;                      // ascending ids
  [[nodiscard]] std::span<const TokenId> tokens_of(BlockRef block) const;  // one block of them
  [[nodiscard]] BlockRef parent_of(BlockRef block) const;
  // Returns the salt of a root. Precondition: contains(root).
  [[nodiscard]] std::string_view salt_of(BlockRef root) const {
    return roots_[static_cast<std::size_t>(-1 - root.id.value)].salt;
  }

  // Returns kInternal when links, order of eviction and hash table disagree.
  [[nodiscard]] Status check() const;

 private:
  struct Gone {
    std::uint64_t hash = 0;  // hash of the path
    PrefixMiss::Why why = PrefixMiss::Why::kEvicted;
    TimePoint when;
  };
  struct Node {
    bool present = false;
    bool unused = false;
    std::uint32_t generation = 0;
    std::uint64_t hash = 0;  // hash of the tokens of the whole path
    // Links are block ids, negative where there is none.
    std::int32_t parent = -1;  // parent block, or the root
    std::int32_t first_child = -1;
    std::int32_t next_sibling = -1;
    std::int32_t previous_sibling = -1;
    std::int32_t next_in_bucket = -1;
    std::int32_t unused_children = 0;
  };

  struct Root {
    std::string salt;
    std::uint64_t hash = 0;  // hash with which paths behind it begin
    std::int32_t children = 0;
  };

  [[nodiscard]] Node& node(std::int32_t id) { return nodes_[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Node& node(std::int32_t id) const {
    return nodes_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] BlockRef ref_of(std::int32_t id) const;
  [[nodiscard]] Root& root_of(std::int32_t id) { return roots_[static_cast<std::size_t>(-1 - id)]; }
  [[nodiscard]] bool is_root(BlockRef block) const;
  [[nodiscard]] std::uint64_t hash_of(std::int32_t id) const;  // for a block or root
  [[nodiscard]] std::uint64_t path_hash(std::uint64_t before,
                                        std::span<const TokenId> tokens) const;
  void drop_root(std::int32_t id);
  [[nodiscard]] const Gone* last_gone(std::uint64_t hash) const;
  [[nodiscard]] std::int32_t& bucket_of(std::uint64_t hash);
  // Returns the link from which the list of its bucket goes on with it.
  [[nodiscard]] std::int32_t& link_to(std::int32_t id);
  void remember_gone(BlockRef block, PrefixMiss::Why why);
  void remove_leaf(std::int32_t id);
  [[nodiscard]] Status check_node(std::int32_t id) const;
  [[nodiscard]] Status check_roots() const;

  std::int32_t block_tokens_;
  std::uint64_t hash_mask_;
  std::vector<Node> nodes_;            // [num_blocks]
  std::vector<TokenId> tokens_;        // [num_blocks, block_tokens]
  std::vector<std::int32_t> buckets_;  // [power of two] first node of each list
  std::vector<Root> roots_;            // number i has the id -1 - i; 0 is that of no salt
  std::map<std::string, std::int32_t, std::less<>> root_ids_;  // ids of the roots in use, by salt
  std::vector<std::int32_t> free_roots_;                       // ids of the others
  std::int32_t num_unused_ = 0;
  EvictionOrder order_;
  std::vector<Gone> gone_;  // a ring of the last ones
  std::size_t next_gone_ = 0;
  std::vector<BlockRef> evicted_;  // the last ones
};

}  // namespace quire::kv
