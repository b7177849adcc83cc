// How a caller ends work that runs in its thread.
#pragma once

#include <functional>

namespace quire {

// How often whoever waits looks whether the wait was interrupted.
inline constexpr int kInterruptPollMs = 50;

// Asked at least every kInterruptPollMs in the calling thread while a call waits or works on text;
// true aborts its requests and the call returns kCancelled (Ctrl-C in the bindings). May be empty.
using Interrupt = std::function<bool()>;

}  // namespace quire
