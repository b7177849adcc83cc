// Which instruction sets the kernels are built for, and which of them this machine can run.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace quire::device {

// Ordered from slowest to fastest. Each has its own translation unit compiled with its own flags.
enum class Isa : std::uint8_t {
  kPortable,  // GCC/Clang vector extensions at the compiler's baseline (SSE2, NEON)
  kAvx2,      // AVX2 + FMA + F16C; bf16 widened to fp32
  kAvx512,    // AVX-512 F/BW/DQ/VL + BF16 + VNNI
  kAmx,       // the same plus AMX-TILE, AMX-BF16, AMX-INT8
};

[[nodiscard]] std::string_view isa_name(Isa isa);
[[nodiscard]] std::optional<Isa> parse_isa(std::string_view name);

// CPU has the instructions and the operating system saves their registers. Asking for kAmx also
// requests the kernel's permission to use tile registers for this process (once; it covers threads
// made later).
[[nodiscard]] bool isa_supported(Isa isa);

[[nodiscard]] Isa best_isa();
[[nodiscard]] std::vector<Isa> supported_isas();

}  // namespace quire::device
