#include "quire/device/aligned_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace quire::device {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHugePage = std::size_t{1} << 21;

std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = page_bytes();
  return (bytes + page - 1) / page * page;
}

// Returns a mapping that begins at the border of a huge page, or nullptr. Elsewhere it would lack
// up to a huge page at either end, which is all of a buffer of 3 MiB.
void* map_aligned(std::size_t bytes) {
  const std::size_t kept = whole_pages(bytes);
  void* const data = ::mmap(nullptr, kept + kHugePage, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {  // NOLINT: the macro casts
    return nullptr;
  }
  auto* const begin = static_cast<std::byte*>(data);
  const std::size_t past = reinterpret_cast<std::uintptr_t>(begin) % kHugePage;
  const std::size_t before = past == 0 ? 0 : kHugePage - past;
  if (before > 0) {
    ::munmap(begin, before);
  }
  if (before < kHugePage) {
    ::munmap(begin + before + kept, kHugePage - before);
  }
#if defined(MADV_HUGEPAGE)
  // A wish: without it everything works, slower.
  ::madvise(begin + before, kept, MADV_HUGEPAGE);
#endif
  return begin + before;
}

}  // namespace

void* allocate_aligned(std::size_t bytes) {
  if (bytes < kHugePage) {
    return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  return bytes > PTRDIFF_MAX ? nullptr : map_aligned(bytes);
}

void free_aligned(void* data, std::size_t bytes) {
  if (data == nullptr) {
    return;
  }
  if (bytes < kHugePage) {
    std::free(data);  // NOLINT: pairs with aligned_alloc
  } else {
    ::munmap(data, bytes);
  }
}

void advise_small_pages(std::byte* data, std::size_t bytes) {
#if defined(MADV_NOHUGEPAGE)
  const std::size_t past = reinterpret_cast<std::uintptr_t>(data) % page_bytes();
  if (past < bytes) {
    ::madvise(data - past, bytes + past, MADV_NOHUGEPAGE);  // a wish
  }
#endif
}

void give_back_pages(std::byte* data, std::size_t bytes) {
  ::madvise(data, bytes, MADV_DONTNEED);  // where it is refused the pages stay
}

std::size_t page_bytes() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace quire::device
