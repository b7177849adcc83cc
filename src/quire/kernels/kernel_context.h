// KernelContext: the kernel table of the chosen instruction set and the thread pool. Every call of
// a CPU kernel takes one.
#pragma once

#include "quire/device/cpu/thread_pool.h"

namespace quire::kernels {

struct KernelTable;  // cpu/kernel_table.h

// Borrows both; they outlive it.
struct KernelContext {
  const KernelTable* table = nullptr;
  device::ThreadPool* pool = nullptr;
};

}  // namespace quire::kernels
