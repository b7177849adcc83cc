// Arena: storage side by side. Buffers that are made one after the other and freed together share
// huge pages. A buffer of less than 2 MiB, and the end of every other, get none by themselves. A
// product of few rows with weights in small pages waits for their addresses: 8 % of all products of
// a 160 M model.
#pragma once

#include <cstddef>
#include <memory>

#include "quire/device/aligned_buffer.h"

namespace quire::device {

// One thread at a time. Memory that it gave may outlive it.
class Arena {
 public:
  // Takes memory from the system by so many bytes, or by what is asked for if that is more. Memory
  // that was never written to costs addresses only.
  explicit Arena(std::size_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

  // Returns uninitialised, 64-byte aligned memory, or null when the system refuses. The memory goes
  // back when all that lies in its chunk has been let go, and the arena is gone or has begun
  // another.
  [[nodiscard]] std::shared_ptr<std::byte> allocate(std::size_t bytes);

 private:
  std::size_t chunk_bytes_;
  std::shared_ptr<AlignedBuffer<std::byte>> chunk_;
  std::size_t used_ = 0;  // used bytes of the chunk
};

}  // namespace quire::device
