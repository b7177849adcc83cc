// Tasks: work that is sent to the engine's thread.
#pragma once

#include <functional>
#include <list>

namespace quire::engine {

// A list, so that sending moves a task from list to list and needs no memory. A task that must get
// there although memory is short is made beforehand. It is a list of one, whose function is put in
// when it is sent.
using Tasks = std::list<std::function<void()>>;

}  // namespace quire::engine
