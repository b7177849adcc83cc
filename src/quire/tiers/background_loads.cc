#include "quire/tiers/background_loads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/device/cpu/start_thread.h"
#include "quire/device/host_buffer.h"
#include "quire/engine/hooks.h"
#include "quire/engine/log.h"
#include "quire/interrupt.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::tiers {
namespace {

// Reads by way of host memory, into a device's pool.
Status read_beside(const kv_store::KVFileRange& from, int layer, kv_store::PagedPool& pool,
                   device::HostBuffer& staging) {
  const kv_store::BlockRange& range = from.blocks;
  const tensor::KVGeometry& geometry = pool.geometry(range.format);
  const std::size_t bytes = range.to.size() *
                            static_cast<std::size_t>(geometry.stored_heads(layer)) *
                            static_cast<std::size_t>(geometry.head_block_bytes());
  if (staging.size() < bytes) {
    staging = {};
    staging = pool.host_buffer(bytes);
  }
  if (staging.size() < bytes) {
    return {ErrorCode::kOutOfBlocks, "the machine has no memory left to read saved KV into"};
  }
  const std::span<std::byte> read = staging.span().first(bytes);
  QUIRE_TRY_STATUS(from.file->read_layer(range.run, layer, range.first_block, read));
  return pool.write_layer(layer, range.to, read, range.format);
}

}  // namespace

// Reads the layers of one load: threads of its own take one after the other; without any, whoever
// waits for a layer reads it.
class BackgroundLoads::Readers {
 public:
  Readers(Load& load, kv_store::PagedPool& pool)
      : load_(load), pool_(pool), read_(static_cast<std::size_t>(load.all_layers_)) {
    if (!pool.on_device() || load.bytes(pool) < kParallelReadBytes) {
      return;
    }
    try {
      while (std::ssize(threads_) < std::min(kMostReaders, load.all_layers_)) {
        threads_.emplace_back([this] { run(); });
      }
    } catch (const std::system_error&) {
      return;  // those that there are read all
    }
  }
  ~Readers() { stop(); }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  // Stops the readers. No layer is read any more when it returns.
  void stop() {
    next_ = load_.all_layers_;
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

  // Waits until the layer has been read, as far as it can be.
  void wait(int layer) {
    if (threads_.empty()) {
      load_.read_layer(layer, pool_, staging_);
      return;
    }
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [&] { return read_[static_cast<std::size_t>(layer)]; });
  }

 private:
  void run() {
    device::HostBuffer staging;
    for (int layer = next_++; layer < load_.all_layers_; layer = next_++) {
      load_.read_layer(layer, pool_, staging);
      {
        const std::lock_guard lock(mutex_);
        read_[static_cast<std::size_t>(layer)] = true;
      }
      progress_.notify_one();
    }
  }

  Load& load_;
  kv_store::PagedPool& pool_;
  device::HostBuffer staging_;  // staging of the waiting thread
  std::atomic<int> next_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable progress_;
  std::vector<bool> read_;            // [layers]
  std::vector<std::thread> threads_;  // after all that they use
};

void BackgroundLoads::Load::wait(int layer) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return layers_ > layer; });
}

bool BackgroundLoads::Load::wait_end(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return progress_.wait_for(lock, at_most, [&] { return layers_ == all_layers_; });
}

Status BackgroundLoads::await(std::span<const LoadRef> loads, const Interrupt& interrupted) {
  for (const LoadRef& load : loads) {
    if (!interrupted) {
      load->wait(load->all_layers_ - 1);
      continue;
    }
    while (!load->wait_end(std::chrono::milliseconds(kInterruptPollMs))) {
      if (interrupted()) {
        return {ErrorCode::kCancelled, "the call was interrupted"};
      }
    }
  }
  return {};
}

Status BackgroundLoads::Load::outcome() {
  wait(all_layers_ - 1);
  return failure([](const kv_store::KVFileRange&) { return true; });
}

Status BackgroundLoads::Load::outcome(std::span<const BlockId> blocks, kv::FormatId format) {
  wait(all_layers_ - 1);
  return failure([&](const kv_store::KVFileRange& range) {
    return range.blocks.format == format &&
           std::ranges::find_first_of(range.blocks.to, blocks) != range.blocks.to.end();
  });
}

Status BackgroundLoads::Load::outcome(std::span<const kv::BlockPart> parts) {
  for (const kv::BlockPart& part : parts) {
    QUIRE_TRY_STATUS(outcome(part.blocks, part.format));
  }
  return {};
}

