#include "quire/kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/ids.h"
#include "quire/base/str.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/eviction_order.h"
#include "quire/kv/types.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {
namespace {

constexpr std::size_t kRememberedBlocks = 16384;  // blocks that have gone
constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;

// Returns a hash: multiplies and rotates, and mixes at the end. It is chosen for speed, as every
// hit is verified.
template <class Values>
std::uint64_t mixed(std::uint64_t hash, const Values& values) {
  for (const auto value : values) {
    hash = (std::rotl(hash, 5) ^ static_cast<std::uint32_t>(value)) * kOdd;
  }
  return hash ^ (hash >> 32);
}

// Returns the hash that the paths of a salt begin with.
std::uint64_t hash_of_salt(std::string_view salt) { return mixed(kOdd, salt); }

}  // namespace

PrefixIndex::PrefixIndex(std::int32_t num_blocks, std::int32_t block_tokens,
                         std::uint64_t hash_mask)
    : block_tokens_(block_tokens),
      hash_mask_(hash_mask),
      nodes_(static_cast<std::size_t>(num_blocks)),
      tokens_(static_cast<std::size_t>(num_blocks) * static_cast<std::size_t>(block_tokens)),
      buckets_(std::bit_ceil(static_cast<std::size_t>(num_blocks) + 1), -1),
      roots_{{.salt = "", .hash = hash_of_salt("")}},
      root_ids_{{"", kIndexRoot.id.value}},
      order_(num_blocks) {
  gone_.reserve(num_blocks == 0 ? 0 : kRememberedBlocks);  // giving blocks back asks for no memory
  evicted_.reserve(static_cast<std::size_t>(num_blocks));
}

std::optional<BlockRef> PrefixIndex::find_root(std::string_view salt) const {
  const auto found = root_ids_.find(salt);
  return found == root_ids_.end() ? std::nullopt : std::optional(ref_of(found->second));
}

BlockRef PrefixIndex::root(std::string_view salt) {
  if (const std::optional<BlockRef> known = find_root(salt)) {
    return *known;
  }
  if (free_roots_.empty()) {
    free_roots_.reserve(roots_.size() +
                        1);  // for all of them, so that dropping one needs no memory
    roots_.emplace_back();
    free_roots_.push_back(-static_cast<std::int32_t>(roots_.size()));
  }
  const std::int32_t id = free_roots_.back();
  std::string own(salt);
  root_ids_.emplace(own, id);
  free_roots_.pop_back();
  root_of(id) = {.salt = std::move(own), .hash = hash_of_salt(salt)};
  return ref_of(id);
}

// Drops the root of a salt when the last block that begins a prompt of it has gone.
void PrefixIndex::drop_root(std::int32_t id) {
  root_ids_.erase(root_of(id).salt);
  root_of(id) = {};
  free_roots_.push_back(id);
}

bool PrefixIndex::is_root(BlockRef block) const {
  const std::int64_t number = -1 - std::int64_t{block.id.value};
  return number >= 0 && number < std::ssize(roots_) && block.generation == 0 &&
         find_root(roots_[static_cast<std::size_t>(number)].salt) == block;
}

std::vector<BlockRef> PrefixIndex::match(std::span<const TokenId> tokens,
                                         std::string_view salt) const {
  const auto step = static_cast<std::size_t>(block_tokens_);
  std::vector<BlockRef> path;
  const std::optional<BlockRef> root = find_root(salt);
  if (!root) {
    return path;
  }
  BlockRef parent = *root;
  for (; tokens.size() >= step; tokens = tokens.subspan(step)) {
    const std::optional<BlockRef> child = find(parent, tokens.first(step));
    if (!child) {
      break;
    }
    path.push_back(*child);
    parent = *child;
  }
  return path;
}

std::vector<std::int32_t> PrefixIndex::match_each_salt(std::span<const TokenId> tokens) const {
  std::vector<std::int32_t> counts;
  for (const auto& [salt, root] : root_ids_) {
    if (const auto count = static_cast<std::int32_t>(match(tokens, salt).size()); count > 0) {
      counts.push_back(count);
    }
  }
  return counts;
}

