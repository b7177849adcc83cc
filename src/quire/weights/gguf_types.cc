#include "quire/weights/gguf_types.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>

#include "quire/weights/tensor_info.h"

namespace quire::weights {
namespace {

constexpr GgmlType kTypes[] = {
    {"F32", 0, 1, 4, Encoding::kF32},
    {"F16", 1, 1, 2, Encoding::kF16},
    {"Q4_0", 2, 32, 18, Encoding::kQ4_0},
    {"Q4_1", 3, 32, 20, Encoding::kQ4_1},
    {"Q5_0", 6, 32, 22, Encoding::kQ5_0},
    {"Q5_1", 7, 32, 24, Encoding::kQ5_1},
    {"Q8_0", 8, 32, 34, Encoding::kQ8_0},
    {"Q8_1", 9, 32, 36, std::nullopt},
    {"Q2_K", 10, 256, 84, Encoding::kQ2_K},
    {"Q3_K", 11, 256, 110, Encoding::kQ3_K},
    {"Q4_K", 12, 256, 144, Encoding::kQ4_K},
    {"Q5_K", 13, 256, 176, Encoding::kQ5_K},
    {"Q6_K", 14, 256, 210, Encoding::kQ6_K},
    {"Q8_K", 15, 256, 292, std::nullopt},
    {"IQ2_XXS", 16, 256, 66, Encoding::kIQ2_XXS},
    {"IQ2_XS", 17, 256, 74, Encoding::kIQ2_XS},
    {"IQ3_XXS", 18, 256, 98, Encoding::kIQ3_XXS},
    {"IQ1_S", 19, 256, 50, Encoding::kIQ1_S},
    {"IQ4_NL", 20, 32, 18, Encoding::kIQ4_NL},
    {"IQ3_S", 21, 256, 110, Encoding::kIQ3_S},
    {"IQ2_S", 22, 256, 82, Encoding::kIQ2_S},
    {"IQ4_XS", 23, 256, 136, Encoding::kIQ4_XS},
    {"I8", 24, 1, 1, std::nullopt},
    {"I16", 25, 1, 2, std::nullopt},
    {"I32", 26, 1, 4, std::nullopt},
    {"I64", 27, 1, 8, std::nullopt},
    {"F64", 28, 1, 8, std::nullopt},
    {"IQ1_M", 29, 256, 56, Encoding::kIQ1_M},
    {"BF16", 30, 1, 2, Encoding::kBF16},
    {"TQ1_0", 34, 256, 54, Encoding::kTQ1_0},
    {"TQ2_0", 35, 256, 66, Encoding::kTQ2_0},
    {"MXFP4", 39, 32, 17, Encoding::kMXFP4},
    {"NVFP4", 40, 64, 36, Encoding::kNVFP4},
    {"Q1_0", 41, 128, 18, Encoding::kQ1_0},
    {"Q2_0", 42, 64, 18, Encoding::kQ2_0},
};

}  // namespace

const GgmlType* find_ggml_type(std::uint32_t number) {
  const auto* type = std::ranges::find(kTypes, number, &GgmlType::number);
  return type == std::end(kTypes) ? nullptr : type;
}

}  // namespace quire::weights
