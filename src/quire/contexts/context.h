// Context: the items that a conversation stands on (quire/context.h), on top of sequences, tiers
// and the store.
//
// In mode kAnchored an item is a held segment of its own, computed behind its parents. A request is
// composed of the segments of the active items. In mode kExact items are ids alone, and one
// sequence, the tip, follows the active ones. It is cut where they differ and goes on from there.
//
// Thread rule: one thread at a time, not the engine's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/context_types.h"
#include "quire/contexts/item_list.h"
#include "quire/contexts/turn_format.h"
#include "quire/engine/active_request.h"
#include "quire/engine/channel.h"
#include "quire/interrupt.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_uses.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/sequence_service.h"
#include "quire/tiers/background_loads.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::runtime {
class Runtime;
}  // namespace quire::runtime

namespace quire::contexts {

// Returns the items' ids, in their order.
[[nodiscard]] std::vector<std::string> ids_of(std::span<Item* const> items);
[[nodiscard]] std::vector<TokenId> tokens_of(std::span<Item* const> items);
// Decodes tokens for people. Returns "" for models without tokenizer.
[[nodiscard]] std::string decode(const runtime::Runtime& runtime, std::span<const TokenId> tokens);

[[nodiscard]] ItemRetention updated(ItemRetention retention, const ItemRetentionUpdate& update);
// Returns kInvalidArgument for a time that is none.
[[nodiscard]] Status check(const ItemRetention& retention);

class Context {
 public:
  // Opens a context. Its engine is borrowed for the time of a call: see attach.
  [[nodiscard]] static Result<std::unique_ptr<Context>> open(
      const std::shared_ptr<runtime::Runtime>& runtime, const ContextOptions& options);

  [[nodiscard]] Result<std::string> add(const Prompt& content, const ItemOptions& options,
                                        const Interrupt& interrupted);
  [[nodiscard]] Status set_active(const std::string& item, bool active);
  [[nodiscard]] Status tag(const std::string& item, const std::string& tag);
  [[nodiscard]] Result<ContextItem> show(const std::string& item) const;
  [[nodiscard]] std::vector<ContextItem> items() const;
  [[nodiscard]] ContextStats stats() const;
  [[nodiscard]] Result<std::vector<ReusePart>> explain() const;

  [[nodiscard]] Result<std::vector<sequences::BlockRun>> runs(bool conversation_only,
                                                              const Interrupt& interrupted);
  // Expires with the next change of the items.
  [[nodiscard]] std::weak_ptr<const void> epoch();
  [[nodiscard]] Result<ContextAnswer> infer(const std::optional<std::string>& text,
                                            const SamplingParams& params,
                                            const Interrupt& interrupted,
                                            const ContextFollow& follow,
                                            const RequestOptions& options);
  [[nodiscard]] Result<std::string> compose(std::span<const std::string> items,
                                            const std::string& name, const Interrupt& interrupted);
  [[nodiscard]] Result<std::int64_t> populate(const Interrupt& interrupted);

  [[nodiscard]] Status unload(const std::string& item, bool drop);
  [[nodiscard]] Status set_retention(const std::string& item, const ItemRetention& retention);
  [[nodiscard]] Status save(const std::string& item, const Interrupt& interrupted);
  [[nodiscard]] Status restore(const std::string& item, const Interrupt& interrupted);
  [[nodiscard]] Status erase(const std::string& item, bool wipe);
  // Forgets all items and returns how many there were. Needs no memory.
  [[nodiscard]] std::int64_t clear();

 private:
  class Foresight;
  Context(const std::shared_ptr<runtime::Runtime>& runtime, const ContextOptions& options);

  [[nodiscard]] Result<std::shared_ptr<runtime::Runtime>> runtime() const;
  [[nodiscard]] std::vector<Item*> active_items(bool conversation_only) const;
  [[nodiscard]] Status renew(Item& known, const ItemOptions& options);
  [[nodiscard]] Status check_name(const std::string& name) const;
  [[nodiscard]] Status check_separate(const Item& item, std::string_view verb) const;
  [[nodiscard]] Result<std::vector<TokenId>> encode(runtime::Runtime& runtime,
                                                    const Prompt& content, ItemKind kind) const;
  [[nodiscard]] std::string new_id(runtime::Runtime& runtime, const ContextItem& info,
                                   bool unique) const;
  void changed() { epoch_ = nullptr; }
  void touch(Item& item);

