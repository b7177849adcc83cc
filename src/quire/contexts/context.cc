#include "quire/contexts/context.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "quire/base/sha256.h"
#include "quire/base/str.h"
#include "quire/chunk_types.h"
#include "quire/chunks/chunk_service.h"
#include "quire/context_types.h"
#include "quire/contexts/item_list.h"
#include "quire/contexts/turn_format.h"
#include "quire/engine/session_service.h"
#include "quire/interrupt.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_uses.h"
#include "quire/options.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/runtime/runtime.h"
#include "quire/sequences/block_run.h"
#include "quire/sequences/block_runs.h"
#include "quire/sequences/sequence_service.h"
#include "quire/sequences/sequence_state.h"
#include "quire/text/tokenizer.h"
#include "quire/tiers/tier_service.h"
#include "quire/types.h"

namespace quire::contexts {
namespace {

bool is_turn(const Item& item) {
  return item.info.kind == ItemKind::kUser || item.info.kind == ItemKind::kOutput;
}

Status check_tags(std::span<const std::string> tags) {
  return std::ranges::find(tags, "") == tags.end()
             ? Status()
             : Status(ErrorCode::kInvalidArgument, "a tag is a word; give one");
}

void add_tag(Item& item, const std::string& tag) {
  if (std::ranges::find(item.info.tags, tag) == item.info.tags.end()) {
    item.info.tags.push_back(tag);
  }
}

}  // namespace

std::vector<std::string> ids_of(std::span<Item* const> items) {
  std::vector<std::string> ids;
  ids.reserve(items.size());
  for (const Item* item : items) {
    ids.push_back(item->info.id);
  }
  return ids;
}

std::vector<TokenId> tokens_of(std::span<Item* const> items) {
  std::vector<TokenId> tokens;
  for (const Item* item : items) {
    tokens.insert(tokens.end(), item->info.token_ids.begin(), item->info.token_ids.end());
  }
  return tokens;
}

std::string decode(const runtime::Runtime& runtime, std::span<const TokenId> tokens) {
  if (runtime.engine().text() == nullptr) {
    return "";
  }
  const auto text = runtime.engine().text()->tokenizer.decode(tokens, true);
  return text.ok() ? *text : "";
}

Context::Context(const std::shared_ptr<runtime::Runtime>& runtime, const ContextOptions& options)
    : runtime_(runtime),
      options_(options),
      turns_(runtime->engine().text() == nullptr ? TurnFormat()
                                                 : make_turn_format(*runtime->engine().text())) {}

namespace {

Status check(const ContextOptions& options) {
  if (options.mode != ReuseMode::kAnchored && options.mode != ReuseMode::kExact) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a context's mode is 'anchored' or 'exact', not '",
                          reuse_mode_name(options.mode), "'")};
  }
  if (options.max_host_bytes < 0 || options.max_store_bytes < 0) {
    return {ErrorCode::kInvalidArgument,
            "max_host_bytes and max_store_bytes are bytes, and 0 for no limit"};
  }
  if (options.write_through && (options.store.empty() || options.mode == ReuseMode::kExact)) {
    return {ErrorCode::kInvalidArgument, "write_through needs a store, and mode 'anchored'"};
  }
  return engine::SessionService::check_salt("salt", options.salt);
}

// Opens the store. One that cannot be written is read, unless everything is to be saved.
Result<kv_store::Store> open_store(const ContextOptions& options) {
  auto store = kv_store::Store::open(options.store, {.max_bytes = options.max_store_bytes,
                                                     .write = {.compress = options.compress}});
  if (!store.ok()) {
    return tiers::missing_file(std::move(store).error());
  }
  if (options.write_through) {
    QUIRE_TRY_STATUS(store->check_writable());
  }
  return store;
}

}  // namespace

