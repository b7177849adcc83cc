// How often a call that waits asks whether it was interrupted.
#pragma once

#include <chrono>

namespace quire::engine {

inline constexpr int kInterruptPollMs = 50;
inline constexpr std::chrono::milliseconds kInterruptPoll{kInterruptPollMs};

}  // namespace quire::engine
