// Collecting and verifying: what a Store does besides putting, finding and removing.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "quire/base/file_time.h"
#include "quire/base/str.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/index_aside.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/sqlite.h"
#include "quire/kv_store/store.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_eviction.h"
#include "quire/kv_store/store_folder.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// A store with a limit looks at its files again once this share of the limit was written, for
// others write too.
constexpr std::int64_t kLookShare = 16;

std::int64_t modified_ms(const struct stat& info) { return base::modified_ns(info) / 1'000'000; }

// The hash in "<hash>.qkv", or "".
std::string hash_of(std::string_view file_name) {
  if (!file_name.ends_with(kObjectEnding)) {
    return {};
  }
  file_name.remove_suffix(kObjectEnding.size());
  return is_hash(file_name) ? std::string(file_name) : std::string();
}

template <class Outcome>
bool is_gone(const Outcome& file) {
  return !file.ok() && file.error().code == ErrorCode::kNotFound;
}

}  // namespace

Status Store::for_each_file(
    const std::function<void(const Folder&, const std::string&)>& visit) const {
  Status listed;
  QUIRE_TRY_STATUS(for_each_name(objects_.path, [&](const std::string& item) {
    const auto folder = objects_.open_in(item, false);
    if (!folder.ok() || !listed.ok()) {
      return;  // a stray file or link: nothing of ours
    }
    listed = for_each_name(folder->path, [&](const std::string& name) { visit(*folder, name); });
  }));
  return listed;
}

Result<std::unordered_map<std::string, Store::StoredObject>> Store::scan_objects() const {
  std::unordered_map<std::string, StoredObject> objects;
  QUIRE_TRY_STATUS(for_each_file([&](const Folder& folder, const std::string& name) {
    struct stat info{};
    const std::string hash = hash_of(name);
    if (!hash.empty() && folder.path.filename() == hash.substr(0, kFolderDigits) &&
        ::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
      objects[hash] = {.bytes = info.st_size, .modified_ms = modified_ms(info)};
    }
  }));
  return objects;
}

Status Store::sweep(const std::unordered_set<std::string>& hashes, GcReport& report) {
  QUIRE_TRY(const std::string unread, why_unread(folder_));
  if (hashes.empty() || !unread.empty()) {
    return {};
  }
  QUIRE_TRY(const Transaction lock, index_.begin());  // nobody names an object meanwhile
  for (const std::string& hash : hashes) {
    QUIRE_TRY(const bool named, index_.is_referenced(hash));
    const auto folder = object_folder(hash, false);
    if (named || !folder.ok()) {
      continue;
    }
    const auto file = identify(*folder, hash);
    const std::string name = object_file_name(hash);
    if (file.ok() && ::unlinkat(folder->descriptor.get(), name.c_str(), 0) == 0) {
      ++report.removed_objects;
      report.removed_bytes += file->bytes;
    }
    whole_.erase(hash);
  }
  return {};
}

bool Store::is_ours(const std::string& tenant) const {
  return !options_.tenant || *options_.tenant == tenant;
}

Result<Store::Standing> Store::standing() const {
  std::vector<DamagedRow> damaged;
  QUIRE_TRY(std::vector<StoreEntry> entries, index_.list({}, &damaged));
  QUIRE_TRY(std::string unread, why_unread(folder_));
  const bool all = !unread.empty();
  if (!all && !damaged.empty()) {
    unread = base::str_cat(damaged.size(), damaged.size() == 1 ? " row" : " rows", " of ",
                           (folder_.path / kIndexName).string(),
                           " are damaged and may name objects; `quire store repair` passes over "
                           "them, `quire store verify` names them");
  }
  return Standing{.entries = std::move(entries), .why_kept = std::move(unread), .all_kept = all};
}

