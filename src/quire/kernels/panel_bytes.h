// Numbers in the bytes of a packed panel.
#pragma once

#include <cstddef>
#include <cstring>

namespace quire::kernels {

inline constexpr int kTileColumns = 16;

// Write and read a number whose place is not aligned.
template <class T>
void put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}
template <class T>
[[nodiscard]] T get(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

}  // namespace quire::kernels