void BackgroundLoads::Load::read_layer(int layer, kv_store::PagedPool& pool,
                                       device::HostBuffer& staging) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (has_failed(i)) {
      continue;
    }
    const kv_store::KVFileRange& range = ranges_[i];
    Status status;
    try {
      status = pool.on_device() ? read_beside(range, layer, pool, staging)
                                : range.read_layer(layer, pool);
    } catch (const std::bad_alloc&) {
      status = base::no_memory("KV that is read");
    }
    if (!status.ok()) {
      fail(i, std::move(status));
    }
  }
}

std::int64_t BackgroundLoads::Load::bytes(const kv_store::PagedPool& pool) const {
  std::int64_t bytes = 0;
  for (const kv_store::KVFileRange& range : ranges_) {
    bytes += std::ssize(range.blocks.to) * pool.geometry(range.blocks.format).block_bytes();
  }
  return bytes;
}

bool BackgroundLoads::Load::has_failed(std::size_t range) {
  const std::lock_guard lock(mutex_);
  return !failures_[range].ok();
}

// Notes the first error of a range, which stays.
void BackgroundLoads::Load::fail(std::size_t range, Status why) {
  const std::lock_guard lock(mutex_);
  if (failures_[range].ok()) {
    failures_[range] = std::move(why);
  }
}

void BackgroundLoads::Load::fail_all(const Status& why) {
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    fail(i, base::copy_of(why.error()));
  }
}

Status BackgroundLoads::Load::failure(const std::function<bool(const kv_store::KVFileRange&)>& of) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < ranges_.size(); ++i) {
    if (!failures_[i].ok() && of(ranges_[i])) {
      return failures_[i];
    }
  }
  return {};
}

void BackgroundLoads::Load::note(int layers) {
  {
    const std::lock_guard lock(mutex_);
    layers_ = layers;
  }
  progress_.notify_all();
}

BackgroundLoads::BackgroundLoads(kv_store::PagedPool& pool, const kv::Ledger& ledger, Post post,
                                 engine::Log log)
    : pool_(pool), ledger_(ledger), post_(std::move(post)), log_(std::move(log)) {}

void BackgroundLoads::stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_arrived_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void BackgroundLoads::start(std::vector<Order> orders) {
  std::vector<UnderWay> added;
  std::list<LoadRef> loads;
  for (Order& order : orders) {
    UnderWay next;
    for (const kv_store::KVFileRange& range : order.ranges) {
      for (const BlockId block : range.blocks.to) {
        next.blocks.insert(key_of(block, range.blocks.format));
      }
    }
    next.load = std::make_shared<Load>(std::move(order.ranges), pool_.geometry().layers);
    next.load->ended_.emplace_back([this, load = next.load.get()] { finish(load); });
    next.done = std::move(order.done);
    loads.push_back(next.load);
    added.push_back(std::move(next));
  }
  under_way_.reserve(under_way_.size() + added.size());
  if (!thread_.joinable()) {
    thread_ = device::start_thread([this] { run(); });
  }
  std::ranges::move(added, std::back_inserter(under_way_));  // from here on nothing is refused
  if (!thread_.joinable()) {
    std::ranges::for_each(loads, [this](const LoadRef& load) { read(load); });  // now, then
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.splice(queue_.end(), loads);
  }
  work_arrived_.notify_one();
}

// Runs the loading thread.
void BackgroundLoads::run() {
  while (true) {
    LoadRef load;
    {
      std::unique_lock lock(mutex_);
      work_arrived_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (!queue_.empty()) {
        load = std::move(queue_.front());
        queue_.pop_front();
      } else {
        return;
      }
    }
    read(load);
  }
}

// Reads a load. One for which there is no memory fails.
void BackgroundLoads::read(const LoadRef& load) {
  try {
    read_layers(load);
  } catch (const std::bad_alloc&) {
    load->fail_all(base::no_memory("KV that is read"));
    if (!load->ended_.empty()) {
      post_(std::move(load->ended_));
    }
    load->note(load->all_layers_);
  }
}

