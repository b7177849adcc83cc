// Conversations as values: items, their options and descriptions, answers. ContextManager of
// context.h works on them. Plain data. Guide: docs/direct-inference.md, Context manager.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/chunk_types.h"
#include "quire/interrupt.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

// Says where the KV of an item is. kNone: nowhere; the next use computes it.
enum class Tier : std::uint8_t { kDevice, kHost, kDisk, kNone };
// Returns "device", "host", "disk" or "none". Static memory.
[[nodiscard]] constexpr const char* tier_name(Tier tier) {
  constexpr const char* kNames[] = {"device", "host", "disk", "none"};
  return kNames[static_cast<std::uint8_t>(tier)];
}

// Says what an item is. Callers add kSystem and kContext; asking makes kUser and kOutput, the
// turns.
enum class ItemKind : std::uint8_t { kSystem, kContext, kUser, kOutput };
// Returns "system", "context", "user" or "output". Static memory.
[[nodiscard]] constexpr const char* item_kind_name(ItemKind kind) {
  constexpr const char* kNames[] = {"system", "context", "user", "output"};
  return kNames[static_cast<std::uint8_t>(kind)];
}

// Options of ContextManager::open. Plain data; the context keeps a copy.
struct ContextOptions {
  // kAnchored: an item's KV is computed once, under the system item, and switching items computes
  // nothing. Turns keep the KV with which they were generated.
  // kExact: every answer equals that of a plain prompt of the active items. KV that stands behind a
  // switched item is computed again.
  ReuseMode mode = ReuseMode::kAnchored;
  // Directory of the store (docs/store-format.md). Empty: nothing can be saved.
  std::string store = {};
  // Salt of a tenant, at most 1,024 bytes. Contexts of two salts share no item, in the store
  // neither, and no cached prefix. Empty: ChunkCacheOptions::salt, usually none.
  std::string salt = {};
  // True: using an item that was unloaded brings it back. False: the use is kNotFound.
  bool fetch = true;
  // Most bytes of KV in host memory; 0: no limit. KV beyond it goes on to the store. Without a
  // store it goes nowhere, and the next use computes it. Pinned items stay.
  std::int64_t max_host_bytes = 0;
  // Most bytes of the store; 0: no limit. Beyond it saving evicts the least recently used entries,
  // by the rule for several tenants of StoreOptions::max_bytes.
  std::int64_t max_store_bytes = 0;
  // Compression of KV in the store, which is then smaller and slower (docs/store-format.md).
  Compression compress = {};
  // True: whatever is computed is saved at once. Needs a store that can be written, and kAnchored.
  // False: an item is saved when save() is called, or to make room.
  bool write_through = false;
};

// Says how long an item stays. KV of inactive items leaves when memory is short. Items whose time
// is over go first, then the lowest priority, then the least recently used.
struct ItemRetention {
  // True: the item never leaves to make room, the store neither.
  bool pinned = false;
  std::int32_t priority = 0;
  // Seconds since the last use, 0 or more. Not given: no limit.
  // After them an inactive item gives up its KV in memory with the next use of the context, and the
  // store may forget it.
  std::optional<double> ttl_seconds = {};
  friend bool operator==(const ItemRetention&, const ItemRetention&) = default;
};

// Retention that adding an item sets. A field that is not given stays as it is; for a new item it
// has the default of ItemRetention.
struct ItemRetentionUpdate {
  std::optional<bool> pinned = {};
  std::optional<std::int32_t> priority = {};
  std::optional<double> ttl_seconds = {};
};

// Options of ContextManager::add. Plain data.
struct ItemOptions {
  // Another handle on the item: one line of at most 1,024 bytes that no item has as its name yet.
  std::string name = {};
  // Words, none of them empty.
  std::vector<std::string> tags = {};
  // kContext or kSystem.
  ItemKind kind = ItemKind::kContext;
  bool active = true;
  ItemRetentionUpdate retention = {};
};

// Describes an item at the moment of the call. Plain data that the caller owns.
struct ContextItem {
  // 64 hexadecimal digits.
  std::string id;
  std::string name;
  ItemKind kind = ItemKind::kContext;
  std::vector<std::string> tags;
  // The text as added. For token ids and outputs: their decoded text.
  std::string text;
  std::vector<TokenId> token_ids;
  bool active = false;
  Tier tier = Tier::kNone;
  // True when the item is in the store, whatever the tier.
  bool saved = false;
  // Ids of the items that the KV has seen, in order.
  std::vector<std::string> parents;
  // For an output: a JSON object with all parameters of its sampling, and the seed. "" otherwise.
  std::string sampling_json;
  // Bytes of the item's KV in the pool of blocks or in host memory.
  std::int64_t memory_bytes = 0;
  ItemRetention retention;
};

// Counts the items of a context, by state and tier.
struct ContextStats {
  std::int64_t items = 0, active_items = 0, active_tokens = 0;
  std::int64_t device_items = 0, host_items = 0, disk_items = 0;
  std::int64_t device_bytes = 0, host_bytes = 0, saved_items = 0;
  // Tokens of all that this context has run.
  std::int64_t tokens_computed = 0, tokens_reused = 0;
};

// An output with the ids of the items that asking has made.
struct ContextAnswer {
  GenerationOutput output;
  // "" when no text was asked.
  std::string user_id;
  std::string output_id;
};

// Functions that follow an answer while it is generated. ContextManager::infer
// calls both in its own thread.
// They must not call the context: that is kInvalidArgument. items() and stats() answer all the
// same, and clear() does nothing.
struct ContextFollow {
  // Takes each piece of text as it comes. All pieces, joined, are the text of the output.
  // An error ends the call, which returns it: no item has been added then.
  std::function<Status(std::string_view)> on_text;
  // Returns true when there is enough. The answer ends there, with FinishReason::kCancelled, and
  // its tokens so far become the output.
  // Before the first token there is nothing to keep: the call returns kCancelled.
  Interrupt stop;
};

}  // namespace quire
