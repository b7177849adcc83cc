// Sequence: cached tokens as a value that a program owns. A sequence grows, forks, rolls back and
// is edited.
// BlockList: a handle on cached tokens of any origin, to build on without computing them again.
// Guide: docs/direct-inference.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/export.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence_types.h"  // IWYU pragma: export
#include "quire/types.h"

namespace quire {

// Names ordered blocks of KV, and says how many tokens of them count.
//
// Ownership: a list holds no KV. The sequence, chunk or context that the blocks come from may
// change or go. A call that uses the list afterwards returns kInvalidComposition.
// Copies are cheap: they share their content. A moved-from list may only be destroyed or assigned
// to.
// Threads: any number of threads may read a list.
class QUIRE_API BlockList {
 public:
  // Makes a list of no blocks.
  BlockList();
  // Returns a list of the blocks of all `lists`, one list behind the other. O(blocks).
  // Joined tokens have not seen each other (see LLM::sequence).
  // Errors: kOutOfBlocks when the machine refuses memory.
  [[nodiscard]] static Result<BlockList> join(std::span<const BlockList> lists);
  // Returns a list of the first `tokens` tokens. O(blocks).
  // Errors: kInvalidArgument outside of [0, num_tokens()]; kOutOfBlocks when the machine refuses
  // memory.
  [[nodiscard]] Result<BlockList> first(std::int64_t tokens) const;

  // Returns the ids of the blocks, in order. O(blocks). Throws std::bad_alloc when the machine
  // refuses memory.
  // -1 stands for a block that a sliding window has freed. A sequence or chunk that first() has cut
  // in the middle keeps the ids of all its blocks.
  [[nodiscard]] std::vector<std::int32_t> block_ids() const;
  // Returns how many tokens count.
  [[nodiscard]] std::int64_t num_tokens() const;

  // For the library itself.
  struct Impl;
  explicit BlockList(std::shared_ptr<const Impl> impl);
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// A list of token ids with their KV. The KV of the last token is computed when something follows
// that token.
//
// Continuing equals never having stopped, bit for bit (see LLMOptions::deterministic). The sampler
// goes on where the last generate() or stream() ended, as long as nothing was appended since.
//
// Ownership: move only; fork() copies. The sequence owns its tokens, and keeps the blocks of its KV
// and of its marks in use. Destroying a sequence closes it. A moved-from one may only be closed,
// destroyed or assigned to. A sequence may outlive its LLM.
// Threads: one call at a time may change the sequence: append, generate, stream, rollback,
// rollback_to or replace. Another one of them meanwhile returns kInvalidArgument. stream() is under
// way until its request has ended. Other calls may come meanwhile, and see the sequence from before
// the change. Different sequences, forks of one another too, may be used from different threads.
// Moving or destroying a sequence must not happen beside other calls.
//
// Calls that return a Result or a Status throw nothing. Where such a call fails, the sequence stays
// what it was. Errors of all these calls:
// * kClosed: close() was called, the LLM has ended, or the process is a forked child.
// * kOutOfBlocks: the machine refuses memory.
//
// The comments below refer to LLM for "errors of a request" and for "waits for the running step".
class QUIRE_API Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  // Closes the sequence that is replaced.
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  // Returns ok while the sequence can be used. Does not wait.
  // Errors: kClosed after close(), after the LLM's end and in a forked child.
  [[nodiscard]] Status check_open() const;

  // The next four calls do not wait, and answer after the LLM's end, too. After close() and in a
  // forked child they answer as for an empty sequence of grade kExact.

  // Returns a copy of all tokens, generated ones included. O(tokens). Throws std::bad_alloc when
  // the machine refuses memory.
  [[nodiscard]] std::vector<TokenId> tokens() const;
  // Returns the number of tokens. O(1).
  [[nodiscard]] std::int64_t num_tokens() const;
  // Returns how many tokens before the last one have no KV, or no state behind them, yet. A
  // rollback owes what stands behind the restore point, or the window, that it goes back to. The
  // next call that needs it computes it: append(), generate(), stream(), logits(), replace(),
  // save(). O(1).
  [[nodiscard]] std::int64_t owed_tokens() const;
  // Returns how exact the sequence is. O(1).
  // * kExact: the sequence equals a plain prompt of its tokens.
  // * kApproximate: chunks or blocks stand in it that have not seen each other, or an edit was
  //   approximate.
  // * kEqualMath: KV was loaded that another kernel set has computed. Nothing better comes on a GPU
  //   without LLMOptions::deterministic.
  [[nodiscard]] ReuseGrade grade() const;

