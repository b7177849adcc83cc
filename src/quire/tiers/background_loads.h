// BackgroundLoads: KV on its way from files into blocks that sequences have already. A thread reads
// layer after layer. Computing begins when the first layer is there and waits for each other one.
// Several threads read for a device, each a layer of its own.
//
// A block whose range of a load failed is bad until it is free again, and so is every copy of it.
// A request that computed over a bad block fails with the error of the range.
//
// Thread rule: the engine's thread, but for the functions of a `Load`, which any thread may call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "quire/base/ids.h"
#include "quire/device/host_buffer.h"
#include "quire/engine/hooks.h"
#include "quire/engine/log.h"
#include "quire/engine/tasks.h"
#include "quire/interrupt.h"
#include "quire/kv/block_parts.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/ledger.h"
#include "quire/kv/types.h"
#include "quire/kv_store/kv_file.h"
#include "quire/kv_store/paged_pool.h"
#include "quire/result.h"

namespace quire::tiers {

// Bytes from which on several threads read layers: one core copies and hashes more slowly than
// memory and disk give.
inline constexpr std::int64_t kParallelReadBytes = std::int64_t{1} << 20;
inline constexpr int kMostReaders = 4;

class BackgroundLoads final : public engine::KvGate {
 public:
  // Ranges that are read together, layer after layer. A range that fails ends alone.
  class Load final : public engine::KvGate::Load {
   public:
    Load(std::vector<kv_store::KVFileRange> ranges, int layers)
        : ranges_(std::move(ranges)), all_layers_(layers), failures_(ranges_.size()) {}
    // Blocks until layers 0 to `layer` have been read or have failed.
    void wait(int layer) override;
    // Waits at most `at_most` for all layers. Returns whether they have ended.
    [[nodiscard]] bool wait_end(std::chrono::milliseconds at_most);
    // Waits for all layers. The error of a range, of all or of those that fill some of `blocks`.
    [[nodiscard]] Status outcome();
    [[nodiscard]] Status outcome(std::span<const BlockId> blocks, kv::FormatId format = {});
    [[nodiscard]] Status outcome(std::span<const kv::BlockPart> parts);

   private:
    friend class BackgroundLoads;
    // Reads a layer. `staging` is the reading thread's, for a layer of the largest range so far.
    void read_layer(int layer, kv_store::PagedPool& pool, device::HostBuffer& staging);
    [[nodiscard]] std::int64_t bytes(const kv_store::PagedPool& pool) const;
    [[nodiscard]] bool has_failed(std::size_t range);
    void fail(std::size_t range, Status why);
    void fail_all(const Status& why);
    // Returns the first failure so far of ranges that `of` accepts. Does not wait.
    [[nodiscard]] Status failure(const std::function<bool(const kv_store::KVFileRange&)>& of);
    void note(int layers);

    const std::vector<kv_store::KVFileRange> ranges_;
    const int all_layers_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable progress_;
    int layers_ = 0;                // layers that have been read
    double seconds_ = 0;            // seconds that reading took
    engine::Tasks ended_;           // task that tells the engine's thread of the end
    std::vector<Status> failures_;  // [ranges]
  };
  using LoadRef = std::shared_ptr<Load>;
  // Waits until all have ended. kCancelled where the caller interrupts that, which the loads do not
  // mind.
  [[nodiscard]] static Status await(std::span<const LoadRef> loads, const Interrupt& interrupted);
  using Post = std::function<void(engine::Tasks)>;
  // A function that hears how a load has ended, and how long its reading took. It is called again
  // where it throws std::bad_alloc.
  using Done = std::function<void(Load& load, double seconds)>;

  // Borrows `pool` and `ledger`. `post` sends a task to the engine's thread. `log` hears of KV that
  // could not be read.
  BackgroundLoads(kv_store::PagedPool& pool, const kv::Ledger& ledger, Post post,
                  engine::Log log = {});
  ~BackgroundLoads() override { stop(); }
  BackgroundLoads(const BackgroundLoads&) = delete;
  BackgroundLoads& operator=(const BackgroundLoads&) = delete;

  // Abandons what has not been read. When no other call can come any more.
  void stop();

  // Describes one load. `done` is called on the engine's thread when all ranges have been read;
  // nobody may free their blocks before that.
  struct Order {
    std::vector<kv_store::KVFileRange> ranges;
    Done done;
  };
  // Reads after what was started before, at once where the system grants no thread. Starts all
  // loads, or none where it throws std::bad_alloc.
  void start(std::vector<Order> orders);

  // Tells whether nothing is under way and nothing is bad. Then the functions below have nothing to
  // say.
  [[nodiscard]] bool idle() const override { return under_way_.empty() && bad_.empty(); }
  // Loads that fill some of these blocks, which have one format.
  [[nodiscard]] std::vector<LoadRef> filling(std::span<const BlockId> blocks,
                                             kv::FormatId format = {}) const;
  [[nodiscard]] std::vector<LoadRef> filling(std::span<const kv::BlockPart> parts) const;
  void append_loads(std::span<const BlockId> blocks, kv::FormatId format,
                    std::vector<engine::KvGate::LoadRef>& loads) const override;
  // Returns the error that spoilt one of these blocks.
  [[nodiscard]] Status check(std::span<const BlockId> blocks, kv::FormatId format = {}) const;
  [[nodiscard]] Status check(std::span<const kv::BlockPart> parts) const;
  // Blocks until the loads that fill them have ended. Returns the error that spoilt one of them.
  [[nodiscard]] Status outcome(std::span<const BlockId> blocks,
                               kv::FormatId format = {}) const override;
  [[nodiscard]] Status outcome(std::span<const kv::BlockPart> parts) const;
  // Blocks until the block that is copied is there.
  void before_copy(const kv::BlockCopy& copy) override;

 private:
  struct UnderWay {
    LoadRef load;
    std::unordered_set<std::int64_t> blocks;  // keys
    Done done;
  };
  struct Bad {
    kv::BlockRef block;  // bad while it is this one
    Status why;
  };
  class Readers;
  // Returns what names a block among those of all formats.
  [[nodiscard]] static std::int64_t key_of(BlockId block, kv::FormatId format) {
    return std::int64_t{format.value} << 32 | block.value;
  }
  void run();
  void read(const LoadRef& load);
  void read_layers(const LoadRef& load);
  void tell_failure(Load& load) const;
  void finish(const Load* ended);

  kv_store::PagedPool& pool_;
  const kv::Ledger& ledger_;
  const Post post_;
  const engine::Log log_;
  std::vector<UnderWay> under_way_;
  std::unordered_map<std::int64_t, Bad> bad_;  // by key

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_arrived_;
  std::list<LoadRef> queue_;
  bool closing_ = false;
  std::thread thread_;  // starts with the first load
};

}  // namespace quire::tiers
