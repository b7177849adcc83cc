#include "refused_work.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace quire {
namespace {

std::atomic<std::int64_t> left = -1;

bool refused() { return left.load() >= 0 && left.fetch_sub(1) == 0; }

}  // namespace

std::int64_t refuse_work(std::int64_t number) { return left.exchange(number); }

}  // namespace quire

// The linker gives the runtime's own functions these names.
extern "C" {

cudaError_t __real_cudaGetLastError();
cudaError_t __wrap_cudaGetLastError() {
  const cudaError_t code = __real_cudaGetLastError();
  return quire::refused() ? cudaErrorLaunchFailure : code;
}

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                       void** arguments);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                       void** arguments) {
  return quire::refused() ? cudaErrorLaunchFailure
                          : __real_cudaLaunchKernelExC(config, function, arguments);
}

cudaError_t __real_cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                   cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, std::size_t bytes,
                                   cudaMemcpyKind kind, cudaStream_t stream) {
  return quire::refused() ? cudaErrorUnknown
                          : __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}

cudaError_t __real_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return quire::refused() ? cudaErrorUnknown : __real_cudaGraphLaunch(graph, stream);
}

cudaError_t __real_cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return quire::refused() ? cudaErrorUnknown : __real_cudaEventRecord(event, stream);
}

cudaError_t __real_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event) {
  const cudaError_t code = __real_cudaEventSynchronize(event);
  return quire::refused() ? cudaErrorUnknown : code;
}

cudaError_t __real_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream) {
  const cudaError_t code = __real_cudaStreamSynchronize(stream);
  return quire::refused() ? cudaErrorUnknown : code;
}

}  // extern "C"
