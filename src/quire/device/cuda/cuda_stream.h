// Owners of streams and events. No CUDA header: the runtime's handles are pointers to these types.
#pragma once

#include <memory>

#include "quire/result.h"

struct CUstream_st;  // *CUstream_st is cudaStream_t
struct CUevent_st;   // *CUevent_st is cudaEvent_t

namespace quire::device::cuda {

// A point in the work of a stream. Belongs to the device that was current when it was made.
class Event {
 public:
  // Creates an event. `timed` events cost a little more and can be subtracted.
  [[nodiscard]] static Result<Event> create(bool timed = false);

  [[nodiscard]] CUevent_st* get() const { return event_.get(); }
  // Waits, in this thread, until the work before the event is done. Its errors come out here.
  [[nodiscard]] Status synchronize() const;
  // Returns whether the work before the event is done.
  [[nodiscard]] Result<bool> done() const;
  // Returns the milliseconds from `start` to this event. Both must be timed and done.
  [[nodiscard]] Result<float> milliseconds_since(const Event& start) const;

 private:
  struct Destroy {
    void operator()(CUevent_st* event) const;
  };
  explicit Event(CUevent_st* event) : event_(event) {}
  std::unique_ptr<CUevent_st, Destroy> event_;
};

// An ordered queue of work of a device; does not wait for the default stream.
class CudaStream {
 public:
  [[nodiscard]] static Result<CudaStream> create();

  [[nodiscard]] CUstream_st* get() const { return stream_.get(); }
  // Waits, in this thread, for all work queued so far. Its errors come out here.
  [[nodiscard]] Status synchronize() const;
  // Marks this point of the queue.
  [[nodiscard]] Status record(const Event& event) const;
  // Makes work queued from here on begin after `event`.
  [[nodiscard]] Status wait(const Event& event) const;

 private:
  struct Destroy {
    void operator()(CUstream_st* stream) const;
  };
  explicit CudaStream(CUstream_st* stream) : stream_(stream) {}
  std::unique_ptr<CUstream_st, Destroy> stream_;
};

}  // namespace quire::device::cuda
