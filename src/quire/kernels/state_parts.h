// How a GPU divides the keys of a state's matrix. Sums over keys are the sums of the parts, each in
// order of its keys, added as a tree of neighbours. No CUDA, so that tests add alike.
#pragma once

namespace quire::kernels {

inline constexpr int kKeyParts = 16;
inline constexpr int kPartVector = 4;  // keys side by side; then come those of the next part

// Returns the part that has a key.
[[nodiscard]] constexpr int key_part(int key) { return key / kPartVector % kKeyParts; }

}  // namespace quire::kernels
