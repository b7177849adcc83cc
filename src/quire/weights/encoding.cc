#include "quire/weights/encoding.h"

#include <array>
#include <cstddef>

namespace quire::weights {
namespace {

struct EncodingTraits {
  const char* name;
  int block_values;
  int block_bytes;
  CodeKind kind;
};

constexpr std::array<EncodingTraits, kEncodings> kTraits = {
    {{"F32", 1, 4, CodeKind::kNone},
     {"F16", 1, 2, CodeKind::kNone},
     {"BF16", 1, 2, CodeKind::kNone},
     {"Q8_0", 32, 34, CodeKind::kEight},
     {"Q4_0", 32, 18, CodeKind::kFour},
     {"Q4_1", 32, 20, CodeKind::kFourMinimum},
     {"Q5_0", 32, 22, CodeKind::kEight},
     {"Q5_1", 32, 24, CodeKind::kNone},
     {"Q4_K", 256, 144, CodeKind::kFourMinimum},
     {"Q5_K", 256, 176, CodeKind::kNone},
     {"Q6_K", 256, 210, CodeKind::kNone},
     {"Q2_K", 256, 84, CodeKind::kTwoMinimum},
     {"Q3_K", 256, 110, CodeKind::kTableHalves},
     {"IQ1_S", 256, 50, CodeKind::kTable},
     {"IQ1_M", 256, 56, CodeKind::kTableHalves},
     {"IQ2_XXS", 256, 66, CodeKind::kTable},
     {"IQ2_XS", 256, 74, CodeKind::kTableHalves},
     {"IQ2_S", 256, 82, CodeKind::kTableHalves},
     {"IQ3_XXS", 256, 98, CodeKind::kTable},
     {"IQ3_S", 256, 110, CodeKind::kTable},
     {"IQ4_NL", 32, 18, CodeKind::kTable},
     {"IQ4_XS", 256, 136, CodeKind::kTable},
     {"TQ1_0", 256, 54, CodeKind::kFour},
     {"TQ2_0", 256, 66, CodeKind::kFour},
     {"MXFP4", 32, 17, CodeKind::kTable},
     {"NVFP4", 64, 36, CodeKind::kNone},
     {"Q1_0", 128, 18, CodeKind::kFour},
     {"Q2_0", 64, 18, CodeKind::kFour},
     {"fp8", 1, 1, CodeKind::kNone},
     {"mxfp4", 1, 1, CodeKind::kNone},
     {"W4A16", 1, 1, CodeKind::kNone},
     {"W8A16", 1, 1, CodeKind::kNone},
     {"W8A8", 1, 1, CodeKind::kNone},
     {"awq 4 bits", 1, 1, CodeKind::kNone},
     {"gptq 4 bits", 1, 1, CodeKind::kNone},
     {"gptq 8 bits", 1, 1, CodeKind::kNone}}};

const EncodingTraits& traits(Encoding encoding) {
  return kTraits[static_cast<std::size_t>(encoding)];
}

}  // namespace

const char* encoding_name(Encoding encoding) { return traits(encoding).name; }
int code_block_values(Encoding encoding) { return traits(encoding).block_values; }
int code_block_bytes(Encoding encoding) { return traits(encoding).block_bytes; }
CodeKind code_kind(Encoding encoding) { return traits(encoding).kind; }

}  // namespace quire::weights
