#include "quire/kv_store/store_collector.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quire/base/file_time.h"
#include "quire/base/str.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/index_aside.h"
#include "quire/kv_store/object_wipes.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store_core.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_eviction.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/store_objects.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// A store with a limit looks at its files again once this share of the limit was written, for
// others write too.
constexpr std::int64_t kLookShare = 16;

}  // namespace

Status StoreCollector::sweep(const std::unordered_set<std::string>& hashes, GcReport& report) {
  QUIRE_TRY(const RemovedObjects removed, objects_.remove_unnamed(hashes));
  report.removed_objects += removed.objects;
  report.removed_bytes += removed.bytes;
  return {};
}

bool StoreCollector::is_ours(const std::string& tenant) const {
  return !core_.options().tenant || *core_.options().tenant == tenant;
}

Result<StoreCollector::Standing> StoreCollector::standing() const {
  std::vector<DamagedRow> damaged;
  QUIRE_TRY(std::vector<StoreEntry> entries, core_.index().list({}, &damaged));
  QUIRE_TRY(std::string unread, why_unread(core_.folder()));
  const bool all = !unread.empty();
  if (!all && !damaged.empty()) {
    unread = base::str_cat(damaged.size(), damaged.size() == 1 ? " row" : " rows", " of ",
                           (core_.folder().path / kIndexName).string(),
                           " are damaged and may name objects; `quire store repair` passes over "
                           "them, `quire store verify` names them");
  }
  return Standing{.entries = std::move(entries), .why_kept = std::move(unread), .all_kept = all};
}

Status StoreCollector::expire_and_evict(const ObjectSizes& objects, const StoreEntry* keep,
                                        std::unordered_set<std::string>& freed, GcReport& report) {
  QUIRE_TRY(Transaction transaction, core_.index().begin());
  QUIRE_TRY(auto references, core_.index().references());
  QUIRE_TRY(const Standing now, standing());
  ObjectSizes left = objects;
  const auto forget = [&](const StoreEntry& entry) {
    for (const std::string& hash : objects_of(entry)) {
      if (--references[hash] == 0) {
        freed.insert(hash);
        left.erase(hash);
      }
    }
    const auto removed = core_.index().remove(entry.key, entry.tenant);
    return removed.ok() ? Status() : Status(removed.error());
  };
  std::vector<const StoreEntry*> stay;
  for (const StoreEntry& entry : now.entries) {
    if (!has_expired(entry, core_.now_ms()) || !is_ours(entry.tenant)) {
      stay.push_back(&entry);
      continue;
    }
    QUIRE_TRY_STATUS(forget(entry));
    ++report.expired_entries;
  }
  // Where no object may go, no entry makes room.
  const EvictionLimit limit{.max_bytes = now.all_kept ? 0 : core_.options().max_bytes,
                            .tenant = core_.options().tenant,
                            .written = keep};
  for (const StoreEntry* entry : entries_to_evict(stay, left, references, limit)) {
    QUIRE_TRY_STATUS(forget(*entry));
    ++report.evicted_entries;
  }
  return transaction.commit();
}

Result<GcReport> StoreCollector::gc() {
  QUIRE_TRY_STATUS(core_.check_writable());
  // Objects that cannot be overwritten now stay marked; the wipe itself has said so.
  [[maybe_unused]] const Status wiped = wipes_.finish();
  QUIRE_TRY(GcReport report, collect(nullptr));
  if (const auto weights = core_.folder().open_in(kWeightsName, false); weights.ok()) {
    const RemovedWeights removed = remove_useless_weights(*weights);
    report.removed_weights = removed.files;
    report.removed_weight_bytes = removed.bytes;
  }
  return report;
}

void StoreCollector::keep_below_limit(const StoreEntry& written) {
  if (core_.options().max_bytes == 0 || !core_.allowance().is_spent()) {
    return;
  }
  const auto objects = objects_.scan();
  if (!objects.ok()) {
    return;
  }
  std::int64_t bytes = 0;
  for (const auto& [hash, object] : *objects) {
    bytes += object.bytes;
  }
  // Collecting counts which objects are a tenant's own.
  if (bytes > core_.options().max_bytes) {
    const auto collected = collect(&written);
    bytes = collected.ok() ? collected->bytes : core_.options().max_bytes;
  }
  core_.allowance().grant(
      std::min(core_.options().max_bytes - bytes, core_.options().max_bytes / kLookShare));
}

Result<GcReport> StoreCollector::collect(const StoreEntry* keep) {
  GcReport report;
  QUIRE_TRY(auto objects, objects_.scan());
  // Nobody's objects go first: they make room that no entry needs to give up.
  QUIRE_TRY(const auto references, core_.index().references());
  QUIRE_TRY(const Standing before, standing());
  std::unordered_set<std::string> unnamed;
  const std::int64_t old = core_.now_ms() - core_.options().grace_ms;
  for (const auto& [hash, object] : objects) {
    if (before.why_kept.empty() && !references.contains(hash) && object.modified_ms <= old) {
      unnamed.insert(hash);
    }
  }
  QUIRE_TRY_STATUS(sweep(unnamed, report));
  QUIRE_TRY(objects, objects_.scan());
  ObjectSizes sizes;
  for (const auto& [hash, object] : objects) {
    sizes.emplace(hash, object.bytes);
  }
  std::unordered_set<std::string> freed;
  QUIRE_TRY_STATUS(expire_and_evict(sizes, keep, freed, report));
  QUIRE_TRY_STATUS(sweep(freed, report));
  report.removed_temporaries = remove_temporaries();
  QUIRE_TRY_STATUS(count_left(report));
  return report;
}

Status StoreCollector::count_left(GcReport& report) const {
  QUIRE_TRY(const auto objects, objects_.scan());
  QUIRE_TRY(const auto references, core_.index().references());
  QUIRE_TRY(const Standing now, standing());
  std::unordered_set<std::string> own;
  for (const StoreEntry& entry : now.entries) {
    if (core_.options().tenant && is_ours(entry.tenant)) {
      const std::vector<std::string> named = objects_of(entry);
      own.insert(named.begin(), named.end());
    }
  }
  for (const auto& [hash, object] : objects) {
    if (!core_.options().tenant || own.contains(hash)) {
      ++report.objects;
      report.bytes += object.bytes;
    }
    report.kept_objects += !now.why_kept.empty() && !references.contains(hash) ? 1 : 0;
  }
  report.kept_why = report.kept_objects > 0 ? now.why_kept : "";
  return {};
}

std::int64_t StoreCollector::remove_temporaries() const {
  std::int64_t removed = 0;
  const std::int64_t old = core_.now_ms() - core_.options().grace_ms;
  const auto remove = [&](const Folder& folder, const std::string& name) {
    struct stat info{};
    if (name.starts_with(kTemporaryPrefix) &&
        ::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        base::modified_ms(info) <= old &&
        ::unlinkat(folder.descriptor.get(), name.c_str(), 0) == 0) {
      ++removed;
    }
  };
  static_cast<void>(objects_.for_each_file(remove));
  if (const auto weights = core_.folder().open_in(kWeightsName, false); weights.ok()) {
    static_cast<void>(
        for_each_name(weights->path, [&](const std::string& name) { remove(*weights, name); }));
  }
  return removed;
}

}  // namespace quire::kv_store
