#include "quire/device/aligned_buffer.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>

namespace quire::device {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kMappedFrom = std::size_t{1} << 21;  // 2 MiB: one huge page

}  // namespace

void* allocate_aligned(std::size_t bytes) {
  if (bytes < kMappedFrom) {
    return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {  // NOLINT: the macro casts
    return nullptr;
  }
#if defined(MADV_HUGEPAGE)
  ::madvise(data, bytes, MADV_HUGEPAGE);  // a wish: without it everything works, slower
#endif
  return data;
}

void free_aligned(void* data, std::size_t bytes) {
  if (data == nullptr) {
    return;
  }
  if (bytes < kMappedFrom) {
    std::free(data);  // NOLINT: pairs with aligned_alloc
  } else {
    ::munmap(data, bytes);
  }
}

}  // namespace quire::device
