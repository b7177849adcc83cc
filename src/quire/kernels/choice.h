// Choice: what decides a row's token where its logits are taken as they are. Plain, so that it can
// be sent to a device.
#pragma once

#include <cstdint>

namespace quire::kernels {

// The rule is that of include/quire/sampling.h; `uniform` in [0, 1) is the number that decides.
struct Choice {
  double temperature = 0;  // 0: the most likely token
  double top_p = 1;
  double min_p = 0;
  double uniform = 0;
  std::int32_t top_k = 0;   // 0: off
  std::int32_t wanted = 0;  // 0: the row's token is chosen elsewhere
};

}  // namespace quire::kernels
