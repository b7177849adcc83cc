// Timing of GPU work: graphs, so that launches by the host do not count.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "quire/device/cuda/cuda_error.h"
#include "quire/device/cuda/cuda_stream.h"
#include "quire/device/cuda/device_context.h"
#include "quire/result.h"

namespace quire::bench {

[[noreturn]] inline void fail(const Error& error) {
  std::fprintf(stderr, "%s: %s\n", error_code_name(error.code), error.message.c_str());
  std::exit(1);
}

inline void must(const Status& status) {
  if (!status.ok()) {
    fail(status.error());
  }
}

inline void must(cudaError_t code) {
  must(device::cuda::to_status(code, "CUDA call of the benchmark"));
}

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    fail(result.error());
  }
  return std::move(result).value();
}

// Median microseconds of one of `nodes` graph nodes that `record` puts on the stream.
inline double microseconds(device::cuda::DeviceContext& context, int nodes,
                           const std::function<void(int)>& record) {
  constexpr int kWarmups = 3, kRuns = 15;
  CUstream_st* const stream = context.compute_stream().get();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < nodes; ++i) {
    record(i);
  }
  must(cudaStreamEndCapture(stream, &graph));
  must(cudaGraphInstantiate(&ready, graph, 0));
  const device::cuda::Event start = must(device::cuda::Event::create(true)),
                            end = must(device::cuda::Event::create(true));
  std::vector<float> times;
  for (int run = 0; run < kWarmups + kRuns; ++run) {
    must(context.compute_stream().record(start));
    must(cudaGraphLaunch(ready, stream));
    must(context.compute_stream().record(end));
    must(end.synchronize());
    if (run >= kWarmups) {
      times.push_back(must(end.milliseconds_since(start)));
    }
  }
  must(cudaGraphExecDestroy(ready));
  must(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2] * 1e3 / nodes;
}

}  // namespace quire::bench