Result<std::unique_ptr<Context>> Context::open(const std::shared_ptr<runtime::Runtime>& runtime,
                                               const ContextOptions& options) {
  QUIRE_TRY_STATUS(check(options));
  ContextOptions salted = options;
  salted.salt = runtime->engine().salt_of(options.salt);
  std::unique_ptr<Context> context(new Context(runtime, salted));
  if (!options.store.empty()) {
    QUIRE_TRY(kv_store::Store store, open_store(options));
    context->store_ = std::make_unique<kv_store::Store>(std::move(store));
    QUIRE_TRY(kv_store::Store told, kv_store::Store::open(options.store));
    context->uses_ = std::make_unique<kv_store::StoreUses>(std::move(told));
  }
  return context;
}

Result<std::shared_ptr<runtime::Runtime>> Context::runtime() const {
  auto runtime = runtime_.lock();
  if (runtime == nullptr) {
    return {ErrorCode::kClosed, "the engine is closed; open the model again"};
  }
  return runtime;
}

std::vector<Item*> Context::active_items(bool conversation_only) const {
  std::vector<Item*> active;
  for (const auto& item : items_) {
    if (item->info.active && (!conversation_only || is_turn(*item))) {
      active.push_back(item.get());
    }
  }
  return active;
}

// Checks an item's name, which goes to terminals and into the store: one line that both take.
Status Context::check_name(const std::string& name) const {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == '\x7f'; };
  if (name.size() > kv_store::kMaxNameBytes || std::ranges::any_of(name, is_control)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("an item's name is one line of at most ", kv_store::kMaxNameBytes,
                          " bytes, not ", base::quoted(name))};
  }
  return items_.find_name(name) != nullptr
             ? Status(ErrorCode::kInvalidArgument,
                      base::str_cat("there is an item called '", name, "' already"))
             : Status();
}

Status Context::check_separate(const Item& item, std::string_view verb) const {
  if (options_.mode == ReuseMode::kAnchored) {
    return {};
  }
  return Error{.code = ErrorCode::kInvalidArgument,
               .message = base::str_cat("in mode 'exact' an item has no KV of its own to ", verb,
                                        "; use mode 'anchored', or a sequence"),
               .chunk_id = item.info.id};
}

Result<std::vector<TokenId>> Context::encode(runtime::Runtime& runtime, const Prompt& content,
                                             ItemKind kind) const {
  if (const auto* given = std::get_if<std::vector<TokenId>>(&content)) {
    QUIRE_TRY_STATUS(runtime.engine().check_prompt(*given));
    return *given;
  }
  return runtime.chunks().encode(
      kind == ItemKind::kSystem ? ChunkType::kSystemPrompt : ChunkType::kContext,
      std::get<std::string>(content));
}

// Makes an id that says what the KV is: the tokens, and what they have seen. With `unique` it
// differs from that of an equal item.
std::string Context::new_id(runtime::Runtime& runtime, const ContextItem& info, bool unique) const {
  for (std::int64_t serial = 0;; ++serial) {
    base::FieldHasher hasher;
    hasher.add("quire item 1").add(runtime.engine().model_digest());
    hasher.add(reuse_mode_name(options_.mode)).add_int(serial);
    hasher.add_int(std::ssize(info.parents));
    for (const std::string& parent : info.parents) {
      hasher.add(parent);
    }
    hasher.add_bytes(std::as_bytes(std::span(info.token_ids)));
    if (!options_.salt.empty()) {
      hasher.add(options_.salt);
    }
    std::string id = base::to_hex(hasher.finish());
    if (!unique || items_.find_id(id) == nullptr) {
      return id;
    }
  }
}

// Updates an item that is added again. The store, which may fail, comes before what cannot.
Status Context::renew(Item& known, const ItemOptions& options) {
  const bool renamed = !options.name.empty() && options.name != known.info.name;
  if (renamed) {
    QUIRE_TRY_STATUS(check_name(options.name));
  }
  const ItemRetention retention = updated(known.info.retention, options.retention);
  if (retention != known.info.retention) {
    QUIRE_TRY_STATUS(set_retention(known.info.id, retention));
  }
  if (renamed) {
    items_.rename(known, options.name);
  }
  for (const std::string& tag : options.tags) {
    add_tag(known, tag);
  }
  return set_active(known.info.id, options.active || known.info.active);
}

