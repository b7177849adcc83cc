#include "quire/engine/arrivals.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/cpu/start_thread.h"
#include "quire/device/host_buffer.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_store.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::engine {
namespace {

constexpr std::int64_t kSharedBytes = std::int64_t{1} << 20;  // from here on several threads read
constexpr int kMostReaders = 4;

// By way of host memory.
Status read_to_device(const kv_store::KVFilePart& from, int layer, kv_store::PagedStore& shelves,
                      device::HostBuffer& staging) {
  const kv_store::RunPart& part = from.part;
  const tensor::KVGeometry& geometry = shelves.geometry();
  const std::size_t bytes = part.to.size() * static_cast<std::size_t>(geometry.kv_heads) *
                            static_cast<std::size_t>(geometry.head_block_bytes());
  if (staging.size() < bytes) {
    staging = {};
    staging = shelves.host_buffer(bytes);
  }
  if (staging.size() < bytes) {
    return {ErrorCode::kOutOfBlocks, "the machine has no memory left to read saved KV into"};
  }
  const std::span<std::byte> read = staging.span().first(bytes);
  QUIRE_TRY_STATUS(from.file->read_layer(part.run, layer, part.first_block, read));
  return shelves.write_layer(layer, part.to, read);
}

}  // namespace

// Reads the layers of one load: threads of its own take one after the other; without any, whoever
// waits for a layer reads it.
class Arrivals::Readers {
 public:
  Readers(const Load& load, kv_store::PagedStore& shelves)
      : load_(load), shelves_(shelves), ended_(static_cast<std::size_t>(load.all_layers_)) {
    if (!shelves.on_device() || load.bytes(shelves) < kSharedBytes) {
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

  // No layer is read any more when it returns.
  void stop() {
    next_ = load_.all_layers_;
    for (std::thread& thread : threads_) {
      thread.join();
    }
    threads_.clear();
  }

  // Layers in order, up to the first that fails.
  [[nodiscard]] Status wait(int layer) {
    if (threads_.empty()) {
      return load_.read_layer(layer, shelves_, staging_);
    }
    std::unique_lock lock(mutex_);
    std::optional<Status>& ended = ended_[static_cast<std::size_t>(layer)];
    progress_.wait(lock, [&] { return ended.has_value(); });
    // NOLINTNEXTLINE(bugprone-unchecked-optional-access): what was waited for
    return *ended;
  }

 private:
  void run() {
    device::HostBuffer staging;
    for (int layer = next_++; layer < load_.all_layers_; layer = next_++) {
      Status status = load_.read_layer(layer, shelves_, staging);
      if (!status.ok()) {
        next_ = load_.all_layers_;
      }
      {
        const std::lock_guard lock(mutex_);
        ended_[static_cast<std::size_t>(layer)] = std::move(status);
      }
      progress_.notify_one();
    }
  }

  const Load& load_;
  kv_store::PagedStore& shelves_;
  device::HostBuffer staging_;  // of who waits
  std::atomic<int> next_ = 0;
  std::mutex mutex_;  // guards what follows
  std::condition_variable progress_;
  std::vector<std::optional<Status>> ended_;  // [layers]
  std::vector<std::thread> threads_;          // after all that they use
};

Status Arrivals::Load::wait(int layer) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return layers_ > layer || !status_.ok(); });
  return status_;
}

Status Arrivals::Load::read_layer(int layer, kv_store::PagedStore& shelves,
                                  device::HostBuffer& staging) const {
  for (const kv_store::KVFilePart& part : parts_) {
    QUIRE_TRY_STATUS(shelves.on_device() ? read_to_device(part, layer, shelves, staging)
                                         : part.read_layer(layer, shelves));
  }
  return {};
}

std::int64_t Arrivals::Load::bytes(const kv_store::PagedStore& shelves) const {
  std::int64_t blocks = 0;
  for (const kv_store::KVFilePart& part : parts_) {
    blocks += std::ssize(part.part.to);
  }
  return blocks * shelves.geometry().block_bytes();
}

