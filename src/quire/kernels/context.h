// Context: what every CPU kernel call needs, passed explicitly: the table of the chosen instruction
// set and the thread pool.
#pragma once

#include "quire/device/cpu/thread_pool.h"

namespace quire::kernels {

struct KernelTable;  // cpu/kernel_table.h

struct Context {
  const KernelTable* table = nullptr;
  device::ThreadPool* pool = nullptr;  // borrowed
};

}  // namespace quire::kernels