Result<std::string> Context::add(const Prompt& content, const ItemOptions& options,
                                 const Interrupt& interrupted) {
  QUIRE_TRY(const auto runtime, this->runtime());
  if (options.kind != ItemKind::kSystem && options.kind != ItemKind::kContext) {
    return {ErrorCode::kInvalidArgument, "only system and context items are added; ask for turns"};
  }
  const ItemRetention retention = updated({}, options.retention);
  QUIRE_TRY_STATUS(check(retention));
  QUIRE_TRY_STATUS(check_tags(options.tags));
  expire();
  Item item;
  item.info.kind = options.kind;
  QUIRE_TRY(item.info.token_ids, encode(*runtime, content, options.kind));
  const auto* text = std::get_if<std::string>(&content);
  item.info.text = text != nullptr ? *text : decode(*runtime, item.info.token_ids);
  const auto system = std::ranges::find_if(items_, [](const auto& known) {
    return known->info.kind == ItemKind::kSystem && known->info.active;
  });
  if (options.kind == ItemKind::kContext && system != items_.end()) {
    item.info.parents = {(*system)->info.id};
  }
  item.info.id = new_id(*runtime, item.info, false);
  if (Item* known = items_.find_id(item.info.id); known != nullptr) {
    QUIRE_TRY_STATUS(renew(*known, options));
    return known->info.id;
  }
  QUIRE_TRY_STATUS(check_name(options.name));
  item.info.name = options.name;
  std::ranges::for_each(options.tags, [&](const std::string& tag) { add_tag(item, tag); });
  item.info.active = options.active;
  item.info.retention = retention;
  if (options.active && options_.mode == ReuseMode::kAnchored) {
    QUIRE_TRY_STATUS(ensure(*runtime, item, interrupted));
  }
  const Item* const added = items_.add(std::move(item));
  changed();
  return added->info.id;
}

Status Context::set_active(const std::string& name, bool active) {
  QUIRE_TRY(Item* const item, items_.find(name));
  if (item->info.active != active) {
    item->info.active = active;
    changed();
  }
  return {};
}

Status Context::tag(const std::string& name, const std::string& tag) {
  QUIRE_TRY(Item* const item, items_.find(name));
  QUIRE_TRY_STATUS(check_tags({&tag, 1}));
  add_tag(*item, tag);
  return {};
}

Result<ContextItem> Context::show(const std::string& name) const {
  QUIRE_TRY(const Item* const item, items_.find(name));
  const auto all = items();
  return *std::ranges::find(all, item->info.id, &ContextItem::id);
}

std::vector<ContextItem> Context::items() const {
  const auto runtime = runtime_.lock();
  std::size_t followed = 0;  // tokens of active items so far, mode kExact
  std::vector<ContextItem> shown;
  for (const auto& item : items_) {
    ContextItem info = item->info;
    info.saved = item->info.saved && store_->objects().is_there(item->info.id);
    const std::size_t end = followed + info.token_ids.size();
    if (options_.mode == ReuseMode::kExact && info.active && tip_ != nullptr) {
      const bool inside = end <= tip_->tokens.size() &&
                          std::equal(info.token_ids.begin(), info.token_ids.end(),
                                     tip_->tokens.begin() + static_cast<std::ptrdiff_t>(followed));
      info.tier = inside ? Tier::kDevice : Tier::kNone;
      followed = inside ? end : tip_->tokens.size() + 1;
    } else if (item->device != nullptr) {
      info.tier = Tier::kDevice;
      info.memory_bytes = runtime == nullptr ? 0 : runtime->tiers().bytes_of(*item->device);
    } else if (item->host != nullptr) {
      info.tier = Tier::kHost;
      info.memory_bytes = static_cast<std::int64_t>(item->host->bytes.size());
    } else {
      info.tier = info.saved ? Tier::kDisk : Tier::kNone;
    }
    shown.push_back(std::move(info));
  }
  return shown;
}

