// ContextManager: what a conversation stands on, item by item. Texts are added once, switched on
// and off, moved between tiers, saved; turns and outputs become items of the same kind.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/chunks.h"
#include "quire/export.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "quire/sequence.h"
#include "quire/types.h"

namespace quire {

// Where an item's KV is. kNone: nowhere; it is computed when it is used.
enum class Tier : std::uint8_t { kDevice, kHost, kDisk, kNone };
[[nodiscard]] constexpr const char* tier_name(Tier tier) {
  constexpr const char* kNames[] = {"device", "host", "disk", "none"};
  return kNames[static_cast<std::uint8_t>(tier)];
}

enum class ItemKind : std::uint8_t { kSystem, kContext, kUser, kOutput };
[[nodiscard]] constexpr const char* item_kind_name(ItemKind kind) {
  constexpr const char* kNames[] = {"system", "context", "user", "output"};
  return kNames[static_cast<std::uint8_t>(kind)];
}

struct ContextOptions {
  // kAnchored: an item's KV is computed once, under the system item, and switching items computes
  // nothing; turns keep the KV with which they were generated. kExact: every answer equals that of
  // a plain prompt of the active items; what stands behind a switched item is computed again.
  ReuseMode mode = ReuseMode::kAnchored;
  std::string store = {};  // a directory (docs/store-format.md); empty: nothing can be saved
  std::string salt = {};   // tenant: contexts of two salts share no item, in the store neither, and
                           // no cached prefix. Empty: ChunkCacheOptions::salt, usually none
  bool fetch = true;       // using an item that was unloaded brings it back; false: kNotFound
  // Of KV in host memory; 0: no limit. What is beyond it goes on to the store, or without one
  // nowhere: then it is computed when it is used again.
  std::int64_t max_host_bytes = 0;
  // Of the store; 0: no limit. Saving evicts what was used least recently.
  std::int64_t max_store_bytes = 0;
  bool compress = false;  // what goes into the store: smaller, slower (docs/store-format.md)
  // Whatever is computed is saved at once, mode kAnchored; else when asked, or to make room. kIo
  // for a store that is read-only.
  bool write_through = false;
};

// What goes first where memory is short: of the inactive items those whose time is over, then the
// lowest priority, then the least recently used.
struct ItemRetention {
  bool pinned = false;  // never, not from the store either
  std::int32_t priority = 0;
  std::optional<double> ttl_seconds = {};  // since its last use. An inactive item then gives up its
                                           // KV in memory with the next use of the context, and the
                                           // store may forget it
  friend bool operator==(const ItemRetention&, const ItemRetention&) = default;
};

// What is said of it when an item is added. The rest stays as it is: as above of a new one.
struct ItemRetentionUpdate {
  std::optional<bool> pinned = {};
  std::optional<std::int32_t> priority = {};
  std::optional<double> ttl_seconds = {};
};

struct ItemOptions {
  std::string name = {};  // another handle; must be new
  std::vector<std::string> tags = {};
  ItemKind kind = ItemKind::kContext;  // or kSystem
  bool active = true;
  ItemRetentionUpdate retention = {};
};

struct ContextItem {
  std::string id;  // 64 hexadecimal digits
  std::string name;
  ItemKind kind = ItemKind::kContext;
  std::vector<std::string> tags;
  std::string text;  // as added; of ids and outputs the decoded text
  std::vector<TokenId> token_ids;
  bool active = false;
  Tier tier = Tier::kNone;
  bool saved = false;                // in the store, whatever the tier
  std::vector<std::string> parents;  // items that its KV has seen, in order
  std::string sampling_json;         // of an output: all that it was sampled with, and the seed
  std::int64_t memory_bytes = 0;     // of its KV in the pool or in host memory
  ItemRetention retention;
};

struct ContextStats {
  std::int64_t items = 0, active_items = 0, active_tokens = 0;
  std::int64_t device_items = 0, host_items = 0, disk_items = 0;
  std::int64_t device_bytes = 0, host_bytes = 0, saved_items = 0;
  std::int64_t tokens_computed = 0, tokens_reused = 0;  // by what this context has run
};

// Items are named by id, by the beginning of an id (at least 4 digits, unambiguous), or by name.
// Unknown ones are kNotFound. Move only; calls may come from any thread and wait for each other.
// Ends with its LLM: kClosed.
class QUIRE_API ContextManager {
 public:
  // kInvalidArgument for another mode, for a negative limit, and for write_through without a store
  // or in mode kExact; errors of the store's directory.
  [[nodiscard]] static Result<ContextManager> open(const LLM& llm,
                                                   const ContextOptions& options = {});
  ContextManager(ContextManager&&) noexcept;
  ContextManager& operator=(ContextManager&&) noexcept;
  ~ContextManager();

