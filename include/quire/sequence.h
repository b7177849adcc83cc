// Sequence: cached tokens as a value that a program owns: it grows, forks, rolls back, is edited.
// BlockList: a handle on cached tokens of any origin, to build on without computing them again.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/types.h"

namespace quire {

// Ordered blocks of KV and how many tokens of them count. It names them and holds none: where they
// come from may change or go, and using the handle afterwards is kInvalidComposition. Cheap to
// copy; any thread.
class QUIRE_API BlockList {
 public:
  BlockList();  // no blocks
  // One behind the other.
  [[nodiscard]] static BlockList join(std::span<const BlockList> lists);
  // The first `tokens` of them. kInvalidArgument outside [0, num_tokens()].
  [[nodiscard]] Result<BlockList> first(std::int64_t tokens) const;

  [[nodiscard]] std::vector<std::int32_t> block_ids() const;
  [[nodiscard]] std::int64_t num_tokens() const;

  struct Impl;
  explicit BlockList(std::shared_ptr<const Impl> impl);  // for the library itself
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// A moment of one sequence. Holds nothing.
struct Mark {
  std::uint64_t value = 0;        // counted by each LLM
  std::weak_ptr<const void> llm;  // that of the sequence
};

struct SequenceDiff {
  std::int64_t common_tokens = 0;    // from the first one on
  std::vector<TokenId> left, right;  // what follows in each
  std::int64_t shared_blocks = 0;    // blocks of KV that both hold
};

// What an edit does to the KV behind it.
enum class EditMode : std::uint8_t { kExact, kApproximate };

// Tokens with their KV; that of the last one is computed when something follows it. Operations that
// fail leave it as it was. Continuing equals never having stopped, bit for bit: the sampler goes on
// where the last `generate` ended, as long as nothing was appended since.
//
// Move only (fork() copies). One call at a time: another one meanwhile is kInvalidArgument, after
// close() or the LLM's end kClosed; different sequences may be used from different threads.
// fork(), checkpoint() and rollback to a mark take the same time whatever the length.
class QUIRE_API Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  // kClosed after close() or the LLM's end; until then the values below are there.
  [[nodiscard]] Status check_open() const;
  [[nodiscard]] std::vector<TokenId> tokens() const;  // all, generated ones too; O(tokens)
  [[nodiscard]] std::int64_t num_tokens() const;
  // kExact while it equals a plain prompt; kApproximate behind chunks that have not seen each
  // other.
  [[nodiscard]] ReuseGrade grade() const;

  [[nodiscard]] Status append(std::span<const TokenId> tokens, const Interrupt& interrupted = {},
                              const RequestOptions& options = {});
  [[nodiscard]] Result<GenerationOutput> generate(const SamplingParams& params = {},
                                                  const Interrupt& interrupted = {},
                                                  const RequestOptions& options = {});
  // The sequence has grown when the last delta comes; a stream that is closed before leaves it.
  [[nodiscard]] Result<Stream> stream(const SamplingParams& params = {},
                                      const RequestOptions& options = {});
  // fp32 [vocab_size] of the next token.
  [[nodiscard]] Result<std::vector<float>> logits(const Interrupt& interrupted = {});

  // Shares all KV; marks are copied too.
  [[nodiscard]] Result<Sequence> fork() const;
  [[nodiscard]] Result<Mark> checkpoint();
  // As at the mark, the state of the sampler included; later marks are forgotten.
  // kInvalidArgument for a mark that is not this sequence's.
  [[nodiscard]] Status rollback(const Mark& mark);
  // To the first `length` tokens; marks stay. kInvalidArgument outside [0, num_tokens()].
  [[nodiscard]] Status rollback_to(std::int64_t length);
  // Keeps what happened since: forgets the mark and those after it, and the KV that only they held.
  [[nodiscard]] Status commit(const Mark& mark);
  [[nodiscard]] Status commit();  // all marks

  // Tokens [start, stop) become `tokens` (none: deleted; start == stop: inserted). What stands
  // behind depends on them and is computed again; what stands before is not. Equals a new sequence
  // of the edited ids bit for bit; an edit within chunks makes it one.
  // kApproximate keeps the KV of what stands behind instead (copied, not computed; its keys are
  // used where they now stand): the sequence's grade says so from then on.
  [[nodiscard]] Status replace(std::int64_t start, std::int64_t stop,
                               std::span<const TokenId> tokens, const Interrupt& interrupted = {},
                               EditMode mode = EditMode::kExact,
                               const RequestOptions& options = {});
  [[nodiscard]] Result<SequenceDiff> diff(const Sequence& other) const;

  // All its tokens. Stale once the sequence changes, unless a fork or a mark stays there.
  [[nodiscard]] Result<BlockList> blocks() const;

  // One file, there whole or not at all, private to the user: tokens, KV and the sampler's state.
  // Of what a sliding window has freed the tokens alone. kIo.
  [[nodiscard]] Status save(const std::string& path) const;

  // Frees what no fork or mark of another sequence holds. Idempotent.
  void close();

  struct Impl;
  explicit Sequence(std::shared_ptr<Impl> impl);  // for the library itself
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace quire
