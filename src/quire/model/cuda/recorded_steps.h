// RecordedSteps: the kernels of small steps, each shape of a step recorded once as a graph.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/device/cuda/graph.h"
#include "quire/model/cuda/device_step.h"
#include "quire/result.h"

namespace quire::model::cuda {

class RecordedSteps {
 public:
  explicit RecordedSteps(device::cuda::DeviceContext& device) : device_(&device) {}

  // Queues a step of this shape. Calls `queue` the first time that it sees the shape, records it
  // the second time, and launches a graph from then on. A shape that cannot be recorded stays with
  // `queue`.
  [[nodiscard]] Status run(const StepShape& shape, const std::function<Status()>& queue);

  // Makes room for `size` elements in a buffer whose address the graphs know. The graphs go when it
  // moves.
  template <class T>
  [[nodiscard]] Status reserve(device::cuda::DeviceBuffer<T>& buffer, std::size_t size) {
    if (buffer.size() >= size && buffer.data() != nullptr) {
      return {};
    }
    shapes_.clear();
    buffer = {};
    QUIRE_TRY(buffer, device::cuda::DeviceBuffer<T>::make(device_->device_pool(),
                                                          std::max<std::size_t>(size, 1)));
    return {};
  }

 private:
  // State of a shape after its first step.
  struct Recorded {
    bool tried = false;
    std::optional<device::cuda::Graph> graph;
  };

  device::cuda::DeviceContext* device_;
  std::map<StepShape, Recorded> shapes_;
};

}  // namespace quire::model::cuda
