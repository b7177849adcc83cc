// BackgroundWrites: writes to the disk behind calls, in order, on a thread of their own. The call
// that puts a write returns before it is done. The work takes a little of a core from whatever
// computes meanwhile. Writes that have not begun are lost when the process is killed.
//
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "quire/engine/log.h"
#include "quire/result.h"

namespace quire::chunks {

class BackgroundWrites {
 public:
  using Write = std::function<Status()>;

  // Makes a queue without a thread. `log` hears of every write of the thread that fails.
  explicit BackgroundWrites(engine::Log log = {}) : log_(std::move(log)) {}
  BackgroundWrites(const BackgroundWrites&) = delete;
  BackgroundWrites& operator=(const BackgroundWrites&) = delete;
  ~BackgroundWrites() { stop(); }

  // Waits while `kMostWaiting` writes are under way. After stop(), and where the system grants no
  // thread, the caller's thread writes.
  void put(std::string name, Write write);
  // Writes on the caller's thread, behind all that was put before. Its failure is the caller's, not
  // flush()'s.
  [[nodiscard]] Status write_now(const std::string& name, const Write& write);
  // Notes a write that is not even tried, as a failure for flush().
  void refuse(const Status& why);
  // Returns whether the last write of this name failed.
  [[nodiscard]] bool has_failed(const std::string& name);
  // Returns whether one of this name was put and has not ended.
  [[nodiscard]] bool is_waiting(const std::string& name);
  // Blocks until all that was put before is written and gone.
  void wait();
  // Blocks until one more write has ended and what it held is gone. Returns false, at once, when
  // none is left.
  [[nodiscard]] bool wait_one();
  // Waits as wait() does. Returns the first failure since the last flush().
  [[nodiscard]] Status flush();
  // Writes what is left and ends the thread.
  void stop();

 private:
  static constexpr std::size_t kMostWaiting = 16;

  void run();
  void note(const std::string& name, const Status& status);  // call it with the lock held

  const engine::Log log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, Write>> waiting_;
  std::set<std::string> failed_;        // names
  std::uint64_t ended_ = 0;             // writes of the thread
  std::optional<std::string> writing_;  // a write of this name is under way
  bool stopped_ = false;
  Status failure_;
  std::thread thread_;  // started by the first put
};

}  // namespace quire::chunks
