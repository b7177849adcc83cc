// Bell: tells the loop's thread that a run has got tokens.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "api/rounds.h"
#include "loop.h"

namespace quire::server {

// Posts one task however often it is rung until that has run. After a look that found tokens, the
// next look belongs to the next round, and ringing does nothing until then. Threads: ring() from
// any thread; the rest on the loop's thread.
class Bell : public std::enable_shared_from_this<Bell> {
 public:
  // Makes a bell. `look` takes the tokens that are there. It returns true where there were some and
  // more may come.
  Bell(Loop& loop, Rounds& rounds, std::function<bool()> look)
      : loop_(loop), rounds_(rounds), look_(std::move(look)) {}
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  // Sees to it that the run is looked at.
  void ring();

 private:
  void answer();

  Loop& loop_;
  Rounds& rounds_;
  const std::function<bool()> look_;
  std::atomic<bool> rung_ = false;
  bool rests_ = false;  // until the next round
};

}  // namespace quire::server
