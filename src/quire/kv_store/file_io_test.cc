#include "quire/kv_store/file_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quire/kv_store/test_support.h"
#include "quire/result.h"

namespace quire::kv_store {
namespace {

// From now on a file without a name is refused, as some file systems do. False where that is not
// allowed.
bool refuse_unnamed_files() {
  std::array filter = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                           offsetof(seccomp_data, args) + 2 * sizeof(__u64)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TMPFILE & ~O_DIRECTORY, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EOPNOTSUPP),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

std::vector<std::string> names_in(const std::filesystem::path& path) {
  std::vector<std::string> names;
  EXPECT_TRUE(for_each_name(path, [&](const std::string& name) { names.push_back(name); }).ok());
  std::ranges::sort(names);
  return names;
}

constexpr std::string_view kWritten = "what is written";

// Writes a file of the name, and commits it or, as a killed process, does not.
bool write_new(const std::filesystem::path& path, bool killed) {
  const Folder folder = Folder::open(path).value();
  auto file = NewFile::create(folder, "saved");
  const auto bytes = std::as_bytes(std::span(kWritten.data(), kWritten.size()));
  const bool written = file.ok() && write_at(file->descriptor(), bytes, 0, "saved").ok();
  if (killed) {
    ::_exit(written ? 0 : 1);
  }
  return written && file->commit(true).ok();
}

// Runs in a process of its own, in which files without a name are refused or not; its exit code.
int in_process(bool unnamed, const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!unnamed && !refuse_unnamed_files()) {
      ::_exit(2);
    }
    ::_exit(body() ? 0 : 1);
  }
  int ended = 0;
  EXPECT_EQ(::waitpid(child, &ended, 0), child);
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : -1;
}

TEST(FileIo, AWriterThatDiesLeavesNothingOrWhatTheNextOneRemoves) {
  for (const bool unnamed : {true, false}) {
    const TemporaryFolder folder;
    ASSERT_EQ(in_process(unnamed, [&] { return write_new(folder.path(), true); }), 0);
    EXPECT_EQ(names_in(folder.path()).size(), unnamed ? 0U : 1U);
    for (int i = 0; i < 2; ++i) {  // new, then in place of another
      ASSERT_EQ(in_process(unnamed, [&] { return write_new(folder.path(), false); }), 0);
      EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"saved"});
    }
    const std::vector<char> bytes = file_bytes_of(folder.path() / "saved");
    EXPECT_EQ(std::string(bytes.begin(), bytes.end()), kWritten);
  }
}

TEST(FileIo, WritersOfOneNameAtATimeAllEndWell) {
  for (const bool unnamed : {true, false}) {
    const TemporaryFolder folder;
    std::vector<pid_t> writers;
    for (int i = 0; i < 4; ++i) {
      writers.push_back(::fork());
      if (writers.back() == 0) {
        bool good = unnamed || refuse_unnamed_files();
        for (int round = 0; good && round < 50; ++round) {
          good = write_new(folder.path(), false);
        }
        ::_exit(good ? 0 : 1);
      }
    }
    for (const pid_t writer : writers) {
      int ended = 0;
      ASSERT_EQ(::waitpid(writer, &ended, 0), writer);
      EXPECT_EQ(ended, 0);
    }
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"saved"});
  }
}

}  // namespace
}  // namespace quire::kv_store
