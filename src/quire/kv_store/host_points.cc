#include "quire/kv_store/host_points.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quire/base/check.h"
#include "quire/base/str.h"
#include "quire/device/host_buffer.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv_store {
namespace {

bool begins_with(std::span<const TokenId> tokens, std::span<const TokenId> with) {
  return tokens.size() >= with.size() && std::ranges::equal(tokens.first(with.size()), with);
}

}  // namespace

HostPoints::Reader::Reader(Point& point) : point_(&point) { ++point_->readers; }

HostPoints::Reader::~Reader() {
  if (point_ != nullptr) {
    --point_->readers;
  }
}

std::int32_t HostPoints::Reader::num_tokens() const { return point_->num_tokens; }

std::vector<std::span<const std::byte>> HostPoints::Reader::blocks() const {
  std::vector<std::span<const std::byte>> blocks;
  if (point_->tail.size() > 0) {
    blocks.push_back(std::as_const(point_->tail).span());
  }
  for (const Node* node = point_->node; node->parent != nullptr; node = node->parent) {
    blocks.push_back(node->bytes.span());
  }
  std::ranges::reverse(blocks);
  return blocks;
}

std::span<const std::byte> HostPoints::Reader::state() const {
  return std::as_const(point_->state).span();
}

// Returns the longest path that the tokens begin with, or null where nothing of the salt is known.
HostPoints::Node* HostPoints::walk(std::span<const TokenId> tokens, std::string_view salt,
                                   std::size_t& depth) const {
  depth = 0;
  const auto root = roots_.find(salt);
  if (root == roots_.end()) {
    return nullptr;
  }
  Node* at = root->second.get();
  const auto step = static_cast<std::size_t>(sizes_.block_tokens);
  for (; tokens.size() >= (depth + 1) * step; ++depth) {
    const auto child = at->children.find(tokens.subspan(depth * step, step));
    if (child == at->children.end()) {
      break;
    }
    at = child->second.get();
  }
  return at;
}

// Returns the longest point at a node behind which `rest` stands; null for none.
HostPoints::Point* HostPoints::longest_at(const Node& node, std::span<const TokenId> rest) {
  Point* longest = nullptr;
  for (Point* point : node.points) {
    const bool is_longer = longest == nullptr || point->num_tokens > longest->num_tokens;
    if (is_longer && begins_with(rest, point->tail_tokens)) {
      longest = point;
    }
  }
  return longest;
}

HostPoints::Point* HostPoints::longest(std::span<const TokenId> tokens,
                                       std::string_view salt) const {
  std::size_t depth = 0;
  Node* at = walk(tokens, salt, depth);
  for (; at != nullptr; at = at->parent, --depth) {
    const std::size_t behind = depth * static_cast<std::size_t>(sizes_.block_tokens);
    if (Point* point = longest_at(*at, tokens.subspan(behind))) {
      return point;
    }
  }
  return nullptr;
}

std::int32_t HostPoints::find(std::span<const TokenId> tokens, std::string_view salt) const {
  const Point* point = longest(tokens, salt);
  return point == nullptr ? 0 : point->num_tokens;
}

std::optional<HostPoints::Reader> HostPoints::open(std::span<const TokenId> tokens,
                                                   std::string_view salt) {
  Point* point = longest(tokens, salt);
  if (point == nullptr) {
    return std::nullopt;
  }
  use(*point);
  return Reader(*point);
}

void HostPoints::use(Point& point) {
  point.last_use = ++uses_;
  point.worth_before = worth_of_evicted_;
}