  // Makes sure that an item has its KV, in mode kAnchored. The next functions get it.
  [[nodiscard]] Status ensure(runtime::Runtime& runtime, Item& item, const Interrupt& interrupted);
  [[nodiscard]] Status fetch_or_compute(runtime::Runtime& runtime, Item& item,
                                        const Interrupt& interrupted);
  [[nodiscard]] Status compute(runtime::Runtime& runtime, Item& item, const Interrupt& interrupted);
  // Returns what the item has seen. kNotFound where a part of it was erased.
  [[nodiscard]] Result<std::vector<Item*>> parents_of(const Item& item) const;
  [[nodiscard]] Result<std::vector<sequences::BlockRun>> runs_of(runtime::Runtime& runtime,
                                                                 std::span<Item* const> items,
                                                                 const Interrupt& interrupted);
  // Returns whether computing the KV of a saved item is possible, and faster than reading it.
  [[nodiscard]] bool computes(runtime::Runtime& runtime, const Item& item) const;
  // Returns whether the KV of all that the item has seen is there.
  [[nodiscard]] bool computable(const Item& item) const;

  // Runs `work`. While blocks are short, inactive items leave. context_tiers.cc has this and the
  // next functions.
  [[nodiscard]] Status with_room(runtime::Runtime& runtime, const std::function<Status()>& work);
  [[nodiscard]] Result<bool> make_room(runtime::Runtime& runtime);
  // Returns the item that goes first, of those that `may_go`, or nullptr.
  [[nodiscard]] Item* first_to_go(const std::function<bool(const Item&)>& may_go) const;
  [[nodiscard]] Status move_to_host(runtime::Runtime& runtime, Item& item);
  [[nodiscard]] Status shrink_host(runtime::Runtime& runtime);
  [[nodiscard]] Status leave_host(runtime::Runtime& runtime, Item& item);
  // Drops KV in memory of inactive items whose time is over.
  void expire();

  // Asking.
  struct Turn {
    std::string text;  // text of the question
    std::vector<TokenId> user, opening;
  };
  // Says how the question is asked, and how far the answer is. If room has to be made in its midst,
  // the answer is generated again with the same seed. It is then the same, and no text is handed
  // out twice.
  struct Asking {
    SamplingParams params;
    const Interrupt& interrupted;
    const ContextFollow& follow;
    RequestOptions options;
    engine::Clock::time_point submitted = engine::Clock::now();
    std::size_t handed_out = 0;  // bytes of text
    bool stopped = false;
  };
  [[nodiscard]] Result<Turn> make_turn(runtime::Runtime& runtime,
                                       const std::optional<std::string>& text) const;
  [[nodiscard]] Item make_item(runtime::Runtime& runtime, ItemKind kind,
                               std::vector<TokenId> tokens, std::span<Item* const> before) const;
  struct Generated {
    GenerationOutput output;
    sequences::StateRef state;  // state behind the output
  };
  [[nodiscard]] static Result<Generated> generate(runtime::Runtime& runtime,
                                                  const sequences::StateRef& state,
                                                  std::int64_t cached, Asking& asking);
  [[nodiscard]] static Status attend(runtime::Runtime& runtime, engine::Channel& channel,
                                     Asking& asking);
  [[nodiscard]] Result<ContextAnswer> keep_turn(std::optional<Item> user, Item output,
                                                Generated generated);
  [[nodiscard]] Result<Item> prefill_turn(runtime::Runtime& runtime, const Turn& turn,
                                          std::span<Item* const> before,
                                          std::span<const sequences::BlockRun> runs,
                                          const Asking& asking);
  // Makes the last token of the runs the turn's opening, which has none yet, where layers carry a
  // state: no token is run twice there. Returns the KV of the last item without that token.
  [[nodiscard]] Result<tiers::HeldRef> split_last(runtime::Runtime& runtime, const Item& last,
                                                  Turn& turn,
                                                  std::vector<sequences::BlockRun>& runs,
                                                  const Interrupt& interrupted);
  // Holds the KV of an answer, which stands behind the items.
  [[nodiscard]] Result<tiers::HeldRef> hold_answer(runtime::Runtime& runtime,
                                                   const sequences::StateRef& state,
                                                   std::span<const sequences::BlockRun> items,
                                                   std::int64_t opening, const Asking& asking);
  [[nodiscard]] Result<ContextAnswer> read_and_infer(runtime::Runtime& runtime, const Turn& turn,
                                                     const Asking& asking);
  [[nodiscard]] Result<ContextAnswer> infer_anchored(runtime::Runtime& runtime, Turn turn,
                                                     Asking asking);
  [[nodiscard]] Result<ContextAnswer> infer_exact(runtime::Runtime& runtime, const Turn& turn,
                                                  Asking asking);
  // Returns the sequence of `tokens`, beginning from what `known` has of them.
  [[nodiscard]] Result<sequences::StateRef> follow(runtime::Runtime& runtime,
                                                   const sequences::StateRef& known,
                                                   std::span<const TokenId> tokens,
                                                   const Interrupt& interrupted,
                                                   const RequestOptions& options);

