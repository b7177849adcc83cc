#include "quire/device/cuda/graph.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <functional>
#include <memory>
#include <type_traits>

#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/result.h"

namespace quire::device::cuda {

Result<Graph> Graph::capture(const CudaStream& stream, const std::function<Status()>& queue) {
  // Other threads may allocate meanwhile.
  QUIRE_CUDA_TRY(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  const Status queued = queue();
  cudaGraph_t recorded = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.get(), &recorded);
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, cudaError_t (*)(cudaGraph_t)> owner(
      recorded, &cudaGraphDestroy);
  QUIRE_TRY_STATUS(queued);
  QUIRE_TRY_STATUS(to_status(ended, "cudaStreamEndCapture"));
  cudaGraphExec_t made = nullptr;
  QUIRE_CUDA_TRY(cudaGraphInstantiate(&made, recorded, 0));
  return Graph(made);
}

// Destroys the graph. It fails only when the device is lost, and the graph with it.
void Graph::Destroy::operator()(CUgraphExec_st* graph) const { (void)cudaGraphExecDestroy(graph); }

Status Graph::launch(const CudaStream& stream) const {
  return to_status(cudaGraphLaunch(graph_.get(), stream.get()), "cudaGraphLaunch");
}

}  // namespace quire::device::cuda
