// WeightFormat: the forms of packed weights, whose layouts packed_weights.h describes.
#pragma once

#include <cstdint>

namespace quire::kernels {

inline constexpr int kPanelColumns = 32;
inline constexpr int kStepDepth = 32;

enum class WeightFormat : std::uint8_t {
  kF32,
  kBf16,
  kQ8g32,
  kQ4g32,
  kQ4m32,
  kT4g32,
  kT4g16,
  kQ2m16,
  kF16,
  kF8
};
inline constexpr int kWeightFormats = 10;
inline constexpr int kCpuWeightFormats = 8;  // the CPU has kernels for the first eight

// Tells whether codes are places in a table at the panel's head.
[[nodiscard]] constexpr bool has_table(WeightFormat format) {
  return format == WeightFormat::kT4g32 || format == WeightFormat::kT4g16;
}

[[nodiscard]] constexpr int step_bytes(WeightFormat format) {
  constexpr int kBytes[] = {4096, 2048, 1088, 576, 640, 640, 704, 512, 2048, 1024};
  return kBytes[static_cast<std::uint8_t>(format)];
}
// Returns the bytes of a panel before its steps.
[[nodiscard]] constexpr int panel_head_bytes(WeightFormat format) {
  return format == WeightFormat::kF8 ? kPanelColumns * 4 : has_table(format) ? 64 : 0;
}

}  // namespace quire::kernels
