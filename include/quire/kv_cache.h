// KVCache: a contiguous KV cache of one sequence on a GPU, for programs with kernels of their own.
// update_kv_cache: the kernel that writes into it. Guide: docs/kv-cache.md.
//
// This header needs no CUDA header and no CUDA compiler. Where the library was built without CUDA,
// or the machine has no driver, making a cache and launching the kernel give kDevice.
//
// Layout, without padding: [layer][keys, values][position][kv head][head dim]. A token's row is
// contiguous, and its place does not depend on the capacity. So the form of the kernel that is not
// told the capacity can address the row.
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

// cudaStream_t. nullptr is the default stream.
using KVStream = CUstream_st*;

// Type of the elements of a cache. Rows to be written have the type of their cache.
enum class KVDType : std::uint8_t { kFloat32, kFloat16, kBFloat16, kFloat8E4M3 };

// Returns the bytes of one element: 4, 2, 2 or 1.
[[nodiscard]] constexpr int kv_dtype_bytes(KVDType dtype) {
  constexpr int kBytes[] = {4, 2, 2, 1};
  return kBytes[static_cast<std::uint8_t>(dtype)];
}

// Returns "float32", "float16", "bfloat16" or "float8_e4m3". Static memory.
[[nodiscard]] constexpr const char* kv_dtype_name(KVDType dtype) {
  constexpr const char* kNames[] = {"float32", "float16", "bfloat16", "float8_e4m3"};
  return kNames[static_cast<std::uint8_t>(dtype)];
}

// Thrown by KVCache::advance_position past the capacity. what(): "KV cache overflow: position 11
// exceeds capacity 10 (at position 10, 1 more requested)".
class QUIRE_API KVOverflowError : public std::out_of_range {
 public:
  using std::out_of_range::out_of_range;
};

// Thrown where the device is missing or failed (kDevice). Thrown, too, where the memory of the
// device, or the limit of a VramTracker, is used up (kOutOfBlocks).
class QUIRE_API DeviceError : public std::runtime_error {
 public:
  // Makes an exception whose what() is the error's message.
  explicit DeviceError(Error error) : std::runtime_error(error.message), error_(std::move(error)) {}
  // Returns the error, a reference into the exception.
  [[nodiscard]] const Error& error() const { return error_; }

 private:
  Error error_;
};

// Counts the bytes of device memory that caches hold, and limits them.
//
// Ownership: caches borrow their tracker, which must outlive them.
// Threads: any number of threads may call at once. No call waits.
class QUIRE_API VramTracker {
 public:
  // Makes a tracker. `limit_bytes` is the most that all its caches may hold together; no limit
  // unless given.
  explicit VramTracker(std::int64_t limit_bytes = std::numeric_limits<std::int64_t>::max())
      : limit_bytes_(limit_bytes) {}
  VramTracker(const VramTracker&) = delete;
  VramTracker& operator=(const VramTracker&) = delete;

  // Counts `bytes` as held. Allocates nothing.
  // Errors: kOutOfBlocks beyond the limit, with the needed and the free bytes. Nothing is counted
  // then.
  [[nodiscard]] Status reserve(std::int64_t bytes);
  // Takes back bytes that reserve() has counted.
  void release(std::int64_t bytes);

  // Returns the limit.
  [[nodiscard]] std::int64_t limit_bytes() const { return limit_bytes_; }
  // Returns the bytes that are held now.
  [[nodiscard]] std::int64_t used_bytes() const { return used_bytes_; }
  // Returns the most bytes that were ever held at a time.
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }

 private:
  const std::int64_t limit_bytes_;
  std::atomic<std::int64_t> used_bytes_{0};
  std::atomic<std::int64_t> peak_bytes_{0};
};

// Shape of a cache. Plain data. The four counts are at least 1.
struct QUIRE_API KVCacheConfig {
  int num_layers = 0;
  // The capacity, in tokens.
  int max_context_length = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  KVDType dtype = KVDType::kFloat16;
  // True: the cache is filled with zeros when it is made and on each reset.
  // False: rows hold anything until they are written, perhaps rows of another sequence.
  bool zero_fill = true;
  // Ordinal of the GPU, 0 or more.
  int device = 0;

