// HostPoints: restore points in host memory, each with its state and all KV before it. Points of
// one history share the KV that they have in common, block by block.
//
// Invariants
//   1. The bytes of all blocks, states and tails are at most the budget, during every operation.
//   2. A block stays while a point, a longer block or a reader needs it, and no longer.
//   3. A point is found by its salt and its tokens, which are compared one by one.
//
// The point that is worth least gives way: its hit saves the fewest tokens for its bytes. Use keeps
// its worth fresh (GreedyDual-Size, as in kv/states.h). It saves the tokens behind the next shorter
// point of its history. Its bytes are those that nobody else needs.
//
// Thread rule: one thread per object. A Reader goes before its HostPoints.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/device/host_buffer.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv_store {

class HostPoints {
 public:
  struct Sizes {
    std::int64_t budget_bytes = 0;
    std::int64_t block_bytes = 0;
    std::int64_t state_bytes = 0;
    std::int32_t block_tokens = 1;
  };
  // Returns host memory; size() == 0 when the system refuses.
  using Allocate = std::function<device::HostBuffer(std::size_t)>;

  HostPoints(const Sizes& sizes, Allocate allocate)
      : sizes_(sizes), allocate_(std::move(allocate)) {}
  HostPoints(const HostPoints&) = delete;
  HostPoints& operator=(const HostPoints&) = delete;
  ~HostPoints() { clear(); }  // NOLINT(bugprone-exception-escape): nothing of it throws

  [[nodiscard]] std::int64_t num_points() const { return std::ssize(points_); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  // Returns how many points were copied to host memory, and how many gave way there.
  [[nodiscard]] std::int64_t num_kept() const { return num_kept_; }
  [[nodiscard]] std::int64_t num_evictions() const { return num_evictions_; }

  // The bytes of a point, as they are read.
  struct Source {
    std::function<Status(std::size_t block, std::span<std::byte> to)> read_block;
    std::function<Status(std::span<std::byte> to)> read_tail;  // block that is not full
    std::function<Status(std::span<std::byte> to)> read_state;
  };
  // Keeps the point behind `tokens`, of which there is one at least. Reads what is not there yet.
  // Others give way to it. Returns false and keeps nothing of it where the budget is too small, a
  // read fails or memory is refused.
  [[nodiscard]] bool keep(std::span<const TokenId> tokens, std::string_view salt,
                          const Source& source);

  // Returns the tokens of the longest point behind some of `tokens`; 0 for none. Cost: O(tokens).
  [[nodiscard]] std::int32_t find(std::span<const TokenId> tokens, std::string_view salt) const;

 private:
  struct Node;
  struct Point;

 public:
  // A point that is read, which does not give way meanwhile.
  class Reader {
   public:
    explicit Reader(Point& point);
    Reader(Reader&& other) noexcept : point_(std::exchange(other.point_, nullptr)) {}
    Reader& operator=(Reader&&) = delete;
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    ~Reader();

    [[nodiscard]] std::int32_t num_tokens() const;
    // Returns the KV of all blocks, the last of which may be partly filled.
    [[nodiscard]] std::vector<std::span<const std::byte>> blocks() const;
    [[nodiscard]] std::span<const std::byte> state() const;

   private:
    Point* point_;
  };
  // Opens the longest point behind some of `tokens`, which counts as a use. nullopt for none.
  [[nodiscard]] std::optional<Reader> open(std::span<const TokenId> tokens, std::string_view salt);

  // Forgets all points. Precondition (QUIRE_CHECK): none is read.
  void clear();
  // Returns kInternal when bytes, points and blocks disagree. For tests. Cost: O(points * blocks).
  [[nodiscard]] Status check() const;

 private:
  struct TokensLess {
    using is_transparent = void;
    [[nodiscard]] bool operator()(std::span<const TokenId> a, std::span<const TokenId> b) const {
      return std::ranges::lexicographical_compare(a, b);
    }
  };
  // A full block of a history; or the beginning of those of a salt, which has no bytes.
  struct Node {
    Node* parent = nullptr;
    std::vector<TokenId> tokens;
    device::HostBuffer bytes;
    std::map<std::vector<TokenId>, std::unique_ptr<Node>, TokensLess> children;
    std::vector<Point*> points;  // behind this block and fewer tokens than another one
    std::int32_t pins = 0;

    [[nodiscard]] std::size_t num_holders() const {
      return children.size() + points.size() + static_cast<std::size_t>(pins);
    }
  };
  struct Point {
    Node* node = nullptr;
    std::vector<TokenId> tail_tokens;
    device::HostBuffer tail;  // KV of a block that is not full
    device::HostBuffer state;
    std::int32_t num_tokens = 0;
    std::int32_t readers = 0;
    double worth_before = 0;  // worth of what had given way before its last use
    std::uint64_t last_use = 0;
  };
  // The bytes of a new point before anything is linked.
  struct Fresh {
    std::vector<device::HostBuffer> blocks;
    std::unique_ptr<Point> point;
  };

  [[nodiscard]] Node* walk(std::span<const TokenId> tokens, std::string_view salt,
                           std::size_t& depth) const;
  [[nodiscard]] Point* longest(std::span<const TokenId> tokens, std::string_view salt) const;
  [[nodiscard]] static Point* longest_at(const Node& node, std::span<const TokenId> rest);
  [[nodiscard]] bool read(std::span<const TokenId> tokens, std::size_t known, const Source& source,
                          Fresh& fresh) const;
  [[nodiscard]] bool read_into(device::HostBuffer& buffer, std::int64_t bytes,
                               const std::function<Status(std::span<std::byte>)>& read) const;
  [[nodiscard]] bool link(Node*& at, std::span<const TokenId> tokens, Fresh& fresh);
  [[nodiscard]] bool make_room(std::int64_t bytes);
  [[nodiscard]] double worth(const Point& point) const;
  [[nodiscard]] std::int64_t own_bytes(const Point& point) const;
  [[nodiscard]] static std::int32_t saves(const Point& point);
  void use(Point& point);
  void drop(Point& point);
  void prune(Node* node);

  const Sizes sizes_;
  const Allocate allocate_;
  std::map<std::string, std::unique_ptr<Node>, std::less<>> roots_;  // by salt
  std::vector<std::unique_ptr<Point>> points_;
  std::int64_t bytes_ = 0;
  std::uint64_t uses_ = 0;
  double worth_of_evicted_ = 0;
  std::int64_t num_kept_ = 0;
  std::int64_t num_evictions_ = 0;
};

}  // namespace quire::kv_store
