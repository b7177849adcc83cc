#include "api/bell.h"

#include "api/rounds.h"
#include "loop.h"

namespace quire::server {

void Bell::ring() {
  if (!rung_.exchange(true)) {
    loop_.post([self = shared_from_this()] { self->answer(); });
  }
}

void Bell::answer() {
  if (rests_) {  // rung while it was being answered
    (void)look_();
    return;
  }
  rung_ = false;
  if (!look_() || !rounds_.held()) {
    return;
  }
  rests_ = true;
  rung_ = true;
  rounds_.join([self = shared_from_this()] {
    self->rests_ = false;
    self->answer();
  });
}

}  // namespace quire::server
