// ThreadPool: threads that share the indices of a loop. A hand-off takes microseconds, because a
// decode step has some hundred such loops.
//
// Thread rule: one caller of run() at a time.
//
// Invariants
//   1. `ticket_` holds (epoch, count, next) in one word, so claiming an index and knowing that it
//      belongs to a live loop is one atomic operation. A thread that wakes late finds next >= count
//      and touches nothing else.
//   2. `job_` is written before the ticket is shown, and read only by holders of a claimed index.
//      run() returns only when all claimed indices are done.
//   3. Idle threads spin for a while, then sleep in the kernel; run() never waits for a sleeper, it
//      does the work itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire::device {

// The padding gives each shared word a cache line of its own.
class ThreadPool {  // NOLINT(clang-analyzer-optin.performance.Padding)
 public:
  // Starts `threads` - 1 threads; the caller of run() is the last one. The pool is smaller if the
  // system grants fewer.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(index, thread) once for every index in [0, count), on any thread in [0, threads()),
  // and returns when all are done. Indices are taken in order, so one may wait for those before it.
  // Calls at the same time have different threads; a single one runs on the caller as thread 0. fn
  // must not call run(). If fn throws std::bad_alloc, the others are done and run() throws it;
  // fn throws nothing else. Precondition: count <= kMaxCount.
  static constexpr int kMaxCount = 1 << 23;
  template <class Fn>
  void run(int count, Fn&& fn) {
    using Plain = std::remove_reference_t<Fn>;
    run_job({[](void* context, int index, int thread) {
               (*static_cast<Plain*>(context))(index, thread);
             },
             const_cast<void*>(static_cast<const void*>(std::addressof(fn)))},
            count);
  }

 private:
  struct Job {
    void (*call)(void* context, int index, int thread) = nullptr;
    void* context = nullptr;
  };

  void run_job(Job job, int count);
  void work(int thread);
  void drain(int thread);
  void call(int index, int thread);

  Job job_;
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<std::uint32_t> done_{0};
  alignas(64) std::atomic<bool> stop_{false};
  std::atomic<bool> refused_{false};  // an index of this loop was refused memory
  std::vector<std::thread> workers_;
};

}  // namespace quire::device
