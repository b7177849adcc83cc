#include "quire/kv_store/out_of_fork.h"

#include <pthread.h>

namespace quire::kv_store {
namespace {

// Belongs to the process, as SQLite's own mutexes do: handlers of a fork take no argument. Readers
// go first, so a scope within a scope does not wait.
// NOLINTNEXTLINE(misc-include-cleaner): pthread.h includes the header that has the type
pthread_rwlock_t gate = PTHREAD_RWLOCK_INITIALIZER;

void close_gate() { pthread_rwlock_wrlock(&gate); }
void open_gate() { pthread_rwlock_unlock(&gate); }
void renew_gate() { gate = PTHREAD_RWLOCK_INITIALIZER; }

}  // namespace

OutOfFork::OutOfFork() {
  [[maybe_unused]] static const int handled = pthread_atfork(close_gate, open_gate, renew_gate);
  pthread_rwlock_rdlock(&gate);
}

OutOfFork::~OutOfFork() { pthread_rwlock_unlock(&gate); }

}  // namespace quire::kv_store
