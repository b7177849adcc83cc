// Isa: the instruction sets that kernels are built for, and which of them this machine runs.
//
// Thread rule: any thread; detection happens once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::device {

// Each set needs all that the set before it needs, and more. Each has a translation unit of its
// own, compiled with its own flags.
enum class Isa : std::uint8_t {
  kPortable,    // GCC/Clang vector extensions at the compiler's baseline (SSE2, NEON)
  kAvx2,        // AVX2 + FMA + F16C
  kAvx512Vnni,  // AVX-512 F/BW/DQ/VL + VNNI; up to here bf16 is widened to fp32
  kAvx512,      // the same plus BF16: products of bf16 pairs
  kAmx,         // the same plus AMX-TILE, AMX-BF16, AMX-INT8
};

[[nodiscard]] std::string_view isa_name(Isa isa);
[[nodiscard]] std::optional<Isa> parse_isa(std::string_view name);

// Returns true if the processor has the instructions and the operating system saves their
// registers. Asking for kAmx also asks Linux once for the tile registers of this process and of its
// later threads.
[[nodiscard]] bool isa_supported(Isa isa);

// A processor as CPUID names it: vendor, display family and model. Empty on other architectures.
struct Processor {
  std::string vendor;
  int family = 0;
  int model = 0;
};

// Returns the set to use on a processor that runs all sets up to `last`. That is `last`, except for
// kAvx512 on Intel's processors other than Cooper Lake. They take kAvx512Vnni, because products of
// bf16 pairs are slower than fp32 products there (ADR 0011).
[[nodiscard]] Isa fastest_isa(Isa last, const Processor& processor);

// Returns the set to use on this machine: the same on every start, because it follows a rule and no
// timing.
[[nodiscard]] Isa best_isa();
[[nodiscard]] std::vector<Isa> supported_isas();

}  // namespace quire::device
