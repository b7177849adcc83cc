// MassProbe: how much attention the rows of a step's entries give to each token, summed over heads
// and layers, for ForwardProbe::mass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "quire/attention/cuda/args.h"
#include "quire/device/cuda/device_buffer.h"
#include "quire/device/cuda/device_context.h"
#include "quire/model/cuda/device_step.h"
#include "quire/model/forward_batch.h"
#include "quire/result.h"

namespace quire::model::cuda {

class MassProbe {
 public:
  explicit MassProbe(device::cuda::DeviceContext& device) : device_(&device) {}

  // Makes zeroed room for what the probe wants.
  [[nodiscard]] Status begin(const ForwardBatch& batch, const ForwardProbe& probe);
  // Queues what a layer adds to the entries of one format, behind its attention, of which `args`
  // are with `lse`.
  [[nodiscard]] Status weigh(const ForwardBatch& batch, const WindowStep& window,
                             const FormatPlan& plan, const attention::cuda::AttentionArgs& args,
                             const DeviceStep& step);
  // Waits, and adds all to the probe's.
  [[nodiscard]] Status end(ForwardProbe& probe);

 private:
  // Mass that a probe wants of one entry.
  struct EntryMass {
    std::size_t entry = 0;
    std::int32_t first_query = 0;  // first query of the entry, among those of its format
    std::int32_t first_block = 0;  // index into the blocks of its format
    std::size_t first_token = 0;   // index of its first token's score in `mass_`
  };

  device::cuda::DeviceContext* device_;
  std::vector<EntryMass> wanted_;
  device::cuda::DeviceBuffer<double> mass_;  // scores of all entries that the probe asks for
};

}  // namespace quire::model::cuda
