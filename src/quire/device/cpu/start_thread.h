// Threads where the system may grant no more: std::thread says so by an exception.
#pragma once

#include <functional>
#include <thread>

namespace quire::device {

// Starts a thread that does `work`. Returns one that is not joinable where the system grants none.
[[nodiscard]] std::thread start_thread(std::function<void()> work);

}  // namespace quire::device
