// A short run of every kernel of one instruction set against double precision. Finds a machine or a
// build whose instructions do not do what detection promised.
#pragma once

#include "quire/device/cpu/isa.h"
#include "quire/result.h"

namespace quire::kernels {

struct KernelTable;  // cpu/kernel_table.h

// Returns Ok, kUnsupported when this machine cannot run `isa`, or kDevice naming the kernel, the
// error and its bound. Under 200 ms; starts and stops a pool of its own. Any thread. Throws
// std::bad_alloc.
[[nodiscard]] Status self_test(device::Isa isa);

// Tests the functions of any table that this machine can run, with the errors above.
[[nodiscard]] Status self_test(const KernelTable& table);

}  // namespace quire::kernels
