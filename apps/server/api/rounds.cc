#include "api/rounds.h"

#include <functional>
#include <utility>

#include "loop.h"

namespace quire::server {

void Rounds::join(std::function<void()> task) {
  if (next_.empty()) {
    loop_.after(interval_, [this] { hold(); });
  }
  next_.push_back(std::move(task));
}

void Rounds::hold() {
  for (const auto& task : std::exchange(next_, {})) {
    task();
  }
}

}  // namespace quire::server
