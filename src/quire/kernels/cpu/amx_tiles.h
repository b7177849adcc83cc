// AMX tiles, which are registers: shapes per use. One = up to 16 rows of 64 bytes; loading a shape
// costs about 180 cycles.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire::kernels {
namespace {

// The 64 bytes that LDTILECFG reads.
struct alignas(64) AmxTileShapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  void set(int tile, int num_rows, int bytes) {
    rows[tile] = static_cast<std::uint8_t>(num_rows);
    row_bytes[tile] = static_cast<std::uint16_t>(bytes);
  }
};

// Shapes stay in force until the guard dies. Then the tiles are released, so that the operating
// system need not save 8 KiB at the next context switch.
class AmxTileGuard {
 public:
  explicit AmxTileGuard(const AmxTileShapes& shapes) { change(shapes); }
  ~AmxTileGuard() { _tile_release(); }
  AmxTileGuard(const AmxTileGuard&) = delete;
  AmxTileGuard& operator=(const AmxTileGuard&) = delete;

  // Configures the tiles anew, and loses their contents.
  void change(const AmxTileShapes& shapes) {
    // The intrinsic's asm does not name its memory operand, so gcc 12 drops the stores to `shapes`
    // without this.
    __asm__ volatile("" ::"m"(shapes));
    _tile_loadconfig(&shapes);
  }
};

// Loads of AMX tiles do not tell gcc 12 that they read memory. This stands between them and the
// stores of what they read, and between them and stores that overwrite it.
inline void fence_amx_tile_loads() { __asm__ volatile("" ::: "memory"); }

}  // namespace
}  // namespace quire::kernels