Status Store::expire_and_evict(const ObjectSizes& objects, const StoreEntry* keep,
                               std::unordered_set<std::string>& freed, GcReport& report) {
  QUIRE_TRY(Transaction transaction, index_.begin());
  QUIRE_TRY(auto references, index_.references());
  QUIRE_TRY(const Standing now, standing());
  ObjectSizes left = objects;
  const auto forget = [&](const StoreEntry& entry) {
    for (const std::string& hash : objects_of(entry)) {
      if (--references[hash] == 0) {
        freed.insert(hash);
        left.erase(hash);
      }
    }
    const auto removed = index_.remove(entry.key, entry.tenant);
    return removed.ok() ? Status() : Status(removed.error());
  };
  std::vector<const StoreEntry*> stay;
  for (const StoreEntry& entry : now.entries) {
    if (is_visible(entry) || !is_ours(entry.tenant)) {
      stay.push_back(&entry);
      continue;
    }
    QUIRE_TRY_STATUS(forget(entry));
    ++report.expired_entries;
  }
  // Where no object may go, no entry makes room.
  const EvictionLimit limit{.max_bytes = now.all_kept ? 0 : options_.max_bytes,
                            .tenant = options_.tenant,
                            .written = keep};
  for (const StoreEntry* entry : entries_to_evict(stay, left, references, limit)) {
    QUIRE_TRY_STATUS(forget(*entry));
    ++report.evicted_entries;
  }
  return transaction.commit();
}

Result<GcReport> Store::gc() {
  QUIRE_TRY_STATUS(check_writable());
  // What cannot be overwritten now stays marked; the wipe itself has said so.
  [[maybe_unused]] const Status wiped = finish_object_wipes();
  QUIRE_TRY(GcReport report, collect(nullptr));
  if (const auto weights = folder_.open_in(kWeightsName, false); weights.ok()) {
    const RemovedWeights removed = remove_useless_weights(*weights);
    report.removed_weights = removed.files;
    report.removed_weight_bytes = removed.bytes;
  }
  return report;
}

void Store::keep_below_limit(const StoreEntry& entry) {
  if (options_.max_bytes == 0 || (room_ && *room_ > 0)) {
    return;
  }
  const auto objects = scan_objects();
  if (!objects.ok()) {
    return;
  }
  std::int64_t bytes = 0;
  for (const auto& [hash, object] : *objects) {
    bytes += object.bytes;
  }
  // Which of them are a tenant's own, collecting counts.
  if (bytes > options_.max_bytes) {
    const auto collected = collect(&entry);
    bytes = collected.ok() ? collected->bytes : options_.max_bytes;
  }
  room_ = std::min(options_.max_bytes - bytes, options_.max_bytes / kLookShare);
}