  // Text goes through the model's chunk format, ids are taken as they are. An item that is there
  // already is switched on, gets the new tags, and keeps its place. Computes the KV of an active
  // one, in mode kAnchored.
  [[nodiscard]] Result<std::string> add(const Prompt& content, const ItemOptions& options = {},
                                        const Interrupt& interrupted = {});
  // O(1), by the beginning of an id O(log items); computes and copies nothing. An inactive item has
  // no influence on what is asked next.
  [[nodiscard]] Status activate(const std::string& item);
  [[nodiscard]] Status deactivate(const std::string& item);
  [[nodiscard]] Status tag(const std::string& item, const std::string& tag);
  [[nodiscard]] Result<ContextItem> show(const std::string& item) const;
  // kClosed after the LLM's end; until then the values of items() and stats() are there.
  // kInvalidArgument from a Follow.
  [[nodiscard]] Status check_open() const;
  [[nodiscard]] std::vector<ContextItem> items() const;  // in the order in which they were added
  [[nodiscard]] ContextStats stats() const;
  // For each active item whether asking now would use its KV as it is (`hit`, from wherever it is),
  // and why not: not computed yet, or on disk where computing is faster, with both figures. Reads
  // no KV, changes nothing; KV that turns out to be damaged is computed.
  [[nodiscard]] Result<std::vector<ReusePart>> explain() const;

  // Active turns, or all active items, in order: handles that go stale with the next change.
  [[nodiscard]] Result<BlockList> conversation_blocks(const Interrupt& interrupted = {});
  [[nodiscard]] Result<BlockList> active_blocks(const Interrupt& interrupted = {});

  // Answers behind all active items. Text becomes a user turn of the model's chat template;
  // without text the assistant just goes on. Turn and output become active items; the output's KV
  // is the one with which it was generated. What stands behind no active item begins with BOS, if
  // the model's prompts do.
  struct Answer {
    GenerationOutput output;
    std::string user_id;  // "" without text
    std::string output_id;
  };
  // An answer while it is generated. Both are called from the calling thread and must not call the
  // context, which is kInvalidArgument; items() and stats() answer still, clear() does nothing.
  struct Follow {
    // Each piece of text as it comes; joined they are the text of the output. An error ends the
    // call: nothing has changed then.
    std::function<Status(std::string_view)> on_text;
    // Says true when there is enough: the answer ends there, kCancelled, and what there is of it
    // becomes the output. Before its first token there is nothing to keep: the call is kCancelled.
    Interrupt stop;
  };
  [[nodiscard]] Result<Answer> infer(const std::optional<std::string>& text,
                                     const SamplingParams& params = {},
                                     const Interrupt& interrupted = {}, const Follow& follow = {},
                                     const RequestOptions& options = {});

  // A new item of the texts of several, in this order, which have then seen each other; they are
  // switched off.
  [[nodiscard]] Result<std::string> compose(std::span<const std::string> items,
                                            const std::string& name = "",
                                            const Interrupt& interrupted = {});
  // Computes or fetches the KV of all active items; returns the tokens computed.
  [[nodiscard]] Result<std::int64_t> populate(const Interrupt& interrupted = {});

  // To host memory; the blocks are free when it returns. With `drop` nowhere: it is read from the
  // store or computed when it is used again. kInvalidArgument in mode kExact, where an item has no
  // KV of its own.
  [[nodiscard]] Status unload(const std::string& item, bool drop = false);
  // Holds from now on. kInvalidArgument for a time that is negative or not finite.
  [[nodiscard]] Status set_retention(const std::string& item, const ItemRetention& retention);
  // Into the store, whatever the tier; the item stays where it is. kInvalidArgument without one.
  [[nodiscard]] Status save(const std::string& item, const Interrupt& interrupted = {});
  // Back to the device, with the bits that it had: from host memory, from the store (also items of
  // earlier processes), or computed: damaged KV is a miss. kIncompatible for one of another
  // model or KV format.
  [[nodiscard]] Status restore(const std::string& item, const Interrupt& interrupted = {});
  // Forgets it everywhere, in the store too. `wipe`: its bytes there become zeros first, and
  // nothing of it is left in the folder; kIo where it is, as others read: call again.
  [[nodiscard]] Status erase(const std::string& item, bool wipe = false);
  // Forgets all items; what was saved stays saved. Returns how many.
  [[nodiscard]] std::int64_t clear();

  struct Impl;

 private:
  explicit ContextManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