bool HostPoints::keep(std::span<const TokenId> tokens, std::string_view salt,
                      const Source& source) {
  QUIRE_CHECK(!tokens.empty(), "a restore point behind no token");
  const auto step = static_cast<std::size_t>(sizes_.block_tokens);
  if (Point* known = longest(tokens, salt);
      known != nullptr && std::cmp_equal(known->num_tokens, tokens.size())) {
    use(*known);
    return true;
  }
  std::size_t depth = 0;
  Node* at = walk(tokens, salt, depth);
  const std::size_t all = (tokens.size() + step - 1) / step;
  const std::int64_t needed =
      sizes_.state_bytes + static_cast<std::int64_t>(all - depth) * sizes_.block_bytes;
  if (needed > sizes_.budget_bytes) {
    return false;
  }
  bool kept = false;
  try {
    if (at == nullptr) {
      at = roots_.emplace(salt, std::make_unique<Node>()).first->second.get();
    }
    ++at->pins;
    Fresh fresh;
    kept = make_room(needed) && read(tokens, depth, source, fresh) &&
           link(at, tokens.subspan(depth * step), fresh);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): nothing is kept
  }
  if (at != nullptr) {
    --at->pins;
    prune(at);
  }
  num_kept_ += kept ? 1 : 0;
  return kept;
}

bool HostPoints::read_into(device::HostBuffer& buffer, std::int64_t bytes,
                           const std::function<Status(std::span<std::byte>)>& read) const {
  buffer = allocate_(static_cast<std::size_t>(bytes));
  return std::cmp_equal(buffer.size(), bytes) && read(buffer.span()).ok();
}

// Reads the blocks behind the first `known` ones, the tail and the state.
bool HostPoints::read(std::span<const TokenId> tokens, std::size_t known, const Source& source,
                      Fresh& fresh) const {
  const auto step = static_cast<std::size_t>(sizes_.block_tokens);
  const std::size_t full = tokens.size() / step;
  fresh.blocks.resize(full - known);
  for (std::size_t i = known; i < full; ++i) {
    if (!read_into(fresh.blocks[i - known], sizes_.block_bytes,
                   [&](std::span<std::byte> to) { return source.read_block(i, to); })) {
      return false;
    }
  }
  const std::span<const TokenId> rest = tokens.subspan(full * step);
  fresh.point = std::make_unique<Point>();
  fresh.point->num_tokens = static_cast<std::int32_t>(tokens.size());
  fresh.point->tail_tokens.assign(rest.begin(), rest.end());
  return (rest.empty() || read_into(fresh.point->tail, sizes_.block_bytes, source.read_tail)) &&
         read_into(fresh.point->state, sizes_.state_bytes, source.read_state);
}

// Links what was read behind a node, which is pinned, and pins the new end instead. Where memory is
// refused half-way, prune() takes back what has no point.
bool HostPoints::link(Node*& at, std::span<const TokenId> tokens, Fresh& fresh) {
  const auto step = static_cast<std::size_t>(sizes_.block_tokens);
  points_.reserve(points_.size() + 1);
  for (device::HostBuffer& bytes : fresh.blocks) {
    const std::span<const TokenId> own = tokens.first(step);
    auto node = std::make_unique<Node>();
    node->parent = at;
    node->tokens.assign(own.begin(), own.end());
    node->bytes = std::move(bytes);
    Node* added =
        at->children.emplace(std::vector<TokenId>(own.begin(), own.end()), std::move(node))
            .first->second.get();
    bytes_ += sizes_.block_bytes;
    ++added->pins;
    --at->pins;
    at = added;
    tokens = tokens.subspan(step);
  }
  at->points.push_back(fresh.point.get());
  fresh.point->node = at;
  bytes_ += std::ssize(fresh.point->tail.span()) + sizes_.state_bytes;
  use(*fresh.point);
  points_.push_back(std::move(fresh.point));
  return true;
}

// Returns the tokens that a hit saves over one on the next shorter point of its history.
std::int32_t HostPoints::saves(const Point& point) {
  std::int32_t shorter = 0;
  for (const Point* other : point.node->points) {
    if (other->num_tokens < point.num_tokens &&
        begins_with(point.tail_tokens, other->tail_tokens)) {
      shorter = std::max(shorter, other->num_tokens);
    }
  }
  const Node* child = point.node;
  for (const Node* at = child->parent; shorter == 0 && at != nullptr; at = at->parent) {
    const Point* other = longest_at(*at, child->tokens);
    shorter = other == nullptr ? 0 : other->num_tokens;
    child = at;
  }
  return point.num_tokens - shorter;
}