// Reads the layers of a load in order. A caller that has waited for all of a load finds it
// finished: that task is sent before the last layer is noted.
void BackgroundLoads::read_layers(const LoadRef& load) {
  const auto start = std::chrono::steady_clock::now();
  const int layers = load->all_layers_;
  Readers readers(*load, pool_);
  for (int layer = 0; layer < layers; ++layer) {
    const bool closing = [this] {
      const std::lock_guard lock(mutex_);
      return closing_;
    }();
    if (closing) {
      readers.stop();  // before somebody frees the blocks
      load->fail_all({ErrorCode::kClosed, "the engine is closed"});
      layer = layers - 1;
    } else {
      readers.wait(layer);
    }
    if (layer + 1 == layers) {
      tell_failure(*load);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      load->seconds_ = taken.count();
      post_(std::move(load->ended_));
    }
    load->note(layer + 1);
  }
}

void BackgroundLoads::tell_failure(Load& load) const {
  const Status failure = load.failure([](const kv_store::KVFileRange&) { return true; });
  if (!failure.ok() && failure.error().code != ErrorCode::kClosed) {
    log_.tell(LogLevel::kError,
              base::str_cat("reading saved KV in the background: ", failure.error().message));
  }
}

// Finishes a load that has ended. Where memory is refused it is called again, and calls `done`
// again.
void BackgroundLoads::finish(const Load* ended) {
  const auto of_it = [&](const UnderWay& known) { return known.load.get() == ended; };
  const auto found = std::ranges::find_if(under_way_, of_it);
  if (found == under_way_.end()) {
    return;
  }
  const LoadRef load = found->load;
  std::erase_if(bad_, [&](const auto& known) {
    const kv::BlockRef block = known.second.block;
    return !(ledger_.current(block.id, block.format()) == block);
  });
  for (const kv_store::KVFileRange& range : load->ranges_) {
    const Status why =
        load->failure([&](const kv_store::KVFileRange& other) { return &other == &range; });
    const kv::FormatId format = range.blocks.format;
    for (const BlockId block : range.blocks.to) {
      if (!why.ok()) {
        bad_.insert_or_assign(key_of(block, format),
                              Bad{.block = ledger_.current(block, format), .why = why});
      }
    }
  }
  const Done done = found->done;
  done(*load, load->seconds_);
  std::erase_if(under_way_, of_it);
}

std::vector<BackgroundLoads::LoadRef> BackgroundLoads::filling(std::span<const BlockId> blocks,
                                                               kv::FormatId format) const {
  std::vector<LoadRef> loads;
  for (const UnderWay& load : under_way_) {
    if (std::ranges::any_of(blocks,
                            [&](BlockId id) { return load.blocks.contains(key_of(id, format)); })) {
      loads.push_back(load.load);
    }
  }
  return loads;
}

std::vector<BackgroundLoads::LoadRef> BackgroundLoads::filling(
    std::span<const kv::BlockPart> parts) const {
  std::vector<LoadRef> loads;
  for (const kv::BlockPart& part : parts) {
    std::ranges::move(filling(part.blocks, part.format), std::back_inserter(loads));
  }
  return loads;
}

void BackgroundLoads::append_loads(std::span<const BlockId> blocks, kv::FormatId format,
                                   std::vector<engine::KvGate::LoadRef>& loads) const {
  std::ranges::move(filling(blocks, format), std::back_inserter(loads));
}

Status BackgroundLoads::outcome(std::span<const BlockId> blocks, kv::FormatId format) const {
  for (const LoadRef& load : filling(blocks, format)) {
    QUIRE_TRY_STATUS(load->outcome(blocks, format));
  }
  return check(blocks, format);
}

Status BackgroundLoads::check(std::span<const BlockId> blocks, kv::FormatId format) const {
  for (const BlockId block : blocks) {
    const auto bad = bad_.find(key_of(block, format));
    if (bad != bad_.end() && ledger_.current(block, format) == bad->second.block) {
      return bad->second.why;
    }
  }
  return {};
}

Status BackgroundLoads::check(std::span<const kv::BlockPart> parts) const {
  for (const kv::BlockPart& part : parts) {
    QUIRE_TRY_STATUS(check(part.blocks, part.format));
  }
  return {};
}

Status BackgroundLoads::outcome(std::span<const kv::BlockPart> parts) const {
  for (const kv::BlockPart& part : parts) {
    QUIRE_TRY_STATUS(outcome(part.blocks, part.format));
  }
  return {};
}

void BackgroundLoads::before_copy(const kv::BlockCopy& copy) {
  const Status status = outcome({&copy.from, 1}, copy.format);
  if (!status.ok()) {
    bad_.insert_or_assign(key_of(copy.to, copy.format),
                          Bad{.block = ledger_.current(copy.to, copy.format), .why = status});
  }
}

}  // namespace quire::tiers
