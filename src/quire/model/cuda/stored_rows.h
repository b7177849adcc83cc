// StoredRows: the rows of a step that codes cannot hold, and the errors of the others' codes. Steps
// that store plain numbers have neither.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/kernels/kv_codes.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/cuda/recorded_steps.h"
#include "quire/result.h"

namespace quire::model::cuda {

class StoredRows {
 public:
  explicit StoredRows(device::cuda::DeviceContext& device) : device_(&device) {}

  // Makes room for a step of this shape. `recorded` knows the addresses.
  [[nodiscard]] Status reserve(const StepShape& shape, RecordedSteps& recorded);
  // Queues the start of a step, with no row refused and errors of 0.
  [[nodiscard]] Status clear(const StepShape& shape) const;

  // Returns [rows] on the device: 1 where codes cannot hold the row's KV; null where plain numbers
  // are stored.
  [[nodiscard]] std::uint8_t* refused(const StepShape& shape) const;
  // Returns [rows] on the device; null where nobody measures.
  [[nodiscard]] kernels::KVErrorSums* errors(const StepShape& shape) const;

  // Queues the copies of a step's first `rows` rows, before its end is marked. fetch() adds to
  // `errors`. Precondition: at most one other step is not fetched yet.
  [[nodiscard]] Status send(std::size_t rows, std::span<kernels::KVErrorSums> errors,
                            const StepShape& shape);
  // Forgets the step that was sent last.
  void take_back();
  // Fetches the step that was sent first. Precondition: it has ended.
  void fetch();
  // Forgets all steps that were sent, without waiting.
  void forget_sent();

  // Returns the rows of the last fetch; empty where none was refused.
  [[nodiscard]] std::span<const std::uint8_t> refused() const { return last_refused_; }
  void forget_refused() { last_refused_ = {}; }

 private:
  // A step that was sent.
  struct Sent {
    std::size_t rows = 0;  // 0: a step of plain numbers
    device::cuda::PinnedBuffer<std::uint8_t> refused;
    device::cuda::PinnedBuffer<kernels::KVErrorSums> errors;
    std::span<kernels::KVErrorSums> increased;
  };

  device::cuda::DeviceContext* device_;
  device::cuda::DeviceBuffer<std::uint8_t> refused_;
  device::cuda::DeviceBuffer<kernels::KVErrorSums> errors_;
  std::array<Sent, 2> sent_;  // in turn
  std::size_t next_ = 0;      // index into sent_
  std::size_t num_sent_ = 0;
  std::span<const std::uint8_t> last_refused_;
};

}  // namespace quire::model::cuda
