#include "quire/kv_store/store_inspector.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/store_entry.h"
#include "quire/kv_store/store_index.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/store_objects.h"
#include "quire/kv_store/weights_folder.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

template <class Outcome>
bool is_gone(const Outcome& file) {
  return !file.ok() && file.error().code == ErrorCode::kNotFound;
}

}  // namespace

std::vector<WeightsReport> StoreInspector::weights(bool verify) const {
  const auto weights = core_.folder().open_in(kWeightsName, false);
  if (!weights.ok()) {
    return {};  // nobody has kept any
  }
  if (!verify) {
    return examine_weights(*weights, nullptr);
  }
  device::ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  return examine_weights(*weights, &pool);
}

Result<bool> StoreInspector::is_missing(const std::string& hash) const {
  for (;;) {
    QUIRE_TRY(const std::int64_t before, core_.index().changes_of_others());
    QUIRE_TRY(const bool named, core_.index().is_referenced(hash));
    if (!named || !is_gone(objects_.open(hash))) {
      return false;
    }
    QUIRE_TRY(const std::int64_t after, core_.index().changes_of_others());
    if (before == after) {
      return true;
    }
  }
}

Result<std::vector<ObjectReport>> StoreInspector::verify() const {
  QUIRE_TRY_STATUS(core_.index().check());
  QUIRE_TRY(const auto references, core_.index().references());
  QUIRE_TRY(const auto objects, objects_.scan());
  std::vector<ObjectReport> reports;
  for (const auto& [hash, object] : objects) {
    ObjectReport report{.hash = hash, .bytes = object.bytes};
    const auto count = references.find(hash);
    report.entries = count == references.end() ? 0 : count->second;
    Status whole = objects_.check(hash);
    if (!whole.ok() && !is_gone(whole)) {
      const FolderLock nobody_wipes(core_.objects_folder());
      whole = objects_.check(hash);
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
  QUIRE_TRY([[maybe_unused]] const std::vector<StoreEntry> entries,
            core_.index().list({}, &damaged));
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