std::optional<BlockRef> PrefixIndex::find(BlockRef parent, std::span<const TokenId> tokens) const {
  const std::uint64_t hash = path_hash(hash_of(parent.id.value), tokens);
  for (std::int32_t id = buckets_[hash & (buckets_.size() - 1)]; id >= 0;
       id = node(id).next_in_bucket) {
    if (node(id).hash == hash && node(id).parent == parent.id.value &&
        std::ranges::equal(tokens_of(ref_of(id)), tokens)) {
      return ref_of(id);
    }
  }
  return std::nullopt;
}

PrefixMiss PrefixIndex::explain(std::span<const TokenId> tokens, std::string_view salt) const {
  const std::vector<BlockRef> path = match(tokens, salt);
  const auto step = static_cast<std::size_t>(block_tokens_);
  const std::size_t matched = path.size() * step;
  const std::span<const TokenId> rest = tokens.subspan(matched);
  PrefixMiss miss{.why = PrefixMiss::Why::kNeverSeen, .token = static_cast<std::int64_t>(matched)};
  if (rest.size() < step) {
    miss.why = PrefixMiss::Why::kTail;
    return miss;
  }
  const std::uint64_t before = path.empty() ? hash_of_salt(salt) : hash_of(path.back().id.value);
  if (const Gone* gone = last_gone(path_hash(before, rest.first(step)))) {
    miss.why = gone->why;
    miss.seconds = std::chrono::duration<double>(order_.now() - gone->when).count();
    return miss;
  }
  const std::optional<BlockRef> parent = path.empty() ? find_root(salt) : path.back();
  for (const BlockRef other : blocks()) {
    const std::span<const TokenId> seen = tokens_of(other);
    const auto alike = std::ranges::mismatch(seen, rest).in1 - seen.begin();
    if (parent_of(other) == parent) {
      if (alike > 0 || !path.empty()) {
        miss.why = PrefixMiss::Why::kDiffers;
        miss.token = std::max(miss.token, static_cast<std::int64_t>(matched) + alike);
      }
    }
  }
  return miss;
}

const PrefixIndex::Gone* PrefixIndex::last_gone(std::uint64_t hash) const {
  for (std::size_t i = 0; i < gone_.size(); ++i) {
    const Gone& gone = gone_[(next_gone_ + kRememberedBlocks - 1 - i) % kRememberedBlocks];
    if (gone.hash == hash) {
      return &gone;
    }
  }
  return nullptr;
}

void PrefixIndex::insert(BlockRef parent, BlockRef block, std::span<const TokenId> tokens,
                         SessionRef session) {
  QUIRE_CHECK(contains(parent), "the parent of an inserted block is not in the prefix index");
  const std::int32_t id = block.id.value;
  QUIRE_CHECK(!node(id).present, "a block was inserted into the prefix index twice");
  QUIRE_DCHECK(!find(parent, tokens), "the prefix index knows these tokens already");
  Node& added = node(id);
  added = {.present = true, .generation = block.generation, .parent = parent.id.value};
  added.hash = path_hash(hash_of(added.parent), tokens);
  order_.add(id, session);
  std::ranges::copy(tokens, tokens_.begin() + std::ptrdiff_t{id} * block_tokens_);
  std::int32_t& bucket = bucket_of(added.hash);
  added.next_in_bucket = bucket;
  bucket = id;
  if (added.parent >= 0) {
    added.next_sibling = node(added.parent).first_child;
    node(added.parent).first_child = id;
    if (added.next_sibling >= 0) {
      node(added.next_sibling).previous_sibling = id;
    }
  } else {
    ++root_of(added.parent).children;
  }
}

bool PrefixIndex::contains(BlockRef block) const {
  if (block.id.value < 0) {
    return is_root(block);
  }
  return node(block.id.value).present && node(block.id.value).generation == block.generation;
}

bool PrefixIndex::is_unused(BlockRef block) const {
  return contains(block) && node(block.id.value).unused;
}

void PrefixIndex::set_used(BlockRef block) {
  Node& found = node(block.id.value);
  QUIRE_CHECK(contains(block) && found.unused, "a block that is in use was made used");
  found.unused = false;
  --num_unused_;
  if (order_.allows(block.id.value)) {
    order_.forbid(block.id.value);
  }
  if (found.parent >= 0 && --node(found.parent).unused_children == 0 && node(found.parent).unused) {
    order_.allow(found.parent);
  }
}

