// OutOfFork: a scope in which the process is not forked.
#pragma once

namespace quire::kv_store {

// Keeps every fork of the process out while a thread is inside SQLite. A child inherits SQLite's
// mutexes as they are: one that another thread holds would stay locked in it for ever.
// Scopes may nest. Cost: an uncontended lock for reading. A fork waits for the calls that run.
class OutOfFork {
 public:
  OutOfFork();
  ~OutOfFork();
  OutOfFork(const OutOfFork&) = delete;
  OutOfFork& operator=(const OutOfFork&) = delete;
};

}  // namespace quire::kv_store