  // Checks the fields by themselves. Asks no device.
  // Errors: kInvalidArgument names the field, its value and the values that are allowed.
  // kInvalidArgument also for a cache of more than 2^63 bytes.
  [[nodiscard]] Status validate() const;
  // Returns the bytes of one layer's keys, or of its values. Precondition: validate().ok().
  [[nodiscard]] std::int64_t layer_bytes() const;
  // Returns the bytes of all layers' keys and values. Precondition: validate().ok().
  [[nodiscard]] std::int64_t size_bytes() const;
};

// Names one layer's keys or values, [max_context_length, num_kv_heads, head_dim] on the device, and
// tells launch_update_kv_cache their bounds.
//
// Ownership: a view holds no memory. A view is valid until its cache is destroyed or replaced by an
// assignment. Moving a cache keeps its views valid.
struct KVLayerView {
  // Device address of the first row.
  void* data = nullptr;
  KVDType dtype = KVDType::kFloat16;
  // Rows, which is max_context_length of the cache.
  int capacity = 0;
  int num_heads = 0;
  int head_dim = 0;

  // Converts to the plain device pointer, of any type T. Does not compare T with `dtype`.
  template <class T>
  operator T*() const {  // NOLINT(google-explicit-constructor): kernels take half*
    return static_cast<T*>(data);
  }
};

// Owns the device memory of one sequence's KV, and counts its length.
//
// The length is one for all layers: rows [0, position()) of every layer are the sequence's tokens.
// position() is the context length of attention once the rows of a step were counted.
//
// Ownership: move only. Moving leaves an empty cache behind: capacity 0, no bytes. Destroying a
// cache waits for the work of its GPU, frees the memory and takes its bytes from the tracker.
// Threads: one thread at a time.
class QUIRE_API KVCache {
 public:
  // Returns a cache at position 0, allocated on the GPU `config.device`. `tracker`, if any, is
  // charged until the cache is destroyed. With config.zero_fill: blocks until the zeros are
  // written.
  // Errors, after which nothing stays allocated or charged:
  // * kInvalidArgument: config.validate() refuses.
  // * kDevice: no CUDA, no driver, no such GPU, or a GPU that failed.
  // * kOutOfBlocks: beyond the tracker's limit, or the GPU has no memory left.
  [[nodiscard]] static Result<KVCache> create(const KVCacheConfig& config,
                                              VramTracker* tracker = nullptr);
  // Makes a cache as create() does. Throws std::invalid_argument, or DeviceError (kDevice,
  // kOutOfBlocks).
  explicit KVCache(const KVCacheConfig& config, VramTracker* tracker = nullptr);
  KVCache(KVCache&& other) noexcept;
  // Frees the memory that is replaced, as destroying does.
  KVCache& operator=(KVCache&& other) noexcept;
  KVCache(const KVCache&) = delete;
  KVCache& operator=(const KVCache&) = delete;
  ~KVCache();

  // Returns the number of tokens that were counted.
  [[nodiscard]] int position() const { return position_; }
  // Returns true when no token more fits.
  [[nodiscard]] bool is_full() const { return remaining_capacity() == 0; }
  // Returns how many tokens still fit.
  [[nodiscard]] int remaining_capacity() const { return config_.max_context_length - position_; }

  // Counts `n` tokens that were written to every layer. Call it once after all layers of a step.
  // Asks no device.
  // Throws std::invalid_argument for n < 1 and KVOverflowError past the capacity. The position then
  // stays.
  void advance_position(int n = 1);
  // Counts tokens as advance_position() does, and throws nothing.
  // Errors: kInvalidArgument for n < 1; kOverflow past the capacity.
  [[nodiscard]] Status try_advance(int n = 1);

  // Sets the position to 0. With config().zero_fill: queues zeros on `stream`, a stream of the
  // cache's GPU. Never waits.
  // Throws DeviceError where the zeros cannot be queued. The position then stays.
  void reset(KVStream stream = nullptr);
  // Resets as reset() does, and throws nothing. Errors: kDevice.
  [[nodiscard]] Status try_reset(KVStream stream = nullptr);

  // Returns a view of one layer's keys or values, in memory that the cache owns.
  // Precondition: 0 <= layer < num_layers. Throws std::out_of_range otherwise.
  [[nodiscard]] KVLayerView keys(int layer) const;
  [[nodiscard]] KVLayerView values(int layer) const;

  // Returns the bytes of device memory. 0 for a moved-from cache.
  [[nodiscard]] std::int64_t size_bytes() const;
  // Returns the config, a reference into the cache.
  [[nodiscard]] const KVCacheConfig& config() const { return config_; }

