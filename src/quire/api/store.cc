// The public Store: kv_store's, for people.
#include "quire/store.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "quire/base/iso_time.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/engine/home_process.h"
#include "quire/kv_store/entry_file.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_collector.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_inspector.h"
#include "quire/kv_store/store_repair.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/result.h"
#include "quire/tiers/tier_service.h"

namespace quire {
namespace {

constexpr std::size_t kMinDigits = 4;  // fewest digits of a key that is cut short

// Formats a time. Times of a stranger's entry may lie beyond what the clock can say: they become
// its last one.
std::string iso(std::int64_t milliseconds) {
  using Clock = std::chrono::system_clock;
  constexpr auto kLast =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::duration::max());
  const auto time = std::min(std::chrono::milliseconds(milliseconds), kLast);
  return milliseconds == 0 ? "" : base::iso_utc(Clock::time_point(time));
}

// Measures how much smaller KV is in its files, which say so in their headers.
class Ratios {
 public:
  explicit Ratios(const kv_store::Store& store) : store_(store) {}

  // Returns the ratio of all KV of the entry; 0: it has none, or a file cannot be read.
  double of(const kv_store::StoreEntry& entry) {
    Sizes all;
    for (const std::string& hash : kv_store::objects_of(entry)) {
      const Sizes sizes = sizes_of(hash);
      if (sizes.payload == 0) {
        return 0;
      }
      all.stored += sizes.stored;
      all.payload += sizes.payload;
    }
    return all.payload == 0 ? 0
                            : static_cast<double>(all.stored) / static_cast<double>(all.payload);
  }

 private:
  struct Sizes {
    std::int64_t stored = 0;
    std::int64_t payload = 0;
  };

  Sizes sizes_of(const std::string& hash) {
    const auto [known, is_new] = known_.try_emplace(hash);  // checkpoints share objects
    if (is_new) {
      if (const auto file = store_.objects().open(hash); file.ok()) {
        known->second = {.stored = file->stored_bytes(), .payload = file->payload_bytes()};
      }
    }
    return known->second;
  }

  const kv_store::Store& store_;
  std::unordered_map<std::string, Sizes> known_;
};

StoreEntry to_public(const kv_store::StoreEntry& entry, Ratios& ratios) {
  return {.key = entry.key,
          .kind = std::string(kv_store::entry_kind_name(entry.kind)),
          .name = entry.name,
          .tenant = entry.tenant,
          .metadata_json = entry.metadata_json,
          .tokens = entry.tokens,
          .bytes = entry.bytes,
          .ratio = ratios.of(entry),
          .created_at = iso(entry.created_ms),
          .accessed_at = iso(entry.accessed_ms),
          .expires_at = iso(kv_store::expires_ms(entry)),
          .pinned = entry.pinned};
}

const char* state_name(kv_store::ObjectReport::State state) {
  switch (state) {
    case kv_store::ObjectReport::State::kOk:
      return "ok";
    case kv_store::ObjectReport::State::kDamaged:
      return "damaged";
    case kv_store::ObjectReport::State::kMissing:
      return "missing";
  }
  return "";
}

const char* state_name(kv_store::WeightsReport::State state) {
  constexpr const char* kNames[] = {"ok", "stale", "damaged", "unreadable"};
  return kNames[static_cast<std::uint8_t>(state)];
}

}  // namespace

struct Store::Impl {
  Impl(kv_store::Store opened, std::optional<std::string> whose)
      : store(std::make_unique<kv_store::Store>(std::move(opened))), tenant(std::move(whose)) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (home.left()) {  // a child may not close its parent's SQLite
      [[maybe_unused]] const auto* const leaked = store.release();
    }
  }

  // Returns kClosed in a forked child, for which SQLite has no connection. Every call asks first.
  [[nodiscard]] Status check_home() const {
    return home.check("the store", "must not use its index: open the store again there");
  }
  [[nodiscard]] Result<std::vector<kv_store::StoreEntry>> list() const {
    QUIRE_TRY_STATUS(check_home());
    return store->entries().list({.tenant = tenant});
  }
  [[nodiscard]] Result<kv_store::StoreEntry> find(const std::string& name) const;

  const engine::HomeProcess home;
  std::unique_ptr<kv_store::Store> store;
  const std::optional<std::string> tenant;
};

Result<kv_store::StoreEntry> Store::Impl::find(const std::string& name) const try {
  QUIRE_TRY(std::vector<kv_store::StoreEntry> entries, list());
  std::vector<kv_store::StoreEntry*> found;
  for (kv_store::StoreEntry& entry : entries) {
    const bool begins = name.size() >= kMinDigits && entry.key.starts_with(name);
    if (begins || (!name.empty() && entry.name == name)) {
      found.push_back(&entry);
    }
  }
  if (found.size() == 1) {
    return std::move(*found.front());
  }
  return {ErrorCode::kNotFound, found.empty() ? base::str_cat("no entry '", name, "' in the store")
                                              : base::str_cat("'", name, "' names ", found.size(),
                                                              " entries; give more digits")};
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&&) noexcept = default;
Store::~Store() = default;

