#include "quire/device/cuda/cuda_stream.h"

#include <cuda_runtime_api.h>
#include <driver_types.h>

#include "quire/device/cuda/cuda_error.h"
#include "quire/result.h"

namespace quire::device::cuda {

Result<Event> Event::create(bool timed) {
  cudaEvent_t event = nullptr;
  QUIRE_CUDA_TRY(
      cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  return Event(event);
}

// Destroys the event. It fails only when the device is lost, and the handle with it.
void Event::Destroy::operator()(CUevent_st* event) const { (void)cudaEventDestroy(event); }

Status Event::synchronize() const {
  return to_status(cudaEventSynchronize(event_.get()), "cudaEventSynchronize");
}

Result<bool> Event::done() const {
  const cudaError_t code = cudaEventQuery(event_.get());
  if (code == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  QUIRE_TRY_STATUS(to_status(code, "cudaEventQuery"));
  return true;
}

Result<float> Event::milliseconds_since(const Event& start) const {
  float milliseconds = 0;
  QUIRE_CUDA_TRY(cudaEventElapsedTime(&milliseconds, start.get(), event_.get()));
  return milliseconds;
}

Result<CudaStream> CudaStream::create() {
  cudaStream_t stream = nullptr;
  QUIRE_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return CudaStream(stream);
}

void CudaStream::Destroy::operator()(CUstream_st* stream) const { (void)cudaStreamDestroy(stream); }

Status CudaStream::synchronize() const {
  return to_status(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
}

Status CudaStream::record(const Event& event) const {
  return to_status(cudaEventRecord(event.get(), stream_.get()), "cudaEventRecord");
}

Status CudaStream::wait(const Event& event) const {
  return to_status(cudaStreamWaitEvent(stream_.get(), event.get()), "cudaStreamWaitEvent");
}

}  // namespace quire::device::cuda
