// ContextManager: a conversation as a list of items. Texts are added once, switched on and off,
// moved between tiers, saved. Turns and outputs become items, too.
// Guide: docs/direct-inference.md, Context manager.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/chunks.h"
#include "quire/context_types.h"  // IWYU pragma: export
#include "quire/export.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {

// The items of a conversation, in the order in which they were added, and their KV.
//
// Ownership: move only. A moved-from context may only be destroyed or assigned to. The context ends
// with its LLM: calls return kClosed then.
// Threads: any number of threads may call. Calls wait for each other, so a call blocks while
// another one answers. Only moving and destroying need the object for themselves.
//
// Items. Calls take an item's id, the beginning of one (at least 4 digits, unambiguous), or its
// name. A call returns kNotFound for an unknown item.
//
// Errors of every call that returns a Result or a Status:
// * kClosed: the LLM has ended, or the process is a forked child.
// * kInvalidArgument: the call comes from a Follow.
// * kOutOfBlocks: the machine refuses memory.
//
// Computing. Calls that compute or fetch KV block until it is there. While blocks are short, they
// move inactive items to host memory. These calls return the following errors, too:
// * kOutOfBlocks: the KV does not fit now. kOverflow: it can never fit.
// * kNotFound: an item was unloaded, and ContextOptions::fetch is false. Or an item that the KV has
//   seen was erased, so that the KV cannot be computed again.
// * kIncompatible: the store has the item's KV for another model or in another format.
// * kCancelled: `interrupted` returned true.
// * kIo: ContextOptions::write_through is set, and the store cannot be written.
class QUIRE_API ContextManager {
 public:
  // Opens a context without items on an open LLM.
  // Errors: kInvalidArgument for another mode than kAnchored and kExact, a negative limit or a salt
  // that is too long. kInvalidArgument for write_through without a store or in mode kExact.
  // Errors of opening the store (Store::open); kIo for write_through and a store that is read-only.
  [[nodiscard]] static Result<ContextManager> open(const LLM& llm,
                                                   const ContextOptions& options = {});
  ContextManager(ContextManager&&) noexcept;
  ContextManager& operator=(ContextManager&&) noexcept;
  ~ContextManager();

  // Adds an item and returns its id. A text goes through the model's chunk format; token ids are
  // taken as they are.
  // An equal item that is there keeps its place. It gets the new tags, the new name and the given
  // retention, and is switched on unless options.active is false.
  // Computes the KV of a new active item in mode kAnchored, and blocks until it is there.
  // Errors: those of computing. kInvalidArgument for options out of range, an empty text, or ids
  // outside of the vocabulary. kUnsupported for a text where the model has no chunk format.
  [[nodiscard]] Result<std::string> add(const Prompt& content, const ItemOptions& options = {},
                                        const Interrupt& interrupted = {});
  // Switches an item on. Computes and copies nothing. O(1); by the beginning of an id O(log items).
  [[nodiscard]] Status activate(const std::string& item);
  // Switches an item off, at the cost of activate(). An inactive item has no influence on what is
  // asked next.
  [[nodiscard]] Status deactivate(const std::string& item);
  // Adds a tag to an item, which may have it already.
  // Errors: kInvalidArgument for an empty tag.
  [[nodiscard]] Status tag(const std::string& item, const std::string& tag);
  // Returns a description of the item. Costs as much as items().
  [[nodiscard]] Result<ContextItem> show(const std::string& item) const;
  // Returns kClosed after the LLM's end, and kInvalidArgument from a Follow.
  [[nodiscard]] Status check_open() const;
  // Returns descriptions of all items in the order in which they were added. Answers after the
  // LLM's end and from a Follow, too. O(text and tokens of all items).
  [[nodiscard]] Result<std::vector<ContextItem>> items() const;
  // Returns the counts of the context, on the terms of items(). Costs as much as items().
  [[nodiscard]] Result<ContextStats> stats() const;
  // Returns for each active item whether asking now would use its KV as it is (`hit`, from wherever
  // it is), and why not. Causes are: not computed yet, or on disk where computing is faster, with
  // both figures.
  // Reads no KV and changes nothing. KV that turns out to be damaged is computed by whoever asks.
  // Waits for the running step in mode kExact.
  [[nodiscard]] Result<std::vector<ReusePart>> explain() const;

