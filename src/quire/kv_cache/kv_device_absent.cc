// Builds without CUDA.
#ifndef QUIRE_HAS_CUDA
#include <cstdint>

#include "quire/kv_cache.h"
#include "quire/kv_cache/kv_device.h"
#include "quire/result.h"

namespace quire::kv_cache {
namespace {

Error built_without() {
  return {.code = ErrorCode::kDevice,
          .message =
              "this library was built without CUDA; build it where nvcc is, with "
              "-DQUIRE_CUDA=ON"};
}

}  // namespace

Result<void*> allocate_kv(int, std::int64_t) { return built_without(); }
void free_kv(int, void*) {}
Status zero_kv(int, void*, std::int64_t, KVStream) { return built_without(); }
Status synchronize_kv(int, KVStream) { return built_without(); }
Status launch_kv_update(const KVUpdate&, KVStream) { return built_without(); }

}  // namespace quire::kv_cache

#endif
