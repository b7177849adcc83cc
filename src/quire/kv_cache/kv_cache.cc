#include "quire/kv_cache.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "quire/base/str.h"
#include "quire/kv_cache/kv_device.h"
#include "quire/kv_cache/kv_update.h"
#include "quire/result.h"

namespace quire {
namespace {

Status check_field(std::string_view name, int value) {
  if (value >= 1) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(name, " of a KV cache is ", value, ", at least 1")};
}

[[noreturn]] void throw_error(Error error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      throw std::invalid_argument(error.message);
    case ErrorCode::kOverflow:
      throw KVOverflowError(error.message);
    default:
      throw DeviceError(std::move(error));
  }
}

void throw_if_failed(Status status) {
  if (!status.ok()) {
    throw_error(std::move(status).error());
  }
}

KVCache created_or_thrown(Result<KVCache> cache) {
  if (!cache.ok()) {
    throw_error(std::move(cache).error());
  }
  return std::move(cache).value();
}

}  // namespace

Status VramTracker::reserve(std::int64_t bytes) {
  std::int64_t used = used_bytes_;
  do {
    if (bytes > limit_bytes_ - used) {
      return Error{
          .code = ErrorCode::kOutOfBlocks,
          .message = base::str_cat("cannot reserve ", base::format_bytes(bytes),
                                   " of device memory: ", base::format_bytes(limit_bytes_ - used),
                                   " of ", base::format_bytes(limit_bytes_),
                                   " left; destroy a cache or raise the limit"),
          .needed_bytes = bytes,
          .free_bytes = limit_bytes_ - used};
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  std::int64_t peak = peak_bytes_;
  while (peak < used + bytes && !peak_bytes_.compare_exchange_weak(peak, used + bytes)) {
  }
  return {};
}

void VramTracker::release(std::int64_t bytes) { used_bytes_ -= bytes; }

Status KVCacheConfig::validate() const {
  QUIRE_TRY_STATUS(check_field("num_layers", num_layers));
  QUIRE_TRY_STATUS(check_field("max_context_length", max_context_length));
  QUIRE_TRY_STATUS(check_field("num_kv_heads", num_kv_heads));
  QUIRE_TRY_STATUS(check_field("head_dim", head_dim));
  if (dtype > KVDType::kFloat8E4M3) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("dtype of a KV cache is ", static_cast<int>(dtype),
                          ", which is none of float32, float16, bfloat16, float8_e4m3")};
  }
  if (device < 0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("device of a KV cache is ", device, ", at least 0")};
  }
  std::int64_t bytes = std::int64_t{2} * kv_dtype_bytes(dtype);
  for (const int factor : {num_layers, max_context_length, num_kv_heads, head_dim}) {
    if (factor > std::numeric_limits<std::int64_t>::max() / bytes) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("a KV cache of ", num_layers, " layers x ", max_context_length,
                            " tokens x ", num_kv_heads, " heads x ", head_dim,
                            " is larger than 2^63 bytes")};
    }
    bytes *= factor;
  }
  return {};
}

std::int64_t KVCacheConfig::layer_bytes() const {
  return std::int64_t{kv_dtype_bytes(dtype)} * max_context_length * num_kv_heads * head_dim;
}

std::int64_t KVCacheConfig::size_bytes() const { return 2 * layer_bytes() * num_layers; }

Result<KVCache> KVCache::create(const KVCacheConfig& config, VramTracker* tracker) {
  QUIRE_TRY_STATUS(config.validate());
  const std::int64_t bytes = config.size_bytes();
  KVCache cache;  // frees and uncharges what it has, should a later step fail
  if (tracker != nullptr) {
    QUIRE_TRY_STATUS(tracker->reserve(bytes));
  }
  cache.config_ = config;
  cache.tracker_ = tracker;
  QUIRE_TRY(cache.data_, kv_cache::allocate_kv(config.device, bytes));
  if (config.zero_fill) {
    // Waits: the first update may come on any stream.
    QUIRE_TRY_STATUS(kv_cache::zero_kv(config.device, cache.data_, bytes, nullptr));
    QUIRE_TRY_STATUS(kv_cache::synchronize_kv(config.device, nullptr));
  }
  return cache;
}

KVCache::KVCache(const KVCacheConfig& config, VramTracker* tracker)
    : KVCache(created_or_thrown(create(config, tracker))) {}

KVCache::KVCache(KVCache&& other) noexcept
    : config_(std::exchange(other.config_, {})),
      position_(std::exchange(other.position_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      tracker_(std::exchange(other.tracker_, nullptr)) {}

KVCache& KVCache::operator=(KVCache&& other) noexcept {
  if (this != &other) {
    free_memory();
    config_ = std::exchange(other.config_, {});
    position_ = std::exchange(other.position_, 0);
    data_ = std::exchange(other.data_, nullptr);
    tracker_ = std::exchange(other.tracker_, nullptr);
  }
  return *this;
}

KVCache::~KVCache() { free_memory(); }

void KVCache::free_memory() {
  if (data_ != nullptr) {
    kv_cache::free_kv(config_.device, data_);
  }
  if (tracker_ != nullptr) {
    tracker_->release(size_bytes());
  }
}

void KVCache::advance_position(int n) { throw_if_failed(try_advance(n)); }

Status KVCache::try_advance(int n) {
  QUIRE_TRY_STATUS(kv_cache::check_kv_advance(position_, n, config_.max_context_length));
  position_ += n;
  return {};
}

void KVCache::reset(KVStream stream) { throw_if_failed(try_reset(stream)); }

Status KVCache::try_reset(KVStream stream) {
  if (config_.zero_fill && data_ != nullptr) {
    QUIRE_TRY_STATUS(kv_cache::zero_kv(config_.device, data_, size_bytes(), stream));
  }
  position_ = 0;
  return {};
}

KVLayerView KVCache::keys(int layer) const { return part(layer, 0); }

KVLayerView KVCache::values(int layer) const { return part(layer, 1); }

KVLayerView KVCache::part(int layer, int which) const {
  if (layer < 0 || layer >= config_.num_layers) {
    throw std::out_of_range(
        base::str_cat("no layer ", layer, " in a KV cache of ", config_.num_layers, " layers"));
  }
  auto* const data = static_cast<std::byte*>(data_);
  return {.data = data + (std::int64_t{2} * layer + which) * config_.layer_bytes(),
          .dtype = config_.dtype,
          .capacity = config_.max_context_length,
          .num_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim};
}

std::int64_t KVCache::size_bytes() const { return config_.size_bytes(); }

}  // namespace quire