  // Returns a handle on the KV of all active turns, in order. Computes or fetches KV that is
  // missing. The handle holds no block and goes stale with the next change of the items.
  [[nodiscard]] Result<BlockList> conversation_blocks(const Interrupt& interrupted = {});
  // Returns a handle on the KV of all active items, on the terms of conversation_blocks().
  [[nodiscard]] Result<BlockList> active_blocks(const Interrupt& interrupted = {});

  // Name the output of infer(), and the functions that follow it (context_types.h).
  using Answer = ContextAnswer;
  using Follow = ContextFollow;
  // Generates an answer behind all active items, and blocks until its end. Turn and output become
  // active items. The output keeps the KV with which it was generated.
  // A text becomes a user turn of the model's chat template. Without text the assistant goes on.
  // Tokens that stand behind no active item begin with BOS, if the model's prompts do.
  // Session, salt, priority, deadline and tenant of `options` count.
  // Errors: those of computing and of a request (see LLM, Requests). kOverflow when the items leave
  // no room in the model's context. kUnsupported for a text where the model has no chunk format.
  // kInvalidArgument for an empty text, and for another salt than the context's. A call that fails
  // adds no item.
  [[nodiscard]] Result<Answer> infer(const std::optional<std::string>& text,
                                     const SamplingParams& params = {},
                                     const Interrupt& interrupted = {}, const Follow& follow = {},
                                     const RequestOptions& options = {});

  // Adds an item that joins the tokens of several, in this order, and returns its id. In the new
  // item they have seen each other. Switches the several off.
  // Blocks until the KV is there, in mode kAnchored.
  // Errors: those of add(). kInvalidArgument for an empty list.
  [[nodiscard]] Result<std::string> compose(std::span<const std::string> items,
                                            const std::string& name = "",
                                            const Interrupt& interrupted = {});
  // Computes or fetches the KV of all active items, and blocks until it is there. Returns how many
  // tokens were computed for this context. Tokens of other callers do not count.
  [[nodiscard]] Result<std::int64_t> populate(const Interrupt& interrupted = {});

  // Moves an item's KV to host memory and gives its blocks back. LLM::stats counts them as free
  // when the call has returned.
  // With `drop` the KV goes nowhere: the next use reads it from the store or computes it.
  // Errors: kInvalidArgument in mode kExact, where an item has no KV of its own. An error of the
  // store where max_host_bytes lets KV go on to it; the item is unloaded all the same.
  [[nodiscard]] Status unload(const std::string& item, bool drop = false);
  // Replaces the retention of an item, from now on. The store learns pin and TTL of a saved item;
  // priorities count in this context alone.
  // Errors: kInvalidArgument for a time that is negative or not finite. kIo for a saved item where
  // the store is read-only: the retention stays as it was.
  [[nodiscard]] Status set_retention(const std::string& item, const ItemRetention& retention);
  // Writes an item into the store, whatever its tier; the item stays where it is. Computes KV that
  // is nowhere first. Blocks until the item is on the disk.
  // Errors: those of computing. kInvalidArgument without a store and in mode kExact. kIo.
  [[nodiscard]] Status save(const std::string& item, const Interrupt& interrupted = {});
  // Brings an item's KV back to the device, with the bits that it had, and blocks until it is
  // there. The KV comes from host memory or from the store, or is computed. Damaged KV is a miss.
  // Items that an earlier process has saved come back, too, by id or name.
  // Errors: those of computing. kIncompatible for an item of another model or KV format.
  // kInvalidArgument in mode kExact.
  [[nodiscard]] Status restore(const std::string& item, const Interrupt& interrupted = {});
  // Forgets an item everywhere, in the store, too.
  // With `wipe` its bytes in the store become zeros first, and nothing of it is left in the folder.
  // Errors: kIo where the store cannot be written. kIo for a wipe while others read the store: some
  // bytes are left, and the item stays in the context; call again.
  [[nodiscard]] Status erase(const std::string& item, bool wipe = false);
  // Forgets all items and returns how many there were. Saved items stay in the store. Does nothing
  // from a Follow and in a forked child.
  [[nodiscard]] std::int64_t clear();

  // For the library itself.
  struct Impl;

 private:
  explicit ContextManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
