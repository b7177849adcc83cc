// Says how much work one call on text may take. Normalizers, regexes, models, post-processors,
// decoders and chat templates count in one base::WorkMeter. The limits are far above what real
// files need and grow with the input. So only files that make little text into endless work meet
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quire/base/work_meter.h"

namespace quire::text {

inline constexpr base::WorkLimits kWorkOfCall = {.steps = 40'000'000,
                                                 .bytes = std::int64_t{16} << 20};
// Work for each byte of the input: a text, the JSON of messages, the spelling of a token.
inline constexpr base::WorkLimits kWorkPerByte = {.steps = 64, .bytes = 64};

// Tokens count as so many bytes of input when they are decoded.
inline constexpr std::size_t kInputBytesPerToken = 16;

[[nodiscard]] inline base::WorkLimits work_for_bytes(std::size_t input_bytes) {
  const auto bytes = static_cast<std::int64_t>(input_bytes);
  return {.steps = kWorkPerByte.steps * bytes, .bytes = kWorkPerByte.bytes * bytes};
}

}  // namespace quire::text
