// BackgroundWrites: what goes to the disk behind the caller's back, in order, on a thread of its
// own. The wait for the disk costs no time then; what is lost when the process is killed is what
// had not been written yet.
//
// Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "quire/result.h"

namespace quire::engine {

class BackgroundWrites {
 public:
  using Write = std::function<Status()>;

  BackgroundWrites() = default;
  BackgroundWrites(const BackgroundWrites&) = delete;
  BackgroundWrites& operator=(const BackgroundWrites&) = delete;
  ~BackgroundWrites() { stop(); }

  // Waits while `kMostWaiting` writes are under way. After stop() the caller's thread writes.
  void put(Write write);
  // Until all that was put before is written and gone.
  void wait();
  // wait(), and the first failure since the last flush().
  [[nodiscard]] Status flush();
  // Writes what is left and ends the thread.
  void stop();

 private:
  static constexpr std::size_t kMostWaiting = 16;

  void run();
  void note(const Status& status);  // needs the lock

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Write> waiting_;
  bool writing_ = false;
  bool stopped_ = false;
  Status failure_;
  std::thread thread_;  // started by the first put
};

}  // namespace quire::engine
