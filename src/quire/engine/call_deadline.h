// CallDeadline: ends a call when its deadline has passed, also between and before its requests.
//
// The engine ends a request by its deadline. A call that registers chunks, or makes one request
// behind another, has work beside them, which this ends as an interrupt does.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "quire/engine/active_request.h"
#include "quire/interrupt.h"
#include "quire/options.h"
#include "quire/result.h"

namespace quire::engine {

// Returns the error of a deadline that has passed while the request was in `state`.
[[nodiscard]] Error passed_deadline(double seconds, std::string_view state);

class CallDeadline {
 public:
  // Begins a call that `interrupted` may end. The first deadline of several options counts.
  CallDeadline(std::span<const RequestOptions> options, const Interrupt& interrupted);
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

  // Returns the interrupt for what the call does. It ends the call at its deadline, too.
  [[nodiscard]] const Interrupt& interrupt() const { return interrupt_; }
  // Returns the result of the call. A call that its deadline has ended says so.
  template <class T>
  [[nodiscard]] Result<T> ended(Result<T> result) const {
    const bool by_deadline =
        !result.ok() && result.error().code == ErrorCode::kCancelled && has_passed();
    return by_deadline ? Result<T>(passed_deadline(seconds_, "ran")) : std::move(result);
  }

 private:
  [[nodiscard]] bool has_passed() const { return end_ && Clock::now() >= *end_; }

  double seconds_ = 0;
  std::optional<Clock::time_point> end_;  // absent: no deadline
  Interrupt interrupt_;
};

}  // namespace quire::engine
