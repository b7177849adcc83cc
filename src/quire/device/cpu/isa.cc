#include "quire/device/cpu/isa.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire::device {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"portable", "avx2", "avx512_vnni", "avx512",
                                                    "amx"};

#if defined(__x86_64__)
struct CpuidWords {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidWords cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  CpuidWords w;
  return __get_cpuid_count(leaf, subleaf, &w.eax, &w.ebx, &w.ecx, &w.edx) == 0 ? CpuidWords{} : w;
}

bool has_bit(std::uint32_t word, int bit) { return ((word >> bit) & 1u) != 0; }

// Returns the state components that the operating system has enabled (XCR0).
std::uint64_t enabled_state() {
  if (!has_bit(cpuid(1, 0).ecx, 27)) {  // OSXSAVE
    return 0;
  }
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

bool detect_avx2() {
  const CpuidWords one = cpuid(1, 0);
  const bool instructions =
      has_bit(cpuid(7, 0).ebx, 5) && has_bit(one.ecx, 12) && has_bit(one.ecx, 29);
  return instructions && (enabled_state() & 0x6) == 0x6;
}

bool detect_avx512_vnni() {
  const CpuidWords seven = cpuid(7, 0);
  const bool base = has_bit(seven.ebx, 16) && has_bit(seven.ebx, 17) && has_bit(seven.ebx, 30) &&
                    has_bit(seven.ebx, 31);
  const bool vnni = has_bit(seven.ecx, 11);
  return detect_avx2() && base && vnni && (enabled_state() & 0xe6) == 0xe6;
}

bool detect_avx512() { return detect_avx512_vnni() && has_bit(cpuid(7, 1).eax, 5); }  // BF16

// Asks Linux for the 8 KiB of tile data, which it keeps switched off until a process asks.
bool request_tile_permission() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureTileData = 18;
  return ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

bool detect_amx() {
  const CpuidWords seven = cpuid(7, 0);
  const bool tiles = has_bit(seven.edx, 22) && has_bit(seven.edx, 24) && has_bit(seven.edx, 25);
  const bool instructions = tiles && has_bit(seven.ecx, 1);  // VBMI, which came before tiles
  constexpr std::uint64_t kTileState = 0x60000;
  return detect_avx512() && instructions && (enabled_state() & kTileState) == kTileState &&
         request_tile_permission();
}

Processor this_processor() {
  const CpuidWords zero = cpuid(0, 0);
  const std::uint32_t signature = cpuid(1, 0).eax;
  const auto bits = [&](int first, std::uint32_t mask) {
    return static_cast<int>(signature >> first & mask);
  };
  Processor processor;
  for (const std::uint32_t word : {zero.ebx, zero.edx, zero.ecx}) {
    for (int byte = 0; byte < 4; ++byte) {
      processor.vendor += static_cast<char>(word >> 8 * byte & 0xffu);
    }
  }
  processor.family = bits(8, 15) + (bits(8, 15) == 15 ? bits(20, 255) : 0);
  processor.model = bits(4, 15) + bits(16, 15) * 16;
  return processor;
}
#else
Processor this_processor() { return {}; }
bool detect_avx2() { return false; }
bool detect_avx512_vnni() { return false; }
bool detect_avx512() { return false; }
bool detect_amx() { return false; }
#endif

}  // namespace

std::string_view isa_name(Isa isa) { return kNames[static_cast<std::size_t>(isa)]; }

std::optional<Isa> parse_isa(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) {
      return static_cast<Isa>(i);
    }
  }
  return std::nullopt;
}

bool isa_supported(Isa isa) {
  static const std::array<bool, kNames.size()> supported = {
      true, detect_avx2(), detect_avx512_vnni(), detect_avx512(), detect_amx()};
  return supported[static_cast<std::size_t>(isa)];
}

Isa fastest_isa(Isa last, const Processor& processor) {
  constexpr int kCooperLake = 85;
  const bool slow_bf16 = processor.vendor == "GenuineIntel" &&
                         !(processor.family == 6 && processor.model == kCooperLake);
  return last == Isa::kAvx512 && slow_bf16 ? Isa::kAvx512Vnni : last;
}

Isa best_isa() {
  static const Isa best = fastest_isa(supported_isas().back(), this_processor());
  return best;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAvx512, Isa::kAmx}) {
    if (isa_supported(isa)) {
      found.push_back(isa);
    }
  }
  return found;
}

}  // namespace quire::device
