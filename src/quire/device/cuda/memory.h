// The driver's allocators as sources of a MemoryPool. No CUDA header.
#pragma once

#include <memory>

#include "quire/device/memory_source.h"

namespace quire::device::cuda {

// Makes a source of memory of GPU `ordinal` (cudaMalloc).
[[nodiscard]] std::unique_ptr<MemorySource> make_device_memory(int ordinal);

// Makes a source of page-locked host memory that every GPU reads at full speed (cudaHostAlloc,
// portable).
[[nodiscard]] std::unique_ptr<MemorySource> make_pinned_memory();

// Makes a source of unified memory: pages move to whoever touches them. Only for small blocks that
// both sides share; nothing in Quire takes it unasked, and never more of it than the GPU has free.
[[nodiscard]] std::unique_ptr<MemorySource> make_managed_memory(int ordinal);

}  // namespace quire::device::cuda
