// Tile products on loaded tiles: the peak of AMX.
#pragma once

#include "quire/kernels/cpu/amx_tiles.h"
#include "quire/kernels/cpu/kernel_table.h"

namespace quire::kernels {
namespace {

constexpr int kTilePeakProducts = 4;

// Tiles 0..3 sums, 4 and 5 left, 6 and 7 right operands, which are `depth_bytes` deep.
class LoadedAmxTiles {
 public:
  LoadedAmxTiles(const std::byte* operands, int depth_bytes) : guard_(shapes(depth_bytes)) {
    _tile_loadd(4, operands, depth_bytes);
    _tile_loadd(5, operands + 1024, depth_bytes);
    _tile_loadd(6, operands + 2048, 64);
    _tile_loadd(7, operands + 3072, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

 private:
  static AmxTileShapes shapes(int depth_bytes) {
    AmxTileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) {
      shapes.set(tile, 16, 64);
    }
    for (const int tile : {4, 5}) {
      shapes.set(tile, 16, depth_bytes);
    }
    for (const int tile : {6, 7}) {
      shapes.set(tile, depth_bytes / 4, 64);
    }
    return shapes;
  }
  AmxTileGuard guard_;
};

constexpr int kPeakGroupDepth = 32;

void amx_peak_bf16(const PeakTask& t) {
  const LoadedAmxTiles tiles(t.operands, 64);
  for (std::int64_t i = 0; i < t.iterations; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Repeats products of bytes. Each product is of a group of 32 and begins a sum, because groups have
// scales of their own.
void amx_peak_int8(const PeakTask& t) {
  const LoadedAmxTiles tiles(t.operands, kPeakGroupDepth);
  for (std::int64_t i = 0; i < t.iterations; ++i) {
    _tile_zero(0);
    _tile_dpbssd(0, 4, 6);
    _tile_zero(1);
    _tile_dpbssd(1, 4, 7);
    _tile_zero(2);
    _tile_dpbssd(2, 5, 6);
    _tile_zero(3);
    _tile_dpbssd(3, 5, 7);
  }
}

}  // namespace
}  // namespace quire::kernels
