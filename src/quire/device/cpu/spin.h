// Lets threads wait for what other threads will soon have done.
#pragma once

#include <thread>

namespace quire::device {

// Tells the core that this is a loop of waiting.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Returns when ready() does; what takes longer than a millisecond leaves the core to others.
template <class Ready>
void spin_until(Ready ready) {
  constexpr int kSpinsBeforeYield = 20000;
  for (int spins = 0; !ready(); ++spins) {
    relax();
    if (spins > kSpinsBeforeYield) {
      std::this_thread::yield();
    }
  }
}

}  // namespace quire::device