void PrefixIndex::set_unused(BlockRef block) {
  Node& found = node(block.id.value);
  QUIRE_CHECK(contains(block) && !found.unused, "an unused block was made unused");
  found.unused = true;
  ++num_unused_;
  order_.release(block.id.value);
  if (found.unused_children == 0) {
    order_.allow(block.id.value);
  }
  if (found.parent >= 0 && ++node(found.parent).unused_children == 1 && node(found.parent).unused) {
    order_.forbid(found.parent);
  }
}

void PrefixIndex::move(BlockRef from, BlockRef to) {
  QUIRE_CHECK(is_unused(from), "a block that is in use was moved");
  const std::int32_t id = from.id.value;
  const std::int32_t place = to.id.value;
  QUIRE_CHECK(!node(place).present, "a block was moved to the place of another one");
  link_to(id) = place;
  Node& moved = node(place);
  moved = std::exchange(node(id), {});
  moved.generation = to.generation;
  if (moved.previous_sibling >= 0) {
    node(moved.previous_sibling).next_sibling = place;
  } else if (moved.parent >= 0) {
    node(moved.parent).first_child = place;
  }
  if (moved.next_sibling >= 0) {
    node(moved.next_sibling).previous_sibling = place;
  }
  for (std::int32_t child = moved.first_child; child >= 0; child = node(child).next_sibling) {
    node(child).parent = place;
  }
  std::ranges::copy(tokens_of(from), tokens_.begin() + std::ptrdiff_t{place} * block_tokens_);
  order_.move(id, place);
}

void PrefixIndex::remember_gone(BlockRef block, PrefixMiss::Why why) {
  const Gone gone{.hash = node(block.id.value).hash, .why = why, .when = order_.now()};
  if (gone_.size() < kRememberedBlocks) {
    gone_.push_back(gone);
  } else {
    gone_[next_gone_] = gone;
  }
  next_gone_ = (next_gone_ + 1) % kRememberedBlocks;
}

bool PrefixIndex::forget(BlockRef block) {
  const Node& known = node(block.id.value);
  if (!known.unused || known.first_child >= 0) {
    return false;
  }
  remember_gone(block, PrefixMiss::Why::kCleared);
  remove_leaf(block.id.value);
  return true;
}

PrefixIndex::Eviction PrefixIndex::next_eviction(std::optional<PrefixMiss::Why> why) {
  QUIRE_CHECK(num_unused_ > 0, "nothing to evict");
  const EvictionOrder::Choice chosen = order_.next();
  evicted_.assign(1, ref_of(chosen.block));
  for (std::size_t i = 0; i < evicted_.size(); ++i) {
    for (std::int32_t child = node(evicted_[i].id.value).first_child; child >= 0;
         child = node(child).next_sibling) {
      evicted_.push_back(ref_of(child));
    }
  }
  std::ranges::reverse(evicted_);
  return {.blocks = evicted_, .why = why.value_or(chosen.why)};
}

void PrefixIndex::evict(const Eviction& next) {
  for (const BlockRef block : next.blocks) {
    remember_gone(block, next.why);
    remove_leaf(block.id.value);
  }
}

void PrefixIndex::remove_leaf(std::int32_t id) {
  Node& leaf = node(id);
  if (leaf.unused) {
    set_used(ref_of(id));
  }
  order_.remove(id, leaf.parent);
  link_to(id) = leaf.next_in_bucket;
  if (leaf.previous_sibling >= 0) {
    node(leaf.previous_sibling).next_sibling = leaf.next_sibling;
  } else if (leaf.parent >= 0) {
    node(leaf.parent).first_child = leaf.next_sibling;
  }
  if (leaf.next_sibling >= 0) {
    node(leaf.next_sibling).previous_sibling = leaf.previous_sibling;
  }
  if (leaf.parent < 0 && --root_of(leaf.parent).children == 0 &&
      leaf.parent != kIndexRoot.id.value) {
    drop_root(leaf.parent);
  }
  leaf = {};
}

std::vector<BlockRef> PrefixIndex::blocks() const {
  std::vector<BlockRef> all;
  for (std::int32_t id = 0; id < static_cast<std::int32_t>(nodes_.size()); ++id) {
    if (node(id).present) {
      all.push_back(ref_of(id));
    }
  }
  return all;
}

