// A contiguous KV cache of one sequence on a GPU, and the kernel that writes into it (guide:
// docs/kv-cache.md). Needs no CUDA header and no CUDA compiler: where the library was built
// without CUDA, or the machine has no driver, making a cache and launching the kernel give kDevice.
//
// Layout, without padding: [layer][keys, values][position][kv head][head dim]. A token's row is
// contiguous and its place does not depend on the capacity, so the form of the kernel that is not
// told the capacity can address it.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "quire/export.h"
#include "quire/result.h"

// Types of CUDA's headers, declared here so that this header needs none of them.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
struct CUstream_st;  // cudaStream_t is CUstream_st*
struct __half;
struct __nv_bfloat16;
struct __nv_fp8_e4m3;
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace quire {

using KVStream = CUstream_st*;  // cudaStream_t; nullptr is the default stream

enum class KVDType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat8E4M3 };

[[nodiscard]] constexpr int kv_dtype_bytes(KVDType dtype) {
  constexpr int kBytes[] = {4, 2, 2, 1};
  return kBytes[static_cast<std::uint8_t>(dtype)];
}

[[nodiscard]] constexpr const char* kv_dtype_name(KVDType dtype) {
  constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "float8_e4m3"};
  return kNames[static_cast<std::uint8_t>(dtype)];
}

// An advance or append past the capacity. what(): "KV cache overflow: position 11 exceeds capacity
// 10 (at position 10, 1 more requested)".
class QUIRE_API KVOverflowError : public std::out_of_range {
 public:
  using std::out_of_range::out_of_range;
};

// The device is missing or failed (kDevice), or its memory is used up (kOutOfBlocks).
class QUIRE_API DeviceError : public std::runtime_error {
 public:
  explicit DeviceError(Error error) : std::runtime_error(error.message), error_(std::move(error)) {}
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

// Bytes of device memory that caches hold, and the most they may. Any thread; must outlive them.
class QUIRE_API VramTracker {
 public:
  explicit VramTracker(std::int64_t limit_bytes = std::numeric_limits<std::int64_t>::max())
      : limit_bytes_(limit_bytes) {}
  VramTracker(const VramTracker&) = delete;
  VramTracker& operator=(const VramTracker&) = delete;

  // Counts `bytes`, or changes nothing and returns kOutOfBlocks with needed and free bytes.
  [[nodiscard]] Status reserve(std::int64_t bytes);
  // Takes back what reserve counted.
  void release(std::int64_t bytes);

  [[nodiscard]] std::int64_t limit_bytes() const { return limit_bytes_; }
  [[nodiscard]] std::int64_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }

 private:
  const std::int64_t limit_bytes_;
  std::atomic<std::int64_t> used_bytes_{0};
  std::atomic<std::int64_t> peak_bytes_{0};
};

struct QUIRE_API KVCacheConfig {
  int num_layers = 0;
  int max_context_length = 0;  // the capacity, in tokens
  int num_kv_heads = 0;
  int head_dim = 0;
  KVDType dtype = KVDType::kFloat16;
  bool zero_fill = true;  // at birth and on reset; without it, rows hold anything until written
  int device = 0;         // ordinal of the GPU

  // kInvalidArgument names the field, its value and what it may be.
  [[nodiscard]] Status validate() const;
  // Bytes of one layer's keys, or of its values. Precondition of this and the next:
  // validate().ok().
  [[nodiscard]] std::int64_t layer_bytes() const;
  [[nodiscard]] std::int64_t size_bytes() const;
};

// One layer's keys or values, [max_context_length, num_kv_heads, head_dim] on the device. Converts
// to the plain pointer, and tells launch_update_kv_cache the bounds. Valid as long as its cache.
struct KVLayerView {
  void* data = nullptr;
  KVDType dtype = KVDType::kFloat16;
  int capacity = 0;
  int num_heads = 0;
  int head_dim = 0;

  template <class T>
  operator T*() const {  // NOLINT(google-explicit-constructor): kernels take half*
    return static_cast<T*>(data);
  }
};

// The memory and the one length of a sequence: rows [0, position()) of every layer are its tokens,
// and position() is the context length of attention after an append. Used by one thread at a time;
// moving leaves an empty cache behind: capacity 0, no bytes.
class QUIRE_API KVCache {
 public:
  // Allocates on `config.device`. `tracker`, if any, is charged until destruction. Errors:
  // kInvalidArgument, kDevice, kOutOfBlocks; nothing stays allocated or charged.
  [[nodiscard]] static Result<KVCache> create(const KVCacheConfig& config,
                                              VramTracker* tracker = nullptr);
  // The same as exceptions: std::invalid_argument, DeviceError.
  explicit KVCache(const KVCacheConfig& config, VramTracker* tracker = nullptr);
  KVCache(KVCache&& other) noexcept;
  KVCache& operator=(KVCache&& other) noexcept;
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;
  ~KVCache();

  [[nodiscard]] int position() const { return position_; }
  [[nodiscard]] bool is_full() const { return remaining_capacity() == 0; }
  [[nodiscard]] int remaining_capacity() const { return config_.max_context_length - position_; }

  // Counts `n` tokens that were written to every layer. Throws std::invalid_argument for n <= 0 and
  // KVOverflowError past the capacity, and then changes nothing.
  void advance_position(int n = 1);
  // The same without exceptions: kInvalidArgument, kOverflow.
  [[nodiscard]] Status try_advance(int n = 1);

  // Position 0, and zeros in `stream`'s order if config().zero_fill. Never waits. Throws
  // DeviceError, and then changes nothing.
  void reset(KVStream stream = nullptr);
  [[nodiscard]] Status try_reset(KVStream stream = nullptr);

