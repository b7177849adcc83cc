// Buffers of the two pools that a DeviceContext owns.
#pragma once

#include "quire/device/pool_buffer.h"

namespace quire::device::cuda {

template <class T>
using DeviceBuffer = PoolBuffer<T, DeviceMemoryTag>;

template <class T>
using PinnedBuffer = PoolBuffer<T, PinnedMemoryTag>;

}  // namespace quire::device::cuda
