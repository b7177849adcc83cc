// Which instruction sets the kernels are built for, and which of them this machine can run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::device {

// Each needs all that the one before it needs, and more. Each has its own translation unit compiled
// with its own flags.
enum class Isa : std::uint8_t {
  kPortable,    // GCC/Clang vector extensions at the compiler's baseline (SSE2, NEON)
  kAvx2,        // AVX2 + FMA + F16C
  kAvx512Vnni,  // AVX-512 F/BW/DQ/VL + VNNI; up to here bf16 is widened to fp32
  kAvx512,      // the same plus BF16: products of bf16 pairs
  kAmx,         // the same plus AMX-TILE, AMX-BF16, AMX-INT8
};

[[nodiscard]] std::string_view isa_name(Isa isa);
[[nodiscard]] std::optional<Isa> parse_isa(std::string_view name);

// CPU has the instructions and the operating system saves their registers. Asking for kAmx also
// requests the kernel's permission to use tile registers for this process (once; it covers threads
// made later).
[[nodiscard]] bool isa_supported(Isa isa);

// Which processor this is, as CPUID tells it (display family and model); empty elsewhere.
struct Processor {
  std::string vendor;
  int family = 0;
  int model = 0;
};

// The set to use on a processor that runs all sets up to `last`. That is `last`, but for kAvx512 on
// Intel's processors other than Cooper Lake. Measured on one of them (family 6, model 207):
// products of bf16 pairs reach half the multiply-adds per second of fp32 products there. Cooper
// Lake is left out on Intel's word that its pairs run at twice the fp32 rate; nothing else was
// measured.
[[nodiscard]] Isa fastest_isa(Isa last, const Processor& processor);

// The same for this machine. A rule, never a timing: the same on every start.
[[nodiscard]] Isa best_isa();
[[nodiscard]] std::vector<Isa> supported_isas();

}  // namespace quire::device
