#include "counted.h"

#include <execinfo.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "quire/base/sanitized.h"  // IWYU pragma: keep (QUIRE_SANITIZED)

namespace {

std::atomic<std::int64_t> allocations = 0;
std::atomic<std::int64_t> refused = 0;
std::atomic<std::int64_t> waits = 0;
std::atomic<std::int64_t> wakes = 0;
std::atomic<std::int64_t> until_refused = 0;  // counts down; 0: none is
std::atomic<bool> was_refused = false;
thread_local int uncounted = 0;  // objects

// The calls that led to the allocation that was refused last.
std::array<void*, 48> refusal;
int refusal_depth = 0;

// False: it is to be refused.
bool count_allocation() {
  if (uncounted > 0) {
    return true;
  }
  ++allocations;
  if (until_refused.load(std::memory_order_relaxed) <= 0 || until_refused.fetch_sub(1) != 1) {
    return true;
  }
  was_refused = true;
  ++uncounted;
  refusal_depth = ::backtrace(refusal.data(), static_cast<int>(refusal.size()));
  --uncounted;
  return false;
}

constexpr std::uint32_t kPass = 0x51756972;  // as sixth argument: the filter lets a futex call pass

}  // namespace

#if defined(__GLIBC__) && !defined(QUIRE_SANITIZED)

// Everything that the program asks for passes here: operator new, AlignedBuffer, the C library.
// NOLINTBEGIN: glibc's names for its own, and the functions that stand before them
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);

// Returns the result of a refused malloc or of its like.
static void* no_memory() {
  errno = ENOMEM;
  return nullptr;
}

void* malloc(std::size_t bytes) { return count_allocation() ? __libc_malloc(bytes) : no_memory(); }
void* calloc(std::size_t count, std::size_t bytes) {
  return count_allocation() ? __libc_calloc(count, bytes) : no_memory();
}
void* realloc(void* memory, std::size_t bytes) {
  return count_allocation() ? __libc_realloc(memory, bytes) : no_memory();
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  return count_allocation() ? __libc_memalign(alignment, bytes) : no_memory();
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  *memory = count_allocation() ? __libc_memalign(alignment, bytes) : nullptr;
  return *memory == nullptr ? ENOMEM : 0;
}
void* mmap(void* address, std::size_t bytes, int protection, int flags, int file, off_t offset) {
  if (!count_allocation()) {
    no_memory();
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(
      ::syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}
}
// NOLINTEND

#else

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const memory = count_allocation() ? std::malloc(bytes) : nullptr;  // NOLINT: the allocator
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return memory;
}
// A sanitizer's own would not call the one above, and its memory must not end in free below.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return count_allocation() ? std::malloc(bytes) : nullptr;  // NOLINT: the same
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }  // NOLINT
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);  // NOLINT
}

#endif

namespace quire::testing {
namespace {

#if defined(__x86_64__)
std::array<greg_t, 6> arguments_of(const mcontext_t& registers) {
  const auto& all = registers.gregs;
  return {all[REG_RDI], all[REG_RSI], all[REG_RDX], all[REG_R10], all[REG_R8], all[REG_R9]};
}
void set_result(mcontext_t& registers, long result) { registers.gregs[REG_RAX] = result; }
#elif defined(__aarch64__)
std::array<std::uint64_t, 6> arguments_of(const mcontext_t& registers) {
  const auto& all = registers.regs;
  return {all[0], all[1], all[2], all[3], all[4], all[5]};
}
void set_result(mcontext_t& registers, long result) {
  registers.regs[0] = static_cast<std::uint64_t>(result);
}
#endif

// A wake does not read its sixth argument.
void count_system_call(int /*signal*/, siginfo_t* info, void* context) {
  mcontext_t& registers = static_cast<ucontext_t*>(context)->uc_mcontext;
  const auto arguments = arguments_of(registers);
  const bool futex = info->si_syscall == SYS_futex;
  const auto command = static_cast<int>(arguments[1]) & FUTEX_CMD_MASK;
  if (!futex || command != FUTEX_WAKE) {
    const bool waiting = info->si_syscall == SYS_sched_yield ||
                         (futex && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET));
    ++(waiting ? waits : refused);  // one of them: other threads read while this one counts
    set_result(registers, -EAGAIN);
    return;
  }
  ++wakes;
  const int error = errno;
  const long woken = ::syscall(SYS_futex, arguments[0], arguments[1], arguments[2], arguments[3],
                               arguments[4], kPass);
  set_result(registers, woken < 0 ? -errno : woken);
  errno = error;
}

}  // namespace

std::int64_t num_allocations() { return allocations; }
std::int64_t num_refused() { return refused; }
std::int64_t num_waits() { return waits; }
std::int64_t num_wakes() { return wakes; }

void refuse_allocation(std::int64_t n) {
  was_refused = false;
  until_refused = n;
}
bool allocation_was_refused() { return was_refused; }
void print_refusal() { ::backtrace_symbols_fd(refusal.data(), refusal_depth, STDERR_FILENO); }

Uncounted::Uncounted() { ++uncounted; }
Uncounted::~Uncounted() { --uncounted; }

bool refuse_system_calls(Threads threads) {
  struct sigaction action = {};
  action.sa_sigaction = count_system_call;
  action.sa_flags = SA_SIGINFO;
  std::array<sock_filter, 9> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 6, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 5, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[5])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kPass, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog filter = {.len = program.size(), .filter = program.data()};
  const unsigned flags = threads == Threads::kAll ? SECCOMP_FILTER_FLAG_TSYNC : 0;
  const std::int64_t before = refused;
  return ::sigaction(SIGSYS, &action, nullptr) == 0 &&
         ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter) == 0 &&
         ::syscall(SYS_getppid) == -1 && refused == before + 1;
}

}  // namespace quire::testing
