// Integer division that rounds up.
#pragma once

#include <type_traits>

namespace quire::base {

// Returns a / b rounded up, for a >= 0 and b > 0.
template <class A, class B>
[[nodiscard]] constexpr std::common_type_t<A, B> divide_up(A a, B b) {
  return (a + b - 1) / b;
}

}  // namespace quire::base
