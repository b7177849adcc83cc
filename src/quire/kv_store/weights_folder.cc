#include "quire/kv_store/weights_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/file_time.h"
#include "quire/base/str.h"
#include "quire/device/cpu/thread_pool.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/kv_file_content.h"
#include "quire/kv_store/store_layout.h"
#include "quire/kv_store/weights_file.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

using State = WeightsReport::State;

// Returns the keys of the files in the folder, sorted.
std::vector<std::string> keys_in(const Folder& folder) {
  std::vector<std::string> keys;
  // A folder that cannot be listed is not looked after.
  static_cast<void>(for_each_name(folder.path, [&](const std::string& name) {
    if (name.ends_with(kWeightsEnding) &&
        is_hash(std::string_view(name).substr(0, name.size() - kWeightsEnding.size()))) {
      keys.push_back(name.substr(0, name.size() - kWeightsEnding.size()));
    }
  }));
  std::ranges::sort(keys);
  return keys;
}

WeightsReport examine(const Folder& folder, const std::string& key, device::ThreadPool* pool) {
  WeightsReport report{.key = key};
  struct stat info{};
  if (::fstatat(folder.descriptor.get(), weights_file_name(key).c_str(), &info,
                AT_SYMLINK_NOFOLLOW) == 0) {
    report.bytes = info.st_size;
    report.written_ms = base::modified_ms(info);
  }
  const auto file = WeightsFile::open(folder, key);
  if (!file.ok()) {
    const ErrorCode code = file.error().code;
    report.state = code == ErrorCode::kUnsupported ? State::kStale
                   : code == ErrorCode::kCorrupt   ? State::kDamaged
                                                   : State::kUnreadable;
    report.message = file.error().message;
    return report;
  }
  report.model = file->content().model;
  report.message = changed_source(file->content().sources);
  if (!report.message.empty()) {
    report.state = State::kStale;
    return report;
  }
  if (const Status whole = pool == nullptr ? Status() : file->verify(*pool); !whole.ok()) {
    report.state = State::kDamaged;
    report.message = whole.error().message;
  }
  return report;
}

}  // namespace

std::string changed_source(std::span<const SourceFile> sources) {
  for (const SourceFile& source : sources) {
    struct stat info{};
    if (::stat(source.path.c_str(), &info) != 0) {
      if (errno == ENOENT || errno == ENOTDIR) {
        return base::str_cat(source.path, " is gone");
      }
      continue;
    }
    if (info.st_size != source.bytes || base::modified_ns(info) != source.modified_ns) {
      return base::str_cat(source.path, " has changed");
    }
  }
  return {};
}

std::vector<WeightsReport> examine_weights(const Folder& folder, device::ThreadPool* pool) {
  std::vector<WeightsReport> reports;
  for (const std::string& key : keys_in(folder)) {
    reports.push_back(examine(folder, key, pool));
  }
  return reports;
}

RemovedWeights remove_useless_weights(const Folder& folder) {
  RemovedWeights removed;
  for (const WeightsReport& report : examine_weights(folder, nullptr)) {
    const bool useless = report.state == State::kStale || report.state == State::kDamaged;
    if (useless &&
        ::unlinkat(folder.descriptor.get(), weights_file_name(report.key).c_str(), 0) == 0) {
      ++removed.files;
      removed.bytes += report.bytes;
    }
  }
  return removed;
}

}  // namespace quire::kv_store
