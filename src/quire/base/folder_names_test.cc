#include "quire/base/folder_names.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <functional>
#include <string>

#include "quire/base/temporary_folder.h"
#include "quire/result.h"

namespace quire::base {
namespace {

constexpr int kFiles = 3000;  // more than the system lists at once

// From now on the process can list no folder. False where that is not allowed.
bool refuse_listing() {
  std::array filter = {sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                       sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getdents64, 0, 1),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EIO),
                       sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(FolderNames, AFolderThatFailsWhileItIsListedIsAnError) {
  const TemporaryFolder folder;
  for (int i = 0; i < kFiles; ++i) {
    const std::ofstream empty(folder.path() / std::to_string(i));
  }
  int visited = 0;
  EXPECT_TRUE(for_each_name(folder.path(), [&](const std::string&) { ++visited; }).ok());
  EXPECT_EQ(visited, kFiles);
  constexpr int kRefused = 0, kListed = 1, kNotAllowed = 2;
  const pid_t child = ::fork();
  if (child == 0) {
    bool first = true;
    const Status listed = for_each_name(folder.path(), [&](const std::string&) {
      if (first && !refuse_listing()) {
        ::_exit(kNotAllowed);
      }
      first = false;
    });
    ::_exit(!listed.ok() && listed.error().code == ErrorCode::kIo ? kRefused : kListed);
  }
  int ended = 0;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  ASSERT_TRUE(WIFEXITED(ended)) << "it was killed by signal " << WTERMSIG(ended);
  if (WEXITSTATUS(ended) == kNotAllowed) {
    GTEST_SKIP() << "filtering system calls is not allowed here";
  }
  EXPECT_EQ(WEXITSTATUS(ended), kRefused);
}

TEST(FolderNames, AFolderThatIsNotThereIsNotListed) {
  const TemporaryFolder folder;
  const Status listed = for_each_name(folder.path() / "none", [](const std::string&) { FAIL(); });
  EXPECT_EQ(listed.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace quire::base