std::span<const TokenId> PrefixIndex::tokens_of(BlockRef block) const {
  const auto step = static_cast<std::size_t>(block_tokens_);
  return std::span(tokens_).subspan(static_cast<std::size_t>(block.id.value) * step, step);
}

BlockRef PrefixIndex::parent_of(BlockRef block) const {
  return ref_of(node(block.id.value).parent);
}

BlockRef PrefixIndex::ref_of(std::int32_t id) const {
  return {BlockId{id}, id < 0 ? 0 : node(id).generation};
}

std::uint64_t PrefixIndex::hash_of(std::int32_t id) const {
  return id < 0 ? roots_[static_cast<std::size_t>(-1 - id)].hash : node(id).hash;
}

std::uint64_t PrefixIndex::path_hash(std::uint64_t before, std::span<const TokenId> tokens) const {
  return mixed(before, tokens) & hash_mask_;
}

std::int32_t& PrefixIndex::bucket_of(std::uint64_t hash) {
  return buckets_[hash & (buckets_.size() - 1)];
}

std::int32_t& PrefixIndex::link_to(std::int32_t id) {
  std::int32_t* link = &bucket_of(node(id).hash);
  while (*link != id) {
    link = &node(*link).next_in_bucket;
  }
  return *link;
}

Status PrefixIndex::check_node(std::int32_t id) const {
  const Node& checked = node(id);
  if (!contains(ref_of(checked.parent))) {
    return {ErrorCode::kInternal, base::str_cat("the parent of indexed block ", id, " is unknown")};
  }
  const std::optional<BlockRef> found = find(ref_of(checked.parent), tokens_of(ref_of(id)));
  if (!found || found->id.value != id) {
    return {ErrorCode::kInternal,
            base::str_cat("indexed block ", id, " is not found by its tokens")};
  }
  std::int32_t unused = 0;
  for (std::int32_t child = checked.first_child; child >= 0; child = node(child).next_sibling) {
    if (!node(child).present || node(child).parent != id) {
      return {ErrorCode::kInternal,
              base::str_cat("block ", child, " is linked as a child of ", id, " but is not")};
    }
    unused += node(child).unused ? 1 : 0;
  }
  const bool may_go = order_.allows(id);
  if (unused != checked.unused_children || may_go != (checked.unused && unused == 0)) {
    return {ErrorCode::kInternal,
            base::str_cat("indexed block ", id, " has ", unused, " unused children, counts ",
                          checked.unused_children, " and ", may_go ? "may" : "may not", " go")};
  }
  return {};
}

Status PrefixIndex::check_roots() const {
  std::vector<std::int32_t> children(roots_.size());
  for (const BlockRef block : blocks()) {
    if (const std::int32_t parent = node(block.id.value).parent; parent < 0) {
      ++children[static_cast<std::size_t>(-1 - parent)];
    }
  }
  for (std::size_t i = 0; i < roots_.size(); ++i) {
    const std::int32_t id = -1 - static_cast<std::int32_t>(i);
    const bool used = contains(ref_of(id));
    if (children[i] != roots_[i].children || used != (children[i] > 0 || i == 0)) {
      return {ErrorCode::kInternal,
              base::str_cat(children[i], " indexed blocks begin behind root ", i, ", counted are ",
                            roots_[i].children, used ? "" : ", and its salt is unknown")};
    }
  }
  return {};
}

Status PrefixIndex::check() const {
  std::int32_t unused = 0;
  std::int32_t may_go = 0;
  for (const BlockRef block : blocks()) {
    QUIRE_TRY_STATUS(check_node(block.id.value));
    unused += node(block.id.value).unused ? 1 : 0;
    may_go += order_.allows(block.id.value) ? 1 : 0;
  }
  if (unused != num_unused_ || may_go != order_.num_allowed()) {
    return {ErrorCode::kInternal,
            base::str_cat(unused, " indexed blocks are unused, counted are ", num_unused_, "; ",
                          may_go, " of them may go, counted are ", order_.num_allowed())};
  }
  QUIRE_TRY_STATUS(check_roots());
  return order_.check();
}

}  // namespace quire::kv
