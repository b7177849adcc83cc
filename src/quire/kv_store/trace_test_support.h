// Runs a process that stops before each of its calls that changes files, for tests of what it
// leaves if it ends there.
#pragma once

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <set>

namespace quire::kv_store {

// Returns whether a system call changes a file, a name or a lock.
inline bool changes_something(std::uint64_t call) {
  static const std::set<std::uint64_t> calls = {
      SYS_write,     SYS_pwrite64,  SYS_writev,    SYS_pwritev,  SYS_pwritev2,        SYS_fsync,
      SYS_fdatasync, SYS_renameat,  SYS_renameat2, SYS_unlinkat, SYS_mkdirat,         SYS_openat,
      SYS_ftruncate, SYS_fallocate, SYS_utimensat, SYS_fchmod,   SYS_sync_file_range, SYS_fcntl,
      SYS_flock,     SYS_fchown,    SYS_linkat,
#ifdef SYS_rename
      SYS_rename,    SYS_unlink,    SYS_mkdir,     SYS_open,
#endif
  };
  return calls.contains(call);
}

// A call that a traced process is about to make.
struct FileCall {
  int count = 0;  // from 1
  pid_t process = 0;
  std::uint64_t number = 0;  // SYS_...
  std::uint64_t arguments[2] = {};
};

enum class Ended : std::uint8_t { kKilled, kByItself, kNotTraced };

// Runs `body` in a process of its own, which stops before each such call. There `visit` sees what a
// process that ends now leaves, and returns whether to kill it. kNotTraced where the system forbids
// tracing.
inline Ended trace(const std::function<bool()>& body,
                   const std::function<bool(const FileCall&)>& visit) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) {
      ::_exit(2);
    }
    ::raise(SIGSTOP);
    ::_exit(body() ? 0 : 1);
  }
  int state = 0, count = 0;
  ::waitpid(child, &state, 0);
  if (!WIFSTOPPED(state)) {
    return Ended::kNotTraced;
  }
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  while (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0 &&
         ::waitpid(child, &state, 0) == child && WIFSTOPPED(state)) {
    __ptrace_syscall_info info{};
    if (WSTOPSIG(state) != (SIGTRAP | 0x80) ||
        ::ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof(info), &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY || !changes_something(info.entry.nr)) {
      continue;
    }
    const FileCall call = {.count = ++count,
                           .process = child,
                           .number = info.entry.nr,
                           .arguments = {info.entry.args[0], info.entry.args[1]}};
    if (visit(call)) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &state, 0);
      return Ended::kKilled;
    }
  }
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0) << "state " << state;
  return Ended::kByItself;
}

}  // namespace quire::kv_store
