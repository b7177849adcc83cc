// Uninitialised storage of trivial elements, 64-byte aligned; buffers of 2 MiB and more begin at
// the border of a huge page, with huge pages advised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace quire::device {

// Returns nullptr when the system refuses. Free with free_aligned and the same size.
[[nodiscard]] void* allocate_aligned(std::size_t bytes);
void free_aligned(void* data, std::size_t bytes);

// Asks the system for small pages, of memory that is given back in small pieces.
void advise_small_pages(std::byte* data, std::size_t bytes);
// Gives pages back to the system. Their contents are lost; they are there again at the next write.
// Precondition: both ends are borders of pages.
void give_back_pages(std::byte* data, std::size_t bytes);
[[nodiscard]] std::size_t page_bytes();

// Move only; not thread-safe. A failed allocation leaves size() == 0: callers of sizes that a user
// chose check it.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size)
      : data_(size == 0 || size > SIZE_MAX / sizeof(T)
                  ? nullptr
                  : static_cast<T*>(allocate_aligned(size * sizeof(T)))),
        size_(data_ == nullptr ? 0 : size) {}
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { free_aligned(data_, size_ * sizeof(T)); }

  [[nodiscard]] T* data() { return data_; }
  [[nodiscard]] const T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<T> span() { return {data_, size_}; }
  [[nodiscard]] std::span<const T> span() const { return {data_, size_}; }
  // Makes room for at least `size` elements; contents are lost when it grows.
  void reserve(std::size_t size) {
    if (size > size_) {
      *this = AlignedBuffer();
      *this = AlignedBuffer(size);
    }
  }
  // Does the same, and throws std::bad_alloc where the system refuses.
  void require(std::size_t size) {
    reserve(size);
    if (size_ < size) {
      throw std::bad_alloc();
    }
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace quire::device
