// Peaks: the most that this machine can do, measured in the run that asks.
#pragma once

#include <filesystem>
#include <map>
#include <optional>

#include "quire/kernels/cpu/kernel_table.h"
#include "quire/kernels/device_ceilings.h"
#include "quire/kernels/kernel_context.h"
#include "quire/kernels/packed_weights.h"
#include "quire/result.h"

namespace quire::diagnostics {

// Measures again whenever it is asked, and keeps the best of the run. So a busy moment of a shared
// machine makes no floor that is beaten. One caller at a time; the machine should be idle.
class Peaks {
 public:
  // Measures peaks as they are asked for. `device` are those of the accelerator that computes.
  explicit Peaks(const kernels::KernelContext& context,
                 const std::optional<kernels::DeviceCeilings>& device = {})
      : context_(context), device_(device) {}
  Peaks(const Peaks&) = delete;
  Peaks& operator=(const Peaks&) = delete;
  virtual ~Peaks() = default;

  // Returns the FLOP/s of the products that matrices of a format make with so many rows.
  [[nodiscard]] double flops(kernels::WeightFormat format, double rows);
  // Returns the FLOP/s of one kind of product, which a kernel of the instruction set runs.
  [[nodiscard]] double flops(kernels::Product product);
  // Returns the seconds in which the computing device reads `bytes` once, of many times. A set that
  // the caches of a CPU hold is read from there.
  [[nodiscard]] virtual double read_seconds(double bytes);
  // Returns the seconds in which the bytes of a file come from the page cache to the computing
  // device. All threads read them or one does, whichever is faster. The link of a GPU counts where
  // it takes longer. kIo.
  [[nodiscard]] Result<double> path_seconds(const std::filesystem::path& file) const;

  [[nodiscard]] const kernels::KernelContext& context() const { return context_; }
  [[nodiscard]] bool on_device() const { return device_.has_value(); }

 private:
  // Returns the FLOP/s of one kind of product on this CPU.
  [[nodiscard]] virtual double measure(kernels::Product product);

  const kernels::KernelContext context_;
  const std::optional<kernels::DeviceCeilings> device_;
  std::map<kernels::Product, double> flops_;
  std::map<double, double> read_rates_;  // bytes per second by bytes
};

}  // namespace quire::diagnostics