void Arrivals::Load::note(int layers, Status status) {
  {
    const std::lock_guard lock(mutex_);
    layers_ = layers;
    status_ = std::move(status);
  }
  progress_.notify_all();
}

Arrivals::Arrivals(kv_store::PagedStore& shelves, const kv::Ledger& ledger, Post post)
    : shelves_(shelves), ledger_(ledger), post_(std::move(post)) {}

void Arrivals::stop() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  work_arrived_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Arrivals::start(std::vector<kv_store::KVFilePart> parts,
                     std::function<void(const Status&)> done) {
  UnderWay& added = under_way_.emplace_back();
  for (const kv_store::KVFilePart& part : parts) {
    for (const BlockId block : part.part.to) {
      added.blocks.insert(block.value);
    }
  }
  added.load = std::make_shared<Load>(std::move(parts), shelves_.geometry().layers);
  added.done = std::move(done);
  if (!thread_.joinable()) {
    thread_ = device::start_thread([this] { run(); });
  }
  if (!thread_.joinable()) {
    read(added.load);  // now, then
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(added.load);
  }
  work_arrived_.notify_one();
}

// The loading thread.
void Arrivals::run() {
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

// Whoever has waited for all of a load finds it finished: that letter is sent before the last layer
// is noted.
void Arrivals::read(const LoadRef& load) {
  const int layers = load->all_layers_;
  Readers readers(*load, shelves_);
  Status status;
  for (int layer = 0; layer < layers && status.ok(); ++layer) {
    const bool closing = [this] {
      const std::lock_guard lock(mutex_);
      return closing_;
    }();
    status = closing ? Status(ErrorCode::kClosed, "the engine is closed") : readers.wait(layer);
    if (!status.ok()) {
      readers.stop();  // before somebody frees the blocks
    }
    if (layer + 1 == layers || !status.ok()) {
      post_([this, load, status] { finish(load, status); });
    }
    load->note(layer + (status.ok() ? 1 : 0), status);
  }
}

void Arrivals::finish(const LoadRef& load, const Status& status) {
  const auto found = std::ranges::find(under_way_, load, &UnderWay::load);
  UnderWay ended = std::move(*found);
  under_way_.erase(found);
  std::erase_if(bad_, [&](const auto& known) {
    return !(ledger_.current(known.second.block.id) == known.second.block);
  });
  if (!status.ok()) {
    for (const std::int32_t block : ended.blocks) {
      bad_.insert_or_assign(block, Bad{.block = ledger_.current({block}), .why = status});
    }
  }
  ended.done(status);
}

std::vector<Arrivals::LoadRef> Arrivals::filling(std::span<const BlockId> blocks) const {
  std::vector<LoadRef> loads;
  for (const UnderWay& load : under_way_) {
    if (std::ranges::any_of(blocks, [&](BlockId id) { return load.blocks.contains(id.value); })) {
      loads.push_back(load.load);
    }
  }
  return loads;
}

Status Arrivals::outcome(std::span<const BlockId> blocks) const {
  for (const LoadRef& load : filling(blocks)) {
    QUIRE_TRY_STATUS(load->wait());
  }
  return check(blocks);
}

Status Arrivals::check(std::span<const BlockId> blocks) const {
  for (const BlockId block : blocks) {
    const auto bad = bad_.find(block.value);
    if (bad != bad_.end() && ledger_.current(block) == bad->second.block) {
      return bad->second.why;
    }
  }
  return {};
}

void Arrivals::before_copy(const kv::BlockCopy& copy) {
  const Status status = outcome({&copy.from, 1});
  if (!status.ok()) {
    bad_.insert_or_assign(copy.to.value, Bad{.block = ledger_.current(copy.to), .why = status});
  }
}

}  // namespace quire::engine
