// For tests: while one lives, the system grants the process no new thread.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace quire::device {

class NoThreads {
 public:
  // Gives later threads stacks for which there is no room.
  NoThreads() {
    EXPECT_EQ(::pthread_getattr_default_np(&before_), 0);
    pthread_attr_t none;
    EXPECT_EQ(::pthread_getattr_default_np(&none), 0);
    EXPECT_EQ(::pthread_attr_setstacksize(&none, std::size_t{1} << 60), 0);
    EXPECT_EQ(::pthread_setattr_default_np(&none), 0);
    ::pthread_attr_destroy(&none);
  }
  ~NoThreads() {
    EXPECT_EQ(::pthread_setattr_default_np(&before_), 0);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

}  // namespace quire::device