 private:
  KVCache() = default;
  // Returns the layer's keys (`which` 0) or values (1).
  [[nodiscard]] KVLayerView part(int layer, int which) const;
  void free_memory();

  KVCacheConfig config_ = {};
  int position_ = 0;
  void* data_ = nullptr;
  VramTracker* tracker_ = nullptr;
};

// Capacity of a cache that the kernel is not told.
inline constexpr int kUnknownKVCapacity = -1;

// Capacity of a cache as an argument, in tokens. The type is its own, so that a stream written as 0
// is never taken for a capacity.
struct KVCapacity {
  int tokens = kUnknownKVCapacity;
};

// Describes one run of the update kernel. The kernel copies new keys and values, [num_tokens,
// num_heads, head_dim] each, to the rows of one layer of a cache from `position` on.
//
// Ownership: an update holds no memory. All pointers are device addresses, aligned to their
// element. The memory must be there until the kernel has run. New rows and cache do not overlap.
struct KVUpdate {
  KVDType dtype = KVDType::kFloat16;
  // First rows of the layer's keys and values.
  void* cache_keys = nullptr;
  void* cache_values = nullptr;
  // First rows of the new keys and values, of `dtype`.
  const void* new_keys = nullptr;
  const void* new_values = nullptr;
  // Row of the cache for the first new row, 0 or more.
  int position = 0;
  // The three counts are at least 1. A row has at most 2 GiB.
  int num_tokens = 0;
  int num_heads = 0;
  int head_dim = 0;
  // Not given: only the caller knows that the rows fit.
  KVCapacity capacity = {};
  // If set, the kernel reads the position from here. So a captured graph can be replayed while the
  // sequence grows. `capacity` is then needed, and only the kernel can check the position.
  const std::int32_t* device_position = nullptr;
  // If set, the kernel adds 1 when it refuses to write outside of the cache.
  std::int32_t* device_refusals = nullptr;
};

// Queues the update on `stream` of the calling thread's current device. Never waits.
// The kernel reads and writes 2 * num_tokens * num_heads * head_dim elements. Host and kernel both
// refuse an update that does not fit: not one row of it is written.
// Threads: any thread.
// Errors, after which nothing was queued:
// * kInvalidArgument: a pointer is null or not aligned. A count is below 1, or the position is
//   negative. A row is longer than 2 GiB. device_position comes without a capacity.
// * kOverflow: past the capacity.
// * kDevice: the launch fails, or the library was built without CUDA.
[[nodiscard]] QUIRE_API Status update_kv_cache(const KVUpdate& update, KVStream stream = nullptr);

// NOLINTBEGIN(readability-function-size): callers know this order of parameters

// Queues the update of one layer, as update_kv_cache() does, with the views' capacity checked. The
// new rows have the views' dtype, which nobody can check here.
// Errors: those of update_kv_cache(). kInvalidArgument where the views disagree with each other,
// with `num_heads` or with `head_dim`.
[[nodiscard]] QUIRE_API Status launch_update_kv_cache(KVLayerView cache_keys,
                                                      KVLayerView cache_values,
                                                      const void* new_keys, const void* new_values,
                                                      int position, int num_tokens, int num_heads,
                                                      int head_dim, KVStream stream = nullptr);

// KVDType of an element type, as a number. -1 for types other than float, __half, __nv_bfloat16 and
// __nv_fp8_e4m3.
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

// A type that a cache can hold.
template <class T>
concept KVElement = kKVDTypeOf<T> >= 0;

// Queues the update of one layer through plain pointers. The signature is the required one with the
// capacity of the cache, which is checked.
// Errors: those of update_kv_cache().
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

// Queues the update of one layer through plain pointers. The signature is the required one, to the
// letter. Nobody tells the kernel the capacity, so the caller must know that the rows fit.
// Errors: those of update_kv_cache(), but never kOverflow.
template <KVElement T>
[[nodiscard]] Status launch_update_kv_cache(T* cache_keys, T* cache_values, const T* new_keys,
                                            const T* new_values, int position, int num_tokens,
                                            int num_heads, int head_dim,
                                            KVStream stream = nullptr) {
  return launch_update_kv_cache(cache_keys, cache_values, new_keys, new_values, position,
                                num_tokens, num_heads, head_dim, KVCapacity{}, stream);
}

// Queues the update of one layer through views, with typed rows. Checks everything that the form
// with untyped rows checks, and the type of the rows.
// Errors: those of that form. kInvalidArgument for rows of another dtype than the cache's.
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
