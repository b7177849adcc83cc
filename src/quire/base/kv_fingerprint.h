// KVFingerprint: opaque identity of everything that decides the bits of a KV value besides the
// token ids. The model computes it; kv only compares it.
#pragma once

#include <array>
#include <cstdint>

namespace quire::base {

// 256 bits over weights, RoPE configuration, dtypes and kernel set. All zero equals nothing, not
// even itself.
struct KVFingerprint {
  std::array<std::uint8_t, 32> bytes{};

  [[nodiscard]] bool empty() const {
    for (const auto byte : bytes) {
      if (byte != 0) {
        return false;
      }
    }
    return true;
  }
  friend bool operator==(const KVFingerprint& a, const KVFingerprint& b) {
    return !a.empty() && a.bytes == b.bytes;
  }
};

}  // namespace quire::base
