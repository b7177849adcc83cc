// Interrupt: how a caller ends work that runs in its own thread.
#pragma once

#include <functional>

namespace quire {

// Longest time between two questions to an Interrupt, in milliseconds.
inline constexpr int kInterruptPollMs = 50;

// Function of a caller that returns true to end the call that asks. The call then aborts its
// requests and returns kCancelled (Ctrl-C in the bindings).
// A call asks in its own thread, at least every kInterruptPollMs while its requests run or while it
// works on text. A call does not ask while it hands a request to the engine, which may take until
// the running step has ended.
// An empty function never interrupts.
using Interrupt = std::function<bool()>;

}  // namespace quire
