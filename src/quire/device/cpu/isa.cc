#include "quire/device/cpu/isa.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace quire::device {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"portable", "avx2", "avx512", "amx"};

#if defined(__x86_64__)
struct CpuidWords {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuidWords cpuid(std::uint32_t leaf, std::uint32_t subleaf) {
  CpuidWords w;
  return __get_cpuid_count(leaf, subleaf, &w.eax, &w.ebx, &w.ecx, &w.edx) == 0 ? CpuidWords{} : w;
}

bool has_bit(std::uint32_t word, int bit) { return ((word >> bit) & 1u) != 0; }

// State components that the operating system has enabled (XCR0).
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

bool detect_avx512() {
  const CpuidWords seven = cpuid(7, 0);
  const bool base = has_bit(seven.ebx, 16) && has_bit(seven.ebx, 17) && has_bit(seven.ebx, 30) &&
                    has_bit(seven.ebx, 31);
  const bool dots = has_bit(seven.ecx, 11) && has_bit(cpuid(7, 1).eax, 5);  // VNNI, BF16
  return detect_avx2() && base && dots && (enabled_state() & 0xe6) == 0xe6;
}

// Linux keeps the 8 KiB of tile data switched off until a process asks for it.
bool request_tile_permission() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureTileData = 18;
  return ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

bool detect_amx() {
  const std::uint32_t edx = cpuid(7, 0).edx;
  const bool instructions = has_bit(edx, 22) && has_bit(edx, 24) && has_bit(edx, 25);
  constexpr std::uint64_t kTileState = 0x60000;
  return detect_avx512() && instructions && (enabled_state() & kTileState) == kTileState &&
         request_tile_permission();
}
#else
bool detect_avx2() { return false; }
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
  static const std::array<bool, 4> supported = {true, detect_avx2(), detect_avx512(), detect_amx()};
  return supported[static_cast<std::size_t>(isa)];
}

Isa best_isa() { return supported_isas().back(); }

std::vector<Isa> supported_isas() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (isa_supported(isa)) {
      found.push_back(isa);
    }
  }
  return found;
}

}  // namespace quire::device
