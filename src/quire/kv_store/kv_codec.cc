#include "quire/kv_store/kv_codec.h"

#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "quire/base/check.h"
#include "quire/kv_store/kv_file_format.h"
#include "quire/result.h"
#include "quire/tensor/kv_format.h"
#include "quire/tensor/kv_geometry.h"

namespace quire::kv_store {
namespace {

constexpr int kLevel = 1;  // higher ones are slower and no smaller on KV

struct FreeCompressor {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
struct FreeDecompressor {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// Sets to[plane][i] = from[i][plane].
template <std::size_t kPlanes>
void split(std::span<const std::byte> from, std::byte* to) {
  const std::size_t count = from.size() / kPlanes;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t plane = 0; plane < kPlanes; ++plane) {
      to[plane * count + i] = from[i * kPlanes + plane];
    }
  }
}

template <std::size_t kPlanes>
void join(const std::byte* from, std::span<std::byte> to) {
  const std::size_t count = to.size() / kPlanes;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t plane = 0; plane < kPlanes; ++plane) {
      to[i * kPlanes + plane] = from[plane * count + i];
    }
  }
}

// Calls fn(number of planes) with a constant.
template <class Fn>
void with_planes(std::size_t value_bytes, const Fn& fn) {
  switch (value_bytes) {
    case 1:
      return fn(std::integral_constant<std::size_t, 1>{});
    case 2:
      return fn(std::integral_constant<std::size_t, 2>{});
    default:
      return fn(std::integral_constant<std::size_t, 4>{});
  }
}

}  // namespace

struct PlaneCodec::Contexts {
  std::unique_ptr<ZSTD_CCtx, FreeCompressor> compressor{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, FreeDecompressor> decompressor{ZSTD_createDCtx()};
};

PlaneCodec::PlaneCodec() = default;
PlaneCodec::PlaneCodec(PlaneCodec&&) noexcept = default;
PlaneCodec& PlaneCodec::operator=(PlaneCodec&&) noexcept = default;
PlaneCodec::~PlaneCodec() = default;

Result<PlaneCodec> PlaneCodec::create(std::size_t block_bytes, std::size_t value_bytes,
                                      Codec codec_of_file) {
  QUIRE_CHECK(value_bytes == 1 || value_bytes == 2 || value_bytes == 4,
              "values of one, two or four bytes");
  QUIRE_CHECK(block_bytes % value_bytes == 0, "no whole number of values");
  PlaneCodec codec;
  if (codec_of_file == Codec::kPlanes) {
    codec.contexts_ = std::make_unique<Contexts>();
    if (codec.contexts_->compressor == nullptr || codec.contexts_->decompressor == nullptr) {
      return {ErrorCode::kIo, "zstd has no memory for its work"};
    }
  }
  codec.value_bytes_ = value_bytes;
  codec.planes_.resize(block_bytes);
  codec.packed_.resize(block_bytes);
  return codec;
}

Result<PlaneCodec> PlaneCodec::create(const tensor::KVGeometry& geometry, Codec codec) {
  const int value_bytes = std::max(1, tensor::kv_value_bytes(geometry.format, geometry.dtype));
  return create(static_cast<std::size_t>(geometry.head_block_bytes()),
                static_cast<std::size_t>(value_bytes), codec);
}

std::span<const std::byte> PlaneCodec::encode(std::span<const std::byte> block) {
  QUIRE_CHECK(block.size() == planes_.size(), "not the size of a head block");
  with_planes(value_bytes_, [&](auto planes) { split<planes.value>(block, planes_.data()); });
  const std::size_t bytes = pack();
  return bytes == 0 ? block : std::span<const std::byte>(packed_).first(bytes);
}

// Gives both room for one byte less than the block: what does not get smaller is an error.
std::size_t PlaneCodec::pack() {
  const std::size_t room = planes_.size() - 1;
  if (contexts_ == nullptr) {
    return static_cast<std::size_t>(LZ4_compress_default(
        reinterpret_cast<const char*>(planes_.data()), reinterpret_cast<char*>(packed_.data()),
        static_cast<int>(planes_.size()), static_cast<int>(room)));
  }
  const std::size_t bytes = ZSTD_compressCCtx(contexts_->compressor.get(), packed_.data(), room,
                                              planes_.data(), planes_.size(), kLevel);
  return ZSTD_isError(bytes) != 0U ? 0 : bytes;
}

bool PlaneCodec::unpack(std::span<const std::byte> stored) {
  if (contexts_ == nullptr) {
    const int bytes = LZ4_decompress_safe(
        reinterpret_cast<const char*>(stored.data()), reinterpret_cast<char*>(planes_.data()),
        static_cast<int>(stored.size()), static_cast<int>(planes_.size()));
    return std::cmp_equal(bytes, planes_.size());
  }
  const std::size_t bytes = ZSTD_decompressDCtx(contexts_->decompressor.get(), planes_.data(),
                                                planes_.size(), stored.data(), stored.size());
  return ZSTD_isError(bytes) == 0U && bytes == planes_.size();
}

Status PlaneCodec::decode(std::span<const std::byte> stored, std::span<std::byte> block) {
  QUIRE_CHECK(block.size() == planes_.size(), "not the size of a head block");
  if (stored.size() == block.size()) {
    std::copy(stored.begin(), stored.end(), block.begin());
    return {};
  }
  if (!unpack(stored)) {
    return {ErrorCode::kCorrupt, "cannot be decompressed"};
  }
  with_planes(value_bytes_, [&](auto planes) { join<planes.value>(planes_.data(), block); });
  return {};
}

}  // namespace quire::kv_store
