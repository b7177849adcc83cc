// RecordedSteps: the kernels of small steps, each shape of a step recorded once as a graph.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "quire/device/cuda/device_context.h"
#include "quire/device/cuda/graph.h"
#include "quire/model/cuda/step.h"
#include "quire/result.h"

namespace quire::model::cuda {

class RecordedSteps {
 public:
  explicit RecordedSteps(device::cuda::DeviceContext& device) : device_(&device) {}

  // Queues a step of this shape: by calling `queue` the first time that the shape is seen, recorded
  // the second time, as a graph from then on. A shape that cannot be recorded stays with `queue`.
  [[nodiscard]] Status run(const StepShape& shape, const std::function<Status()>& queue);

  // When addresses change that the graphs know.
  void forget() { shapes_.clear(); }

 private:
  // What is known of a shape after its first step.
  struct Recorded {
    bool tried = false;
    std::optional<device::cuda::Graph> graph;
  };

  device::cuda::DeviceContext* device_;
  std::map<StepShape, Recorded> shapes_;
};

}  // namespace quire::model::cuda
