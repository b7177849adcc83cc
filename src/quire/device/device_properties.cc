#include "quire/device/device_properties.h"

#include <string>

#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::device {

Status check_supported(const DeviceProperties& properties) {
  if (properties.compute_major >= 8) {
    return {};
  }
  return {ErrorCode::kDevice, base::str_cat("device ", properties.ordinal, " (", properties.name,
                                            ") has compute capability ", properties.compute_major,
                                            ".", properties.compute_minor,
                                            ", at least 8.0 is needed; choose another "
                                            "device or compute on the CPU")};
}

std::string kernels_name(const DeviceProperties& properties, bool deterministic) {
  // Counts changes of the kernels that change bits. 3: attention keeps the parts of a row in 16
  // bits on Hopper. 4: parts are of 1,024 tokens.
  constexpr int kArithmetic = 4;
  return base::str_cat("cuda-", properties.compute_major, ".", properties.compute_minor, "-",
                       kArithmetic, deterministic ? "" : "-fast");
}

}  // namespace quire::device
