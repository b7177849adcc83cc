// Lossless codec of head blocks: the bytes of all values split into planes (all first bytes, all
// second bytes, ...), then zstd or lz4. The exponents of neighbouring values resemble each other,
// their mantissas do not; apart they compress 1.4 times, together hardly.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "quire/kv_store/kv_file_format.h"
#include "quire/result.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {

// Working memory of one thread. Move only.
class PlaneCodec {
 public:
  // Creates a codec for head blocks of `block_bytes` and values of `value_bytes` (1, 2 or 4). kIo
  // when zstd has no memory. Precondition: another codec than kRaw.
  [[nodiscard]] static Result<PlaneCodec> create(std::size_t block_bytes, std::size_t value_bytes,
                                                 Codec codec);
  // Creates a codec for the head blocks of a geometry. Codes of less than a byte are one plane.
  [[nodiscard]] static Result<PlaneCodec> create(const tensor::KVGeometry& geometry, Codec codec);
  PlaneCodec(PlaneCodec&&) noexcept;
  PlaneCodec& operator=(PlaneCodec&&) noexcept;
  ~PlaneCodec();

  // Returns the smaller of `block` itself and its compressed form, which is strictly shorter. Valid
  // until the next call or as long as `block`.
  [[nodiscard]] std::span<const std::byte> encode(std::span<const std::byte> block);

  // Inverts encode(): `stored` as long as `block` is the block itself. kCorrupt for anything that
  // does not give exactly block.size() bytes.
  [[nodiscard]] Status decode(std::span<const std::byte> stored, std::span<std::byte> block);

 private:
  struct Contexts;
  PlaneCodec();
  // Returns the bytes that packed_ holds then; 0 where there are as many as in `planes_`.
  std::size_t pack();
  // Returns whether planes_ is full.
  bool unpack(std::span<const std::byte> stored);
  std::unique_ptr<Contexts> contexts_;  // null: lz4, which needs none
  std::size_t value_bytes_ = 0;
  std::vector<std::byte> planes_;
  std::vector<std::byte> packed_;
};

}  // namespace quire::kv_store