  // Tells whether an item can be read from the store. Opens its file, since another process may
  // have erased what this one has saved.
  [[nodiscard]] bool is_saved(const Item& item) const;
  // Writes an item to the store from where its KV is, device or host memory.
  [[nodiscard]] Status write(runtime::Runtime& runtime, Item& item);
  [[nodiscard]] Status write_once(runtime::Runtime& runtime, Item& item);
  [[nodiscard]] Status write_through(runtime::Runtime& runtime, Item& item);
  [[nodiscard]] Status save_retention(const std::string& id, const ItemRetention& retention);
  [[nodiscard]] Result<kv_store::Store*> need_store() const;
  // Opens the saved KV of an item. kNotFound, kCorrupt and kIncompatible are misses to the caller.
  [[nodiscard]] Result<kv_store::KVFile> open_kv(const Item& item) const;
  // KV of saved items that is read while its first layers are used already.
  struct Arriving {
    std::vector<Item*> items;
    std::vector<tiers::BackgroundLoads::LoadRef> loads;
  };
  [[nodiscard]] Arriving begin_reading(runtime::Runtime& runtime, std::span<Item* const> items);
  // Blocks until all is read. Returns whether all was right; damaged KV is a miss from now on.
  // kCancelled: it is read again when it is needed.
  [[nodiscard]] static Result<bool> end_reading(const Arriving& arriving,
                                                const Interrupt& interrupted);
  [[nodiscard]] Result<Item*> add_saved(runtime::Runtime& runtime, const std::string& name);

  // Returns the options of the context's requests, which have its salt.
  [[nodiscard]] RequestOptions whose(const std::string& session = {}) const {
    return {.session = session, .salt = options_.salt};
  }

  const std::weak_ptr<runtime::Runtime> runtime_;
  const ContextOptions options_;  // the salt is the engine's if none was asked for
  const TurnFormat turns_;
  std::unique_ptr<kv_store::Store> store_;  // null without one
  std::unique_ptr<kv_store::StoreUses>
      uses_;  // last uses of items in the same store; null without one
  ItemList items_;
  sequences::StateRef tip_, conversation_tip_;  // mode kExact
  std::shared_ptr<const void> epoch_;           // null: nobody has asked for it yet
  std::uint64_t last_use_ = 0;
  // The last use before the outermost `with_room` that is at work.
  static constexpr std::uint64_t kNoWork = ~std::uint64_t{0};
  std::uint64_t work_began_ = kNoWork;
  std::int64_t tokens_computed_ = 0, tokens_reused_ = 0;
  std::int64_t followed_tokens_ = 0;  // tokens that follow() had to compute
};

}  // namespace quire::contexts