// Returns the bytes that are free when the point has gone.
std::int64_t HostPoints::own_bytes(const Point& point) const {
  std::int64_t bytes = std::ssize(point.tail.span()) + sizes_.state_bytes;
  for (const Node* at = point.node; at->parent != nullptr && at->num_holders() == 1;
       at = at->parent) {
    bytes += sizes_.block_bytes;
  }
  return bytes;
}

double HostPoints::worth(const Point& point) const {
  return point.worth_before + static_cast<double>(saves(point)) /
                                  static_cast<double>(std::max<std::int64_t>(own_bytes(point), 1));
}

bool HostPoints::make_room(std::int64_t bytes) {
  while (bytes_ + bytes > sizes_.budget_bytes) {
    Point* least = nullptr;
    std::pair<double, std::uint64_t> least_rank;
    for (const std::unique_ptr<Point>& point : points_) {
      const std::pair rank(worth(*point), point->last_use);
      if (point->readers == 0 && (least == nullptr || rank < least_rank)) {
        least = point.get();
        least_rank = rank;
      }
    }
    if (least == nullptr) {
      return false;
    }
    worth_of_evicted_ = std::max(worth_of_evicted_, least_rank.first);
    drop(*least);
    ++num_evictions_;
  }
  return true;
}

void HostPoints::drop(Point& point) {
  QUIRE_CHECK(point.readers == 0, "a restore point goes while it is read");
  Node* node = point.node;
  std::erase(node->points, &point);
  bytes_ -= std::ssize(point.tail.span()) + sizes_.state_bytes;
  const auto at = std::ranges::find(points_, &point, &std::unique_ptr<Point>::get);
  std::swap(*at, points_.back());
  points_.pop_back();
  prune(node);
}

// Removes a node that nobody needs, and then those before it.
void HostPoints::prune(Node* node) {
  while (node->num_holders() == 0 && node->parent != nullptr) {
    Node* parent = node->parent;
    bytes_ -= sizes_.block_bytes;
    parent->children.erase(parent->children.find(node->tokens));
    node = parent;
  }
  if (node->num_holders() == 0) {
    std::erase_if(roots_, [node](const auto& root) { return root.second.get() == node; });
  }
}

void HostPoints::clear() {
  while (!points_.empty()) {
    drop(*points_.back());
  }
}

Status HostPoints::check() const {
  std::unordered_set<const Node*> nodes;
  std::int64_t bytes = 0;
  for (const std::unique_ptr<Point>& point : points_) {
    bytes += std::ssize(point->tail.span()) + sizes_.state_bytes;
    if (std::ranges::find(point->node->points, point.get()) == point->node->points.end()) {
      return {ErrorCode::kInternal, "a restore point is not at its block"};
    }
    for (const Node* at = point->node; at->parent != nullptr; at = at->parent) {
      bytes += nodes.insert(at).second ? sizes_.block_bytes : 0;
    }
  }
  std::vector<const Node*> pending;
  pending.reserve(roots_.size());
  std::size_t linked = 0;
  for (const auto& [salt, root] : roots_) {
    pending.push_back(root.get());
  }
  while (!pending.empty()) {
    const Node* at = pending.back();
    pending.pop_back();
    linked += at->parent == nullptr ? 0 : 1;
    for (const auto& [tokens, child] : at->children) {
      pending.push_back(child.get());
    }
  }
  if (bytes != bytes_ || bytes_ > sizes_.budget_bytes || linked != nodes.size()) {
    return {ErrorCode::kInternal,
            base::str_cat("host memory has ", bytes, " bytes of restore points, counted are ",
                          bytes_, " of ", sizes_.budget_bytes, "; ", linked, " blocks, needed are ",
                          nodes.size())};
  }
  return {};
}

}  // namespace quire::kv_store
