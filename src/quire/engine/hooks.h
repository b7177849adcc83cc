// Three interfaces that the engine calls, and what stands above it implements.
//
// Thread rule: the engine thread calls all functions, unless one says otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/base/ids.h"
#include "quire/kv/block_pool.h"
#include "quire/kv/format.h"
#include "quire/kv/types.h"
#include "quire/result.h"

namespace quire::engine {

// Says whether the KV in blocks may be read. By default it always may.
class KvGate {
 public:
  // KV on its way into blocks, layer after layer. Any thread.
  class Load {
   public:
    // Blocks until layers 0 to `layer` have been read or have failed.
    virtual void wait(int layer) = 0;

   protected:
    ~Load() = default;
  };
  using LoadRef = std::shared_ptr<Load>;

  // Returns whether every block may be read: then nobody asks the functions below.
  [[nodiscard]] virtual bool idle() const { return true; }
  // Appends the loads that fill some of `blocks`, which have one format.
  virtual void append_loads(std::span<const BlockId> /*blocks*/, kv::FormatId /*format*/,
                            std::vector<LoadRef>& /*loads*/) const {}
  // Blocks until all of `blocks` are filled. Returns the error that spoilt one of them.
  [[nodiscard]] virtual Status outcome(std::span<const BlockId> /*blocks*/,
                                       kv::FormatId /*format*/) const {
    return {};
  }
  // Blocks until the block that is copied may be read.
  virtual void before_copy(const kv::BlockCopy& /*copy*/) {}

  KvGate() = default;
  KvGate(const KvGate&) = delete;
  KvGate& operator=(const KvGate&) = delete;
  virtual ~KvGate() = default;
};

// Holds blocks for something else than requests. By default it holds none.
class BlockHolders {
 public:
  // Returns whether the segment is held: a call that failed does not drop it.
  [[nodiscard]] virtual bool owns(kv::SegmentId /*segment*/) const { return false; }
  // Blocks until a holder has given blocks back. Returns false when none will. Any thread.
  [[nodiscard]] virtual bool await_blocks() { return false; }
  // Lets partly filled blocks that rest share blocks, and orders copies. Makes at most so many
  // moves. Returns the number of blocks that become free.
  virtual std::int32_t coalesce(std::int32_t /*most_moves*/) { return 0; }
  // Notes that a copy that was ordered has failed.
  virtual void copies_failed() {}
  // Notes that the session was closed by its user.
  virtual void session_closed(kv::SessionRef /*session*/) {}
  // Notes that the session was forgotten, because many others were named since.
  virtual void session_forgotten(kv::SessionRef /*session*/) {}

  BlockHolders() = default;
  BlockHolders(const BlockHolders&) = delete;
  BlockHolders& operator=(const BlockHolders&) = delete;
  virtual ~BlockHolders() = default;
};

// Hears of every step that was computed.
class StepListener {
 public:
  struct Step {
    std::int64_t rows = 0;  // tokens that went through the model
    double forward_seconds = 0;
    bool alone = true;  // nothing else took a part of that time: no file, no step before it
  };
  virtual void computed(const Step& step) = 0;

 protected:
  ~StepListener() = default;
};

// Borrows all of them, which must outlive the engine's thread. Gate and holders are never null once
// attached.
struct Hooks {
  KvGate* kv_gate = nullptr;
  BlockHolders* holders = nullptr;
  std::vector<StepListener*> listeners;
};

}  // namespace quire::engine
