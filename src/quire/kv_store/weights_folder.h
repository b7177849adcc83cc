// The weights files of a store, looked at and cleared away.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/device/cpu/thread_pool.h"
#include "quire/kv_store/file_io.h"
#include "quire/kv_store/weights_file.h"

namespace quire::kv_store {

struct WeightsReport {
  enum class State : std::uint8_t {
    kOk,
    kStale,       // useless: its model is gone or has changed, or another version has packed it
    kDamaged,     // a start would pack anew and replace it
    kUnreadable,  // unreadable now, or for us
  };
  std::string key;
  State state = State::kOk;
  std::int64_t bytes = 0;
  std::int64_t written_ms = 0;  // since 1970, UTC
  std::string model;            // path of the model; "" when the header cannot be read
  std::string message;          // message that says what is wrong
};

// Returns "PATH is gone" or "PATH has changed" for the first file that is not as it was. Returns ""
// when all are, or cannot be looked at.
[[nodiscard]] std::string changed_source(std::span<const SourceFile> sources);

// Reports every weights file of `folder`, by key. With a pool checksums are compared, else headers
// are read.
[[nodiscard]] std::vector<WeightsReport> examine_weights(const Folder& folder,
                                                         device::ThreadPool* pool);

// Removes those that are kStale or whose header is damaged; processes that have one mapped keep it.
struct RemovedWeights {
  std::int64_t files = 0;
  std::int64_t bytes = 0;
};
[[nodiscard]] RemovedWeights remove_useless_weights(const Folder& folder);

}  // namespace quire::kv_store
