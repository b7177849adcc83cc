// Graph: work of a stream, recorded once and launched as a whole. A launch costs the host a few
// microseconds however many kernels there are, and the device less between them.
#pragma once

#include <functional>
#include <memory>

#include "quire/device/cuda/cuda_stream.h"
#include "quire/result.h"

struct CUgraphExec_st;  // *CUgraphExec_st is cudaGraphExec_t

namespace quire::device::cuda {

class Graph {
 public:
  // Records what `queue` puts on `stream` instead of running it. `queue` neither waits nor
  // allocates, and must have run once before: what the runtime loads at first use can't be loaded
  // meanwhile. Arguments of kernels are recorded by value, so what they point to must outlive the
  // graph. kDevice, or the error of `queue`. Milliseconds.
  [[nodiscard]] static Result<Graph> capture(const CudaStream& stream,
                                             const std::function<Status()>& queue);

  // Queues it on `stream`. One launch at a time.
  [[nodiscard]] Status launch(const CudaStream& stream) const;

 private:
  struct Destroy {
    void operator()(CUgraphExec_st* graph) const;
  };
  explicit Graph(CUgraphExec_st* graph) : graph_(graph) {}
  std::unique_ptr<CUgraphExec_st, Destroy> graph_;
};

}  // namespace quire::device::cuda
