// Refuses the n-th allocation that C++ asks for in one thread. Preloaded into an interpreter
// (LD_PRELOAD), and driven through ctypes. tests/engine/refused_memory_test.cc refuses allocations
// of the engine's thread.
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local long until_refused = 0;  // counts down; 0: none is refused
thread_local long refused = 0;

// Returns whether this allocation is to be refused.
bool refuse() {
  if (until_refused <= 0 || --until_refused > 0) {
    return false;
  }
  ++refused;
  return true;
}

void* allocate(std::size_t size, std::size_t alignment) {
  if (refuse()) {
    return nullptr;
  }
  if (alignment <= alignof(std::max_align_t)) {
    return std::malloc(size == 0 ? 1 : size);
  }
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* const memory = allocate(size, alignment);
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}

}  // namespace

extern "C" {

// Refuses this thread's n-th allocation from now on.
void refuse_the(long n) {
  refused = 0;
  until_refused = n;
}

// Refuses none any more; returns how many were refused.
long refuse_none() {
  until_refused = 0;
  return refused;
}
}

void* operator new(std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new[](std::size_t size) { return allocate_or_throw(size, 1); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
