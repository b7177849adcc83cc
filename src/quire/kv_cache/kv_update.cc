#include "quire/kv_cache/kv_update.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

#include "quire/base/str.h"
#include "quire/kv_cache.h"
#include "quire/kv_cache/kv_device.h"
#include "quire/result.h"

namespace quire::kv_cache {
namespace {

Status check_count(std::string_view name, int value) {
  if (value >= 1) {
    return {};
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat("cannot update the KV cache: ", name, " is ", value, ", at least 1")};
}

Status check_pointer(std::string_view name, const void* pointer, KVDType dtype) {
  if (pointer == nullptr) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot update the KV cache: ", name, " is null")};
  }
  if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<unsigned>(kv_dtype_bytes(dtype)) !=
      0) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot update the KV cache: ", name, " is not aligned to ",
                          kv_dtype_bytes(dtype), " bytes, the size of a ", kv_dtype_name(dtype))};
  }
  return {};
}

Status check_place(const KVUpdate& update) {
  const int capacity = update.capacity.tokens;
  if (update.device_position != nullptr) {
    if (capacity < 1) {
      return {ErrorCode::kInvalidArgument,
              "cannot update the KV cache: a position on the device needs the capacity, which the "
              "kernel checks"};
    }
    return {};
  }
  if (update.position < 0) {
    return {ErrorCode::kInvalidArgument, base::str_cat("cannot update the KV cache: position is ",
                                                       update.position, ", at least 0")};
  }
  if (capacity != kUnknownKVCapacity &&
      std::int64_t{update.position} + update.num_tokens > capacity) {
    return kv_overflow(update.position, update.num_tokens, capacity);
  }
  return {};
}

}  // namespace

Error kv_overflow(int position, int num_tokens, int capacity) {
  return {
      .code = ErrorCode::kOverflow,
      .message = base::str_cat("KV cache overflow: position ", std::int64_t{position} + num_tokens,
                               " exceeds capacity ", capacity, " (at position ", position, ", ",
                               num_tokens, " more requested)")};
}

Status check_kv_advance(int position, int n, int capacity) {
  if (n < 1) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot advance the KV cache by ", n, " tokens, at least 1")};
  }
  if (n > capacity - position) {
    return kv_overflow(position, n, capacity);
  }
  return {};
}

std::int64_t kv_row_bytes(const KVUpdate& update) {
  return std::int64_t{update.num_heads} * update.head_dim * kv_dtype_bytes(update.dtype);
}

Status check_kv_update(const KVUpdate& update) {
  QUIRE_TRY_STATUS(check_count("num_tokens", update.num_tokens));
  QUIRE_TRY_STATUS(check_count("num_heads", update.num_heads));
  QUIRE_TRY_STATUS(check_count("head_dim", update.head_dim));
  // Rows of at most 2^31 bytes and positions below 2^31 keep every offset below 2^63.
  if (std::int64_t{update.num_heads} * update.head_dim >
      std::numeric_limits<std::int32_t>::max() / kv_dtype_bytes(update.dtype)) {
    return {ErrorCode::kInvalidArgument,
            base::str_cat("cannot update the KV cache: a row of ", update.num_heads, " x ",
                          update.head_dim, " is longer than 2 GiB")};
  }
  QUIRE_TRY_STATUS(check_pointer("cache_keys", update.cache_keys, update.dtype));
  QUIRE_TRY_STATUS(check_pointer("cache_values", update.cache_values, update.dtype));
  QUIRE_TRY_STATUS(check_pointer("new_keys", update.new_keys, update.dtype));
  QUIRE_TRY_STATUS(check_pointer("new_values", update.new_values, update.dtype));
  return check_place(update);
}

void update_kv_reference(const KVUpdate& update) {
  const std::int64_t position =
      update.device_position != nullptr ? *update.device_position : update.position;
  const int capacity = update.capacity.tokens;
  if (position < 0 || (capacity != kUnknownKVCapacity && position + update.num_tokens > capacity)) {
    if (update.device_refusals != nullptr) {
      ++*update.device_refusals;
    }
    return;
  }
  const std::int64_t offset = position * kv_row_bytes(update);
  const auto bytes = static_cast<std::size_t>(update.num_tokens * kv_row_bytes(update));
  std::memcpy(static_cast<std::byte*>(update.cache_keys) + offset, update.new_keys, bytes);
  std::memcpy(static_cast<std::byte*>(update.cache_values) + offset, update.new_values, bytes);
}

}  // namespace quire::kv_cache

namespace quire {

Status update_kv_cache(const KVUpdate& update, KVStream stream) {
  QUIRE_TRY_STATUS(kv_cache::check_kv_update(update));
  return kv_cache::launch_kv_update(update, stream);
}

// NOLINTNEXTLINE(readability-function-size): programs call it with these parameters in this order
Status launch_update_kv_cache(KVLayerView cache_keys, KVLayerView cache_values,
                              const void* new_keys, const void* new_values, int position,
                              int num_tokens, int num_heads, int head_dim, KVStream stream) {
  if (cache_keys.dtype != cache_values.dtype || cache_keys.capacity != cache_values.capacity) {
    return {ErrorCode::kInvalidArgument,
            "cannot update the KV cache: keys and values are of different caches"};
  }
  for (const KVLayerView& view : {cache_keys, cache_values}) {
    if (view.num_heads != num_heads || view.head_dim != head_dim) {
      return {ErrorCode::kInvalidArgument,
              base::str_cat("cannot update the KV cache: its rows are ", view.num_heads, " x ",
                            view.head_dim, " (heads x dim), the new ones ", num_heads, " x ",
                            head_dim)};
    }
  }
  return update_kv_cache({.dtype = cache_keys.dtype,
                          .cache_keys = cache_keys.data,
                          .cache_values = cache_values.data,
                          .new_keys = new_keys,
                          .new_values = new_values,
                          .position = position,
                          .num_tokens = num_tokens,
                          .num_heads = num_heads,
                          .head_dim = head_dim,
                          .capacity = {cache_keys.capacity}},
                         stream);
}

}  // namespace quire
