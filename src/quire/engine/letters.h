// Work that is sent to the engine's thread.
#pragma once

#include <functional>
#include <list>

namespace quire::engine {

// Letters that must get there although memory is short are made beforehand: a list of one, whose
// function is put in when it is sent. Sending moves it from list to list and needs no memory.
using Letters = std::list<std::function<void()>>;

}  // namespace quire::engine
