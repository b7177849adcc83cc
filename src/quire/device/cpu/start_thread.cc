#include "quire/device/cpu/start_thread.h"

#include <functional>
#include <system_error>
#include <thread>
#include <utility>

namespace quire::device {

std::thread start_thread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error&) {
    return {};
  }
}

}  // namespace quire::device
