#include "quire/model/cuda/recorded_steps.h"

#include <cstddef>
#include <functional>
#include <utility>

#include "quire/device/cuda/device_context.h"
#include "quire/device/cuda/graph.h"
#include "quire/model/cuda/device_step.h"
#include "quire/result.h"

namespace quire::model::cuda {
namespace {

constexpr std::size_t kMostShapes = 64;

}  // namespace

Status RecordedSteps::run(const StepShape& shape, const std::function<Status()>& queue) {
  const auto known = shapes_.find(shape);
  if (known == shapes_.end()) {
    if (shapes_.size() == kMostShapes) {
      shapes_.clear();  // those in use are recorded again
    }
    QUIRE_TRY_STATUS(queue());
    shapes_.emplace(shape, Recorded());
    return {};
  }
  Recorded& recorded = known->second;
  if (!recorded.tried) {
    recorded.tried = true;
    if (auto graph = device_->record(queue); graph.ok()) {
      recorded.graph.emplace(std::move(graph).value());
    }
  }
  return recorded.graph ? recorded.graph->launch(device_->compute_stream()) : queue();
}

}  // namespace quire::model::cuda