  // Precondition: 0 <= layer < num_layers (else std::out_of_range).
  [[nodiscard]] KVLayerView keys(int layer) const;
  [[nodiscard]] KVLayerView values(int layer) const;

  [[nodiscard]] std::int64_t size_bytes() const;
  [[nodiscard]] const KVCacheConfig& config() const { return config_; }

 private:
  KVCache() = default;
  [[nodiscard]] KVLayerView part(int layer, int which) const;
  void free_memory();

  KVCacheConfig config_ = {};
  int position_ = 0;
  void* data_ = nullptr;
  VramTracker* tracker_ = nullptr;
};

inline constexpr int kUnknownKVCapacity = -1;

// The capacity of a cache as an argument: a type of its own, so that a stream written as 0 is never
// taken for it.
struct KVCapacity {
  int tokens = kUnknownKVCapacity;
};

// What the update kernel does: copies rows [num_tokens, num_heads, head_dim] of new keys and values
// to rows position... of one layer of a cache. All pointers are device addresses, aligned to their
// element; new rows and cache do not overlap.
struct KVUpdate {
  KVDType dtype = KVDType::kFloat16;
  void* cache_keys = nullptr;
  void* cache_values = nullptr;
  const void* new_keys = nullptr;
  const void* new_values = nullptr;
  int position = 0;
  int num_tokens = 0;
  int num_heads = 0;
  int head_dim = 0;
  KVCapacity capacity = {};  // without it, only the caller knows whether the rows fit
  // If set, the kernel reads the position from here, so that a captured graph can be replayed while
  // the sequence grows; `capacity` is then needed, and only the kernel can check it.
  const std::int32_t* device_position = nullptr;
  // If set, the kernel adds 1 when it refuses to write past the capacity.
  std::int32_t* device_refusals = nullptr;
};

// Queues the update on `stream` of the current device. Host and kernel both refuse what does not
// fit, whole. kInvalidArgument for null pointers and counts below 1, kOverflow past the capacity,
// kDevice when the launch fails. Reads and writes 2 * num_tokens * num_heads * head_dim elements.
[[nodiscard]] QUIRE_API Status update_kv_cache(const KVUpdate& update, KVStream stream = nullptr);

// NOLINTBEGIN(readability-function-size): callers know this order of parameters

// As above; the views must agree with each other, with `num_heads` and with `head_dim`. The new
// rows are of the views' dtype.
[[nodiscard]] QUIRE_API Status launch_update_kv_cache(KVLayerView cache_keys,
                                                      KVLayerView cache_values,
                                                      const void* new_keys, const void* new_values,
                                                      int position, int num_tokens, int num_heads,
                                                      int head_dim, KVStream stream = nullptr);

// The stored type of an element: float, __half, __nv_bfloat16, __nv_fp8_e4m3.
template <class T>
inline constexpr int kKVDTypeOf = -1;
template <>
inline constexpr int kKVDTypeOf<float> = static_cast<int>(KVDType::kFloat32);
template <>
inline constexpr int kKVDTypeOf<__half> = static_cast<int>(KVDType::kFloat16);
template <>
inline constexpr int kKVDTypeOf<__nv_bfloat16> = static_cast<int>(KVDType::kBFloat16);
template <>
inline constexpr int kKVDTypeOf<__nv_fp8_e4m3> = static_cast<int>(KVDType::kFloat8E4M3);

template <class T>
concept KVElement = kKVDTypeOf<T> >= 0;

// Document 004's kernel with the capacity of the cache, which is checked.
template <KVElement T>
[[nodiscard]] Status launch_update_kv_cache(T* cache_keys, T* cache_values, const T* new_keys,
                                            const T* new_values, int position, int num_tokens,
                                            int num_heads, int head_dim, KVCapacity capacity,
                                            KVStream stream = nullptr) {
  return update_kv_cache({.dtype = static_cast<KVDType>(kKVDTypeOf<T>),
                          .cache_keys = cache_keys,
                          .cache_values = cache_values,
                          .new_keys = new_keys,
                          .new_values = new_values,
                          .position = position,
                          .num_tokens = num_tokens,
                          .num_heads = num_heads,
                          .head_dim = head_dim,
                          .capacity = capacity},
                         stream);
}

// Document 004's kernel to the letter: it is not told the capacity, so the caller must know that
// the rows fit.
template <KVElement T>
[[nodiscard]] Status launch_update_kv_cache(T* cache_keys, T* cache_values, const T* new_keys,
                                            const T* new_values, int position, int num_tokens,
                                            int num_heads, int head_dim,
                                            KVStream stream = nullptr) {
  return launch_update_kv_cache(cache_keys, cache_values, new_keys, new_values, position,
                                num_tokens, num_heads, head_dim, KVCapacity{}, stream);
}

// The checked form for typed rows: refuses rows of another dtype than the cache's.
template <KVElement T>
[[nodiscard]] Status launch_update_kv_cache(KVLayerView cache_keys, KVLayerView cache_values,
                                            const T* new_keys, const T* new_values, int position,
                                            int num_tokens, int num_heads, int head_dim,
                                            KVStream stream = nullptr) {
  if (static_cast<int>(cache_keys.dtype) != kKVDTypeOf<T>) {
    return {ErrorCode::kInvalidArgument, std::string("cannot update a cache of ") +
                                             kv_dtype_name(cache_keys.dtype) + " with rows of " +
                                             kv_dtype_name(static_cast<KVDType>(kKVDTypeOf<T>)) +
                                             "; convert the rows first"};
  }
  return launch_update_kv_cache(cache_keys, cache_values, static_cast<const void*>(new_keys),
                                static_cast<const void*>(new_values), position, num_tokens,
                                num_heads, head_dim, stream);
}

// NOLINTEND(readability-function-size)

}  // namespace quire
