// KVFingerprint: identity of everything that decides the bits of a KV value besides the token ids.
// The engine makes it (engine/saved_state.h), and kv_store compares it when it reads KV.
#pragma once

#include <array>
#include <cstdint>

namespace quire::base {

// 256 bits: a SHA-256 over config, weights, KV dtype, vocabulary and kernels. The name of the
// kernels is empty in files that grade KV of other kernels instead of refusing it. An empty
// fingerprint, all zero, equals nothing, not even itself.
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