ContextStats Context::stats() const {
  ContextStats stats{.tokens_computed = tokens_computed_, .tokens_reused = tokens_reused_};
  for (const ContextItem& item : items()) {
    ++stats.items;
    stats.active_items += item.active ? 1 : 0;
    stats.active_tokens += item.active ? std::ssize(item.token_ids) : 0;
    stats.device_items += item.tier == Tier::kDevice ? 1 : 0;
    stats.host_items += item.tier == Tier::kHost ? 1 : 0;
    stats.disk_items += item.tier == Tier::kDisk ? 1 : 0;
    stats.saved_items += item.saved ? 1 : 0;
    (item.tier == Tier::kHost ? stats.host_bytes : stats.device_bytes) += item.memory_bytes;
  }
  return stats;
}

// Brings the item's KV to the device: from where it is, else by computing it.
Status Context::ensure(runtime::Runtime& runtime, Item& item, const Interrupt& interrupted) {
  touch(item);
  if (item.device != nullptr) {
    return {};
  }
  QUIRE_TRY_STATUS(
      with_room(runtime, [&] { return fetch_or_compute(runtime, item, interrupted); }));
  return write_through(runtime, item);
}

Status Context::fetch_or_compute(runtime::Runtime& runtime, Item& item,
                                 const Interrupt& interrupted) {
  if (item.host != nullptr) {
    QUIRE_TRY(item.device, runtime.tiers().from_host(*item.host));
    item.host = nullptr;
    return {};
  }
  if (item.info.saved && !computes(runtime, item)) {
    const auto file = open_kv(item);
    const auto loaded = file.ok() ? runtime.tiers().from_file(*file) : file.error();
    if (loaded.ok()) {
      item.device = *loaded;
      return {};
    }
    const ErrorCode code = loaded.error().code;
    if (code == ErrorCode::kOutOfBlocks || code == ErrorCode::kIncompatible) {
      return loaded.error();
    }
    item.info.saved = false;  // damaged or gone: a miss
  }
  return compute(runtime, item, interrupted);
}

bool Context::computable(const Item& item) const {
  return std::ranges::all_of(item.info.parents,
                             [&](const std::string& id) { return items_.find_id(id) != nullptr; });
}

bool Context::computes(runtime::Runtime& runtime, const Item& item) const {
  return computable(item) && !runtime.tiers().reload_policy().reads_next();
}

Result<std::vector<Item*>> Context::parents_of(const Item& item) const {
  std::vector<Item*> parents;
  for (const std::string& parent : item.info.parents) {
    Item* known = items_.find_id(parent);
    if (known == nullptr) {
      return Error{.code = ErrorCode::kNotFound,
                   .message = base::str_cat("item ", item.info.id, " cannot be computed again: ",
                                            parent, ", which it has seen, was erased"),
                   .chunk_id = parent};
    }
    parents.push_back(known);
  }
  return parents;
}

Status Context::compute(runtime::Runtime& runtime, Item& item, const Interrupt& interrupted) {
  QUIRE_TRY(const std::vector<Item*> parents, parents_of(item));
  QUIRE_TRY(std::vector<sequences::BlockRun> runs, runs_of(runtime, parents, interrupted));
  if (item.borrows && !runs.empty()) {
    --runs.back().tokens;
  }
  QUIRE_TRY(item.device, runtime.sequences().hold(runs, item.info.token_ids, interrupted, whose()));
  tokens_computed_ += std::ssize(item.info.token_ids);
  return {};
}