  // Puts tokens behind the last one. Blocks until the KV of all tokens but the new last one is
  // there; does nothing for no tokens.
  // Only session and salt of `options` count.
  // Errors: those of a request. kOverflow beyond the model's context. kInvalidArgument for another
  // salt than the sequence's.
  [[nodiscard]] Status append(std::span<const TokenId> tokens, const Interrupt& interrupted = {},
                              const RequestOptions& options = {});
  // Generates behind the last token and appends the ids of the output. Blocks until the last token,
  // and returns the output, which the caller owns.
  // A generation that LLM::abort has ended returns its output so far, with
  // FinishReason::kCancelled, and leaves the sequence as it was.
  // Errors: those of a request. kInvalidArgument for an empty sequence, and for another salt than
  // the sequence's.
  [[nodiscard]] Result<GenerationOutput> generate(const SamplingParams& params = {},
                                                  const Interrupt& interrupted = {},
                                                  const RequestOptions& options = {});
  // Starts to generate and returns the stream, which the caller owns. The errors are those of
  // generate(). Waits for the running step, also with options.notify.
  // The sequence has grown when the last delta comes. A stream that is closed before its end leaves
  // the sequence as it was. With options.notify, closing does not wait: the sequence may stay busy
  // until the running step ends.
  [[nodiscard]] Result<Stream> stream(const SamplingParams& params = {},
                                      const RequestOptions& options = {});
  // Returns the logits of the next token: fp32 [vocab_size]. The caller owns them.
  // Computes what is owed and the last token, and blocks until that is done. The sequence does not
  // change.
  // Errors: those of a request. kInvalidArgument for an empty sequence.
  [[nodiscard]] Result<std::vector<float>> logits(const Interrupt& interrupted = {});

  // Returns a second sequence with the same tokens, KV and marks, which the caller owns.
  // Computes and copies no KV, and does not wait. The time does not depend on the length: O(marks).
  // The two share all blocks. A partly filled block is copied when one of them writes behind it.
  [[nodiscard]] Result<Sequence> fork() const;
  // Returns a mark of the sequence as it is. The KV of that moment stays until the mark is
  // forgotten.
  // Does not wait. The time does not depend on the length.
  [[nodiscard]] Result<Mark> checkpoint();
  // Makes the sequence what it was at the mark, the sampler's state included. Forgets later marks;
  // `mark` itself stays.
  // Computes nothing and does not wait. The time does not depend on the length.
  // Errors: kInvalidArgument for a mark that this sequence does not have. A fork has the marks that
  // its origin had.
  [[nodiscard]] Status rollback(const Mark& mark);
  // Cuts the sequence to its first `length` tokens. Marks stay.
  // Waits for the running step. O(tokens).
  // Computes nothing. Where a sliding window has freed KV that is needed again, or layers carry a
  // state, it owes tokens (owed_tokens). Several rollbacks in a row cost what the last one owes.
  // Errors: kInvalidArgument outside of [0, num_tokens()], and where a window has freed KV of a
  // sequence behind chunks or joined blocks.
  [[nodiscard]] Status rollback_to(std::int64_t length);
  // Keeps what happened since the mark. Forgets the mark and those after it, and frees the KV that
  // only they held.
  // Does not wait. Errors: kInvalidArgument for a mark that this sequence does not have.
  [[nodiscard]] Status commit(const Mark& mark);
  // Forgets all marks, and frees the KV that only they held. Does not wait.
  [[nodiscard]] Status commit();

  // Puts `tokens` in the place of tokens [start, stop). No tokens: deletes. start == stop: inserts.
  // Marks stay. Blocks until the KV of all tokens but the last one is there.
  //
  // kExact computes the new tokens and all that stand behind them. The KV before them stays. A
  // sequence of grade kExact then equals a new sequence of the edited ids, bit for bit.
  // An edit in mode kExact within tokens of chunks, or of joined blocks, makes the sequence a new
  // one of the edited ids.
  // kApproximate computes the new tokens alone. KV behind them is copied, not computed, and its
  // keys are used where they now stand. The grade is kApproximate from then on. Where at most one
  // token stands behind the edit, kApproximate does what kExact does.
  //
  // Only session and salt of `options` count.
  // Errors: those of append(). kInvalidArgument unless 0 <= start <= stop <= num_tokens().
  // kIncompatible for kApproximate with a model whose layers carry a state.
  [[nodiscard]] Status replace(std::int64_t start, std::int64_t stop,
                               std::span<const TokenId> tokens, const Interrupt& interrupted = {},
                               EditMode mode = EditMode::kExact,
                               const RequestOptions& options = {});
  // Returns how the sequence differs from `other`, which may be of another LLM. Does not wait.
  // O(tokens), and sorts the ids of the blocks.
  // Errors: kClosed when either sequence is closed.
  [[nodiscard]] Result<SequenceDiff> diff(const Sequence& other) const;

  // Returns a handle on all tokens. Does not wait. O(blocks).
  // The handle is stale once the sequence changes or closes, unless a fork or a mark stays at this
  // moment.
  [[nodiscard]] Result<BlockList> blocks() const;

  // Writes tokens, KV and the sampler's state into one file, for LLM::load_sequence. "~" in front
  // of a path is the home folder.
  // The file is there whole or not at all, and private to the user. A file of that name is
  // replaced. Where a sliding window has freed KV, the file has the tokens alone.
  // Waits for the running step, and until KV that is still being loaded is there; then writes all
  // KV.
  // Errors: kIo. kCorrupt for KV that was loaded from a damaged file. kInvalidArgument for a path
  // that names no file.
  [[nodiscard]] Status save(const std::string& path) const;

  // Forgets the tokens and marks, and frees the KV that no other sequence holds, nor a mark of one.
  // Idempotent. Does not wait: an engine at work frees the blocks between two steps. Does nothing
  // in a forked child.
  void close();

  // For the library itself.
  struct Impl;
  explicit Sequence(std::shared_ptr<Impl> impl);
  [[nodiscard]] const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace quire
