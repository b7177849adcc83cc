#include "quire/device/cpu/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>

#include "quire/base/check.h"
#include "quire/device/cpu/spin.h"

namespace quire::device {
namespace {

// Ticket fields, low to high: next (24), count (24), epoch (16).
constexpr int kCountShift = 24;
constexpr int kEpochShift = 48;
constexpr std::uint64_t kFieldMask = (std::uint64_t{1} << 24) - 1;
constexpr int kSpinsBeforeSleep = 4000;  // about 100-200 us

std::uint64_t next_of(std::uint64_t ticket) { return ticket & kFieldMask; }
std::uint64_t count_of(std::uint64_t ticket) { return (ticket >> kCountShift) & kFieldMask; }

}  // namespace

ThreadPool::ThreadPool(int threads) {
  try {
    for (int t = 1; t < threads; ++t) {
      workers_.emplace_back([this, t] { work(t); });
    }
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    // No more threads: the ones that started do the work.
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch)
    // No memory for one more is the same.
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  const std::uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> kEpochShift) + 1;
  ticket_.store(epoch << kEpochShift, std::memory_order_release);
  ticket_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void ThreadPool::run_job(Job job, int count) {
  // Threads that find nothing left still count `next` up by one each: the field has room for them.
  QUIRE_CHECK(count <= kMaxCount, "too many indices for one parallel loop");
  if (workers_.empty() || count == 1) {
    for (int i = 0; i < count; ++i) {
      job.call(job.context, i, 0);
    }
    return;
  }
  if (count <= 0) {
    return;
  }
  job_ = job;
  refused_.store(false, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const std::uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> kEpochShift) + 1;
  ticket_.store((epoch << kEpochShift) | (static_cast<std::uint64_t>(count) << kCountShift),
                std::memory_order_release);
  ticket_.notify_all();
  drain(0);
  spin_until(
      [&] { return done_.load(std::memory_order_acquire) == static_cast<std::uint32_t>(count); });
  if (refused_.load(std::memory_order_relaxed)) {
    throw std::bad_alloc();
  }
}

void ThreadPool::call(int index, int thread) {
  try {
    job_.call(job_.context, index, thread);
  } catch (const std::bad_alloc&) {
    refused_.store(true, std::memory_order_relaxed);
  }
}

void ThreadPool::drain(int thread) {
  for (;;) {
    std::uint64_t ticket = ticket_.load(std::memory_order_relaxed);
    if (next_of(ticket) >= count_of(ticket)) {
      return;
    }
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (next_of(ticket) >= count_of(ticket)) {
      return;
    }
    call(static_cast<int>(next_of(ticket)), thread);
    done_.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::work(int thread) {
  int spins = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (next_of(ticket) < count_of(ticket)) {
      drain(thread);
      spins = 0;
    } else if (++spins < kSpinsBeforeSleep) {
      relax();
    } else {
      ticket_.wait(ticket, std::memory_order_acquire);
      spins = 0;
    }
  }
}

}  // namespace quire::device