Result<GcReport> Store::collect(const StoreEntry* keep) {
  GcReport report;
  QUIRE_TRY(auto objects, scan_objects());
  // Nobody's objects go first: they make room that no entry needs to give up.
  QUIRE_TRY(const auto references, index_.references());
  QUIRE_TRY(const Standing before, standing());
  std::unordered_set<std::string> unnamed;
  const std::int64_t old = now_ms() - options_.grace_ms;
  for (const auto& [hash, object] : objects) {
    if (before.why_kept.empty() && !references.contains(hash) && object.modified_ms <= old) {
      unnamed.insert(hash);
    }
  }
  QUIRE_TRY_STATUS(sweep(unnamed, report));
  QUIRE_TRY(objects, scan_objects());
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

Status Store::count_left(GcReport& report) const {
  QUIRE_TRY(const auto objects, scan_objects());
  QUIRE_TRY(const auto references, index_.references());
  QUIRE_TRY(const Standing now, standing());
  std::unordered_set<std::string> own;
  for (const StoreEntry& entry : now.entries) {
    if (options_.tenant && is_ours(entry.tenant)) {
      const std::vector<std::string> named = objects_of(entry);
      own.insert(named.begin(), named.end());
    }
  }
  for (const auto& [hash, object] : objects) {
    if (!options_.tenant || own.contains(hash)) {
      ++report.objects;
      report.bytes += object.bytes;
    }
    report.kept_objects += !now.why_kept.empty() && !references.contains(hash) ? 1 : 0;
  }
  report.kept_why = report.kept_objects > 0 ? now.why_kept : "";
  return {};
}

std::int64_t Store::remove_temporaries() const {
  std::int64_t removed = 0;
  const std::int64_t old = now_ms() - options_.grace_ms;
  const auto remove = [&](const Folder& folder, const std::string& name) {
    struct stat info{};
    if (name.starts_with(kTemporaryPrefix) &&
        ::fstatat(folder.descriptor.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        modified_ms(info) <= old && ::unlinkat(folder.descriptor.get(), name.c_str(), 0) == 0) {
      ++removed;
    }
  };
  static_cast<void>(for_each_file(remove));
  if (const auto weights = folder_.open_in(kWeightsName, false); weights.ok()) {
    static_cast<void>(
        for_each_name(weights->path, [&](const std::string& name) { remove(*weights, name); }));
  }
  return removed;
}

std::vector<WeightsReport> Store::weights(bool verify) const {
  const auto weights = folder_.open_in(kWeightsName, false);
  if (!weights.ok()) {
    return {};  // nobody has kept any
  }
  if (!verify) {
    return examine_weights(*weights, nullptr);
  }
  device::ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return examine_weights(*weights, &pool);
}

Status Store::check_object(const std::string& hash) const {
  const auto file = open_object(hash);
  return file.ok() ? file->verify() : Status(file.error());
}

// Whether at one moment an entry names the object and it is not there: others may put or remove
// both between our looks, but not without changing the index.
Result<bool> Store::is_missing(const std::string& hash) const {
  for (;;) {
    QUIRE_TRY(const std::int64_t before, index_.changes_of_others());
    QUIRE_TRY(const bool named, index_.is_referenced(hash));
    if (!named || !is_gone(open_object(hash))) {
      return false;
    }
    QUIRE_TRY(const std::int64_t after, index_.changes_of_others());
    if (before == after) {
      return true;
    }
  }
}

Result<std::vector<ObjectReport>> Store::verify() const {
  QUIRE_TRY_STATUS(index_.check());
  QUIRE_TRY(const auto references, index_.references());
  QUIRE_TRY(const auto objects, scan_objects());
  std::vector<ObjectReport> reports;
  for (const auto& [hash, object] : objects) {
    ObjectReport report{.hash = hash, .bytes = object.bytes};
    const auto count = references.find(hash);
    report.entries = count == references.end() ? 0 : count->second;
    Status whole = check_object(hash);
    if (!whole.ok() && !is_gone(whole)) {
      const FolderLock nobody_wipes(objects_);
      whole = check_object(hash);
    }
    if (is_gone(whole)) {
      continue;
    }
    if (!whole.ok()) {
      report.state = ObjectReport::State::kDamaged;
      report.message = whole.error().message;
    }
    reports.push_back(std::move(report));
  }
  for (const auto& [hash, count] : references) {
    QUIRE_TRY(const bool missing, is_missing(hash));
    if (missing) {
      reports.push_back({.hash = hash,
                         .state = ObjectReport::State::kMissing,
                         .entries = count,
                         .message = base::str_cat("object ", base::quoted(hash), " is missing")});
    }
  }
  std::vector<DamagedRow> damaged;
  QUIRE_TRY([[maybe_unused]] const std::vector<StoreEntry> entries, index_.list({}, &damaged));
  for (DamagedRow& row : damaged) {
    reports.push_back({.hash = std::move(row.key),
                       .state = ObjectReport::State::kDamaged,
                       .entries = 1,
                       .message = std::move(row.message)});
  }
  std::sort(reports.begin(), reports.end(),
            [](const ObjectReport& a, const ObjectReport& b) { return a.hash < b.hash; });
  return reports;
}

}  // namespace quire::kv_store
