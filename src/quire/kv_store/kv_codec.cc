#include "quire/kv_store/kv_codec.h"

#include <zstd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>

#include "quire/base/check.h"
#include "quire/result.h"

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

}  // namespace

struct PlaneCodec::Contexts {
  std::unique_ptr<ZSTD_CCtx, FreeCompressor> compressor{ZSTD_createCCtx()};
  std::unique_ptr<ZSTD_DCtx, FreeDecompressor> decompressor{ZSTD_createDCtx()};
};

PlaneCodec::PlaneCodec() : contexts_(std::make_unique<Contexts>()) {}
PlaneCodec::PlaneCodec(PlaneCodec&&) noexcept = default;
PlaneCodec& PlaneCodec::operator=(PlaneCodec&&) noexcept = default;
PlaneCodec::~PlaneCodec() = default;

Result<PlaneCodec> PlaneCodec::create(std::size_t block_bytes, std::size_t value_bytes) {
  QUIRE_CHECK(value_bytes == 2 || value_bytes == 4, "values of two or four bytes");
  QUIRE_CHECK(block_bytes % value_bytes == 0, "no whole number of values");
  PlaneCodec codec;
  if (codec.contexts_->compressor == nullptr || codec.contexts_->decompressor == nullptr) {
    return {ErrorCode::kIo, "zstd has no memory for its work"};
  }
  codec.value_bytes_ = value_bytes;
  codec.planes_.resize(block_bytes);
  codec.packed_.resize(block_bytes);
  return codec;
}

std::span<const std::byte> PlaneCodec::encode(std::span<const std::byte> block) {
  QUIRE_CHECK(block.size() == planes_.size(), "not the size of a head block");
  value_bytes_ == 2 ? split<2>(block, planes_.data()) : split<4>(block, planes_.data());
  // Room for one byte less than the block: what does not get smaller is an error of zstd.
  const std::size_t bytes =
      ZSTD_compressCCtx(contexts_->compressor.get(), packed_.data(), block.size() - 1,
                        planes_.data(), planes_.size(), kLevel);
  return ZSTD_isError(bytes) != 0U ? block : std::span<const std::byte>(packed_).first(bytes);
}

Status PlaneCodec::decode(std::span<const std::byte> stored, std::span<std::byte> block) {
  QUIRE_CHECK(block.size() == planes_.size(), "not the size of a head block");
  if (stored.size() == block.size()) {
    std::copy(stored.begin(), stored.end(), block.begin());
    return {};
  }
  const std::size_t bytes = ZSTD_decompressDCtx(contexts_->decompressor.get(), planes_.data(),
                                                planes_.size(), stored.data(), stored.size());
  if (ZSTD_isError(bytes) != 0U || bytes != block.size()) {
    return {ErrorCode::kCorrupt, "cannot be decompressed"};
  }
  value_bytes_ == 2 ? join<2>(planes_.data(), block) : join<4>(planes_.data(), block);
  return {};
}

}  // namespace quire::kv_store
