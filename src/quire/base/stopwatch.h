// Where time goes: seconds since a point, and laps of one clock that begins when the object does.
#pragma once

#include <chrono>

namespace quire::base {

[[nodiscard]] inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Stopwatch {
 public:
  // Adds the seconds since the last lap to `part`. Cost: a read of the clock, about 30 ns.
  void lap(double& part) {
    const auto now = std::chrono::steady_clock::now();
    part += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace quire::base
