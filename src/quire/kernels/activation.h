// The activations of MLPs, on every device.
#pragma once

#include <cstdint>

namespace quire::kernels {

// The activation of a gated MLP. silu(x) = x / (1 + e^-x). The tanh form of gelu (Hendrycks &
// Gimpel 2016) is x / (1 + e^-2u), where u = sqrt(2 / pi) * (x + 0.044715 * x^3). sigmoid(x) = 1 /
// (1 + e^-x) is for gates of other parts. kClampedSwiglu, of gpt-oss, is g * sigmoid(1.702 g) with
// g = min(x, 7), where the other factor is clamp(up, -7, 7) + 1. kRelu is max(x, 0).
enum class Activation : std::uint8_t { kSilu, kGeluTanh, kSigmoid, kClampedSwiglu, kRelu };
inline constexpr int kActivations = 5;

}  // namespace quire::kernels