Result<Store> Store::open(const std::string& path, const StoreOptions& options) try {
  if (options.max_bytes < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("max_bytes is ", options.max_bytes, ", must be at least 0")};
  }
  auto store = kv_store::Store::open(path, {.read_only = options.read_only,
                                            .create = options.create,
                                            .max_bytes = options.max_bytes,
                                            .tenant = options.tenant});
  if (!store.ok()) {
    return tiers::missing_file(std::move(store).error());
  }
  return Store(std::make_unique<Impl>(std::move(store).value(), options.tenant));
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<StoreEntry>> Store::list() const try {
  QUIRE_TRY(const auto entries, impl_->list());
  std::vector<StoreEntry> shown;
  shown.reserve(entries.size());
  Ratios ratios(*impl_->store);
  for (const kv_store::StoreEntry& entry : entries) {
    shown.push_back(to_public(entry, ratios));
  }
  return shown;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<StoreEntry> Store::find(const std::string& entry) const try {
  QUIRE_TRY(const kv_store::StoreEntry found, impl_->find(entry));
  Ratios ratios(*impl_->store);
  return to_public(found, ratios);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Store::pin(const std::string& entry, bool pinned) try {
  QUIRE_TRY(const kv_store::StoreEntry found, impl_->find(entry));
  return impl_->store->entries().pin(found.key, found.tenant, pinned);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Store::set_ttl(const std::string& entry, std::optional<double> seconds) try {
  constexpr double kMaxSeconds = 1e10;
  if (seconds && !(*seconds >= 0 && *seconds <= kMaxSeconds)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("a ttl of ", *seconds, " s; give 0 to ", kMaxSeconds, ", or none")};
  }
  QUIRE_TRY(const kv_store::StoreEntry found, impl_->find(entry));
  const auto ttl_ms = seconds ? std::optional(static_cast<std::int64_t>(*seconds * 1000))
                              : std::optional<std::int64_t>();
  return impl_->store->entries().set_ttl(found.key, found.tenant, ttl_ms);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Store::remove(const std::string& entry, bool wipe) try {
  QUIRE_TRY_STATUS(impl_->check_home());
  const auto found = impl_->find(entry);
  if (!found.ok()) {  // perhaps since a wipe that could not empty the log
    QUIRE_TRY_STATUS(wipe ? impl_->store->remover().finish_wipes() : Status());
    return found.error();
  }
  QUIRE_TRY([[maybe_unused]] const bool removed,
            impl_->store->remover().remove(found->key, found->tenant, wipe));
  return {};
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<StoreCleaning> Store::gc() try {
  QUIRE_TRY_STATUS(impl_->check_home());
  QUIRE_TRY(const kv_store::GcReport report, impl_->store->collector().gc());
  return StoreCleaning{.expired_entries = report.expired_entries,
                       .evicted_entries = report.evicted_entries,
                       .removed_objects = report.removed_objects,
                       .removed_bytes = report.removed_bytes,
                       .removed_temporaries = report.removed_temporaries,
                       .removed_weights = report.removed_weights,
                       .removed_weight_bytes = report.removed_weight_bytes,
                       .objects = report.objects,
                       .bytes = report.bytes,
                       .kept_objects = report.kept_objects,
                       .message = report.kept_why};
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<StoreObject>> Store::verify() const try {
  QUIRE_TRY_STATUS(impl_->check_home());
  QUIRE_TRY(const auto reports, impl_->store->inspector().verify());
  std::vector<StoreObject> objects;
  objects.reserve(reports.size());
  for (const kv_store::ObjectReport& report : reports) {
    objects.push_back({.hash = report.hash,
                       .state = state_name(report.state),
                       .bytes = report.bytes,
                       .entries = report.entries,
                       .message = report.message});
  }
  return objects;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::vector<StoreWeights>> Store::weights(bool verify) const try {
  QUIRE_TRY_STATUS(impl_->check_home());
  std::vector<StoreWeights> shown;
  for (const kv_store::WeightsReport& report : impl_->store->inspector().weights(verify)) {
    shown.push_back({.key = report.key,
                     .model = report.model,
                     .state = state_name(report.state),
                     .written_at = iso(report.written_ms),
                     .bytes = report.bytes,
                     .message = report.message});
  }
  return shown;
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Store::export_entry(const std::string& entry, const std::string& path) const try {
  QUIRE_TRY(const kv_store::StoreEntry found, impl_->find(entry));
  const Status done = impl_->store->files().export_entry(found.key, found.tenant, path);
  return done.ok() ? done : tiers::missing_file(done.error());
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<StoreEntry> Store::import_entry(const std::string& path) try {
  QUIRE_TRY_STATUS(impl_->check_home());
  auto entry = impl_->store->files().import_entry(path, impl_->tenant.value_or(""));
  if (!entry.ok()) {
    return tiers::missing_file(std::move(entry).error());
  }
  Ratios ratios(*impl_->store);
  return to_public(*entry, ratios);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Status Store::check_entry_file(const std::string& path) try {
  const Status sound = kv_store::check_entry_file(path);
  return sound.ok() ? sound : tiers::missing_file(sound.error());
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

Result<std::int64_t> Store::repair(const std::string& path, bool force) try {
  auto kept = kv_store::repair_store(path, force);
  return kept.ok() ? kept : tiers::missing_file(std::move(kept).error());
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

}  // namespace quire