Result<std::vector<sequences::BlockRun>> Context::runs_of(runtime::Runtime& runtime,
                                                          std::span<Item* const> items,
                                                          const Interrupt& interrupted) {
  std::vector<sequences::BlockRun> runs;
  const Item* before = nullptr;
  for (Item* const item : items) {
    if (!options_.fetch && item->device == nullptr && (item->host != nullptr || item->info.saved)) {
      return Error{.code = ErrorCode::kNotFound,
                   .message = base::str_cat("item ", item->info.id, " was unloaded; restore it"),
                   .chunk_id = item->info.id};
    }
    QUIRE_TRY_STATUS(ensure(runtime, *item, interrupted));
    if (item->borrows && before != nullptr && item->info.parents.back() == before->info.id) {
      --runs.back().tokens;
    }
    runs.push_back(sequences::run_of(item->device));
    before = item;
  }
  return runs;
}

Result<sequences::StateRef> Context::follow(runtime::Runtime& runtime,
                                            const sequences::StateRef& known,
                                            std::span<const TokenId> tokens,
                                            const Interrupt& interrupted,
                                            const RequestOptions& options) {
  if (known == nullptr) {
    QUIRE_TRY(sequences::StateRef opened, runtime.sequences().open(tokens, interrupted, options));
    followed_tokens_ += opened->computed_tokens;
    return opened;
  }
  const auto differ = std::ranges::mismatch(known->tokens, tokens);
  const auto common = differ.in1 - known->tokens.begin();
  QUIRE_TRY(const sequences::StateRef kept, runtime.sequences().cut(known, common));
  followed_tokens_ += kept == known ? 0 : kept->computed_tokens;
  QUIRE_TRY(sequences::StateRef next,
            runtime.sequences().append(kept, tokens.subspan(static_cast<std::size_t>(common)),
                                       interrupted, options));
  followed_tokens_ += next == kept ? 0 : next->computed_tokens;
  return next;
}

Result<std::vector<sequences::BlockRun>> Context::runs(bool conversation_only,
                                                       const Interrupt& interrupted) {
  QUIRE_TRY(const auto runtime, this->runtime());
  expire();
  const std::vector<Item*> active = active_items(conversation_only);
  if (options_.mode == ReuseMode::kAnchored) {
    return runs_of(*runtime, active, interrupted);
  }
  sequences::StateRef& tip = conversation_only ? conversation_tip_ : tip_;
  const std::int64_t before = followed_tokens_;
  QUIRE_TRY(tip, follow(*runtime, tip, tokens_of(active), interrupted, whose()));
  tokens_computed_ += followed_tokens_ - before;
  return std::vector<sequences::BlockRun>{sequences::run_of(tip)};
}

std::weak_ptr<const void> Context::epoch() {
  if (epoch_ == nullptr) {
    epoch_ = std::make_shared<int>();
  }
  return epoch_;
}

Result<std::int64_t> Context::populate(const Interrupt& interrupted) {
  const std::int64_t before = tokens_computed_;
  QUIRE_TRY([[maybe_unused]] const auto there, runs(false, interrupted));
  return tokens_computed_ - before;
}

Result<std::string> Context::compose(std::span<const std::string> names, const std::string& name,
                                     const Interrupt& interrupted) {
  std::vector<Item*> parts;
  for (const std::string& part : names) {
    QUIRE_TRY(parts.emplace_back(), items_.find(part));
  }
  if (parts.empty()) {
    return {ErrorCode::kInvalidArgument, "nothing to compose; name at least one item"};
  }
  QUIRE_TRY(std::string id, add(tokens_of(parts), {.name = name}, interrupted));
  for (Item* const part : parts) {
    part->info.active = part->info.active && part->info.id == id;
  }
  changed();
  return id;
}

std::int64_t Context::clear() {
  const std::int64_t count = std::ssize(items_);
  items_.clear();
  tip_ = conversation_tip_ = nullptr;
  changed();
  return count;
}

}  // namespace quire::contexts
