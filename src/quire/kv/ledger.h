// The ledger: which block holds which tokens, for whom, and what may be evicted. Host only; it
// knows numbers (blocks, tokens), never a tensor. The shelves (kv_store) hold the bytes.
//
// Thread rule: one thread (the engine's) owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::kv {

struct LedgerConfig {
  std::int32_t num_blocks = 0;
  std::int32_t block_tokens = 32;  // 1..256
  std::int32_t window_tokens = 0;  // > 0: blocks wholly older than this many tokens are freed
  bool prefix_cache = true;        // full blocks of closed and running sequences are found again
  [[nodiscard]] Status validate() const;
};

// Bytes that the shelves must copy before the next write: the first `tokens` slots of `from`.
struct BlockCopy {
  BlockId from;
  BlockId to;
  std::int32_t tokens = 0;
};

// A run of tokens at consecutive positions as attention sees it. `blocks[i]` holds run tokens
// [i * block_tokens, ...); freed window blocks have value -1. Valid until the sequence changes.
struct RunView {
  std::span<const BlockId> blocks;
  std::int32_t num_tokens = 0;      // with KV
  std::int32_t start_position = 0;  // use position of run token 0: the shift of the run
};

struct LedgerCounts {
  std::int32_t blocks_total = 0;
  std::int32_t blocks_free = 0;
  std::int32_t blocks_cached = 0;  // known to the prefix index and used by nobody: evictable
  std::int32_t blocks_in_use = 0;  // free + cached + in_use == total, always
  std::int64_t evictions = 0;
  std::int64_t tokens_reused = 0;  // tokens attached from the prefix index since birth
};

class Ledger {
 public:
  // Precondition: config.validate().ok().
  explicit Ledger(const LedgerConfig& config);
  ~Ledger();
  Ledger(Ledger&&) noexcept;
  Ledger& operator=(Ledger&&) noexcept;

  // Tokens of the longest cached prefix of `tokens`, at most tokens.size() - 1, without using it.
  [[nodiscard]] std::int32_t match(std::span<const TokenId> tokens) const;

  // A new sequence over `tokens`; with `reuse` its KV begins with the longest cached prefix (whole
  // blocks, token-exact, at most tokens.size() - 1 tokens, so that the last token is computed).
  // Allocates nothing.
  [[nodiscard]] SeqId open(std::span<const TokenId> tokens, bool reuse);

  // Another sequence with the same tokens and KV; shares every block, the open tail too.
  [[nodiscard]] SeqId fork(SeqId id);

  // Releases the sequence; its full blocks stay findable until evicted. Unknown ids are a no-op.
  void close(SeqId id);

  [[nodiscard]] bool contains(SeqId id) const;
  [[nodiscard]] std::span<const TokenId> tokens(SeqId id) const;  // all, computed or not
  [[nodiscard]] std::int32_t num_computed(SeqId id) const;        // tokens with KV: THE length
  [[nodiscard]] std::vector<RunView> runs(SeqId id) const;        // last one is the open run
  [[nodiscard]] std::int32_t num_blocks_held(SeqId id) const;

  // New blocks needed before KV of the next `count` tokens can be written (copy-on-write included).
  [[nodiscard]] std::int32_t blocks_needed(SeqId id, std::int32_t count) const;
  // Blocks that `extend` could obtain now: free plus evictable.
  [[nodiscard]] std::int32_t blocks_available() const;

  // Makes room for the KV of the next `count` tokens: allocates, evicts LRU cached blocks, copies a
  // shared open block on write. kOutOfBlocks with state unchanged when it cannot.
  [[nodiscard]] Status extend(SeqId id, std::int32_t count);
  // Copies ordered by `extend` since the last call; do them before writing KV.
  [[nodiscard]] std::vector<BlockCopy> take_copies();

  // KV of the next `count` tokens is now stored: length grows, full blocks become shareable, blocks
  // behind the window are freed. Precondition: room made by extend, tokens present.
  void advance(SeqId id, std::int32_t count);

  // Adds a token without KV (a sampled one).
  void append(SeqId id, TokenId token);

  // Cuts tokens and KV to `length` tokens; blocks return. kInvalidArgument outside [0, tokens], or
  // when the window has already freed what is needed.
  [[nodiscard]] Status rollback(SeqId id, std::int32_t length);

  // Drops all KV but keeps the tokens (preemption); what is cached may be found again by reattach.
  void drop_kv(SeqId id);
  // Attaches the longest cached prefix to a sequence without KV; returns its tokens.
  std::int32_t reattach(SeqId id);

  // Forgets every cached block that nobody uses; returns how many became free.
  std::int32_t clear_cache();

  [[nodiscard]] LedgerCounts counts() const;
  // kInternal naming the first broken invariant (README.md of this module); for tests.
  [[nodiscard]] Status check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire::kv
