// Errors as values: Status, Result<T>, and the one list of error codes that C++ and Python share.
// Header only, standard library only, so that every module and every .cu file may include it.
//
// Ask ok() before value() or error(). Error, Status and Result are plain values without locks: any
// number of threads may read one that nobody changes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iosfwd>
#include <string>
#include <utility>
#include <variant>

namespace quire {

// Names the cause of a failure, by who can mend it. Each code has one class in Python.
enum class ErrorCode : std::uint8_t {
  // A parameter is out of range, malformed or unknown.
  // Python: ValueError.
  kInvalidArgument,
  // No such chunk, sequence, session or request exists.
  // Python: ChunkNotFoundError.
  kNotFound,
  // The thing was made for another model, format or mode.
  // Python: IncompatibleChunksError.
  kIncompatible,
  // The chunks are of the wrong kinds or number, or blocks are stale.
  // Python: InvalidCompositionError.
  kInvalidComposition,
  // The request can never fit, whatever is freed.
  // Python: KVOverflowError.
  kOverflow,
  // The request does not fit now, or memory was refused; nothing has changed.
  // Python: OutOfMemoryError.
  kOutOfBlocks,
  // The caller has aborted the work.
  // Python: CancelledError.
  kCancelled,
  // The engine was closed, or this is a forked child of the process that opened it.
  // Python: ClosedError.
  kClosed,
  // The thing is known but not implemented; the message names it.
  // Python: UnsupportedError.
  kUnsupported,
  // A file contradicts itself.
  // Python: OSError.
  kCorrupt,
  // The operating system refused.
  // Python: OSError.
  kIo,
  // The accelerator is missing or failed.
  // Python: DeviceError.
  kDevice,
  // Quire has a bug.
  // Python: QuireError.
  kInternal,
  // LLMOptions::max_waiting allows no more requests to wait; nothing has changed.
  // Python: QueueFullError.
  kQueueFull,
};

// Returns the identifier without its k, for messages and JSON ("InvalidArgument"). Static memory.
[[nodiscard]] constexpr const char* error_code_name(ErrorCode code) {
  constexpr const char* kNames[] = {
      "InvalidArgument", "NotFound",    "Incompatible", "InvalidComposition",
      "Overflow",        "OutOfBlocks", "Cancelled",    "Closed",
      "Unsupported",     "Corrupt",     "Io",           "Device",
      "Internal",        "QueueFull"};
  return kNames[static_cast<std::uint8_t>(code)];
}

// One failure: a code for the program, a message for people.
// The fields behind `message` are set where they apply, and empty or 0 elsewhere.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  // Lower case. Names the thing, the two numbers that disagree and the way out.
  std::string message = {};
  // The chunk meant, for example with kNotFound and kIncompatible.
  std::string chunk_id = {};
  // Bytes that were wanted and bytes that could be had, with kOutOfBlocks and kOverflow. With
  // kQueueFull: the bytes that the KV of the refused requests would have needed.
  std::int64_t needed_bytes = 0;
  std::int64_t free_bytes = 0;
  // The errno of the operating system, with kIo where one is known. ENOENT: no such file or folder;
  // Python raises the OSError of that errno (FileNotFoundError).
  int system_error = 0;
  // The number of refused requests, with kQueueFull.
  std::int64_t requests = 0;
};

// Writes a code ("NotFound"). The three operators << of this header are for logs and tests.
// Programs that use them include <ostream>.
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             ErrorCode code) {
  return out << error_code_name(code);
}
// Writes a code and its message ("NotFound: no chunk ...").
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const Error& error) {
  return out << error.code << ": " << error.message;
}

// Ends the program with a message on stderr. The program took a value or an error that is not
// there, without asking ok(); the library itself never does.
// `taken` says what the program took. `error` is the error of the failed Result, or null.
[[noreturn]] inline void end_of_unchecked_result(const char* taken, const Error* error) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg): the caller's mistake, said before it ends
  std::fprintf(stderr, "quire: %s%s%s%s; ask ok() first\n", taken,
               error == nullptr ? "" : error_code_name(error->code), error == nullptr ? "" : ": ",
               error == nullptr ? "" : error->message.c_str());
  std::abort();
}

// Holds success or an Error, and owns the error.
// A Status that is ok allocates nothing. A call that can fail and has no other result returns one.
class [[nodiscard]] Status {
 public:
  // Makes a Status that is ok.
  Status() = default;
  // Makes a failed Status. An Error converts by itself, so that a function can return one directly.
  Status(Error error) : failed_(true), error_(std::move(error)) {}  // NOLINT: implicit on purpose
  // Makes a failed Status whose error has a code and a message only.
  Status(ErrorCode code, std::string message)
      : Status(Error{.code = code, .message = std::move(message)}) {}

  // Returns true for success. O(1).
  [[nodiscard]] bool ok() const { return !failed_; }
  // Returns the error, a reference into the Status. Precondition: !ok(); not checked.
  [[nodiscard]] const Error& error() const& { return error_; }
  // Moves the error out of a temporary.
  [[nodiscard]] Error error() && { return std::move(error_); }

 private:
  bool failed_ = false;
  Error error_;
};

// Writes "ok" or the error.
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const Status& status) {
  return status.ok() ? out << "ok" : out << status.error();
}

// Holds a T or an Error, and owns either.
//
// value() and error() of a temporary return by value, so that loops over them do not dangle. The
// operators * and -> return references into the Result: keep the Result while they are used.
// Taking a value or an error that is not there ends the program with a message on stderr.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  // Makes a Result from a value, or a failed Result from an Error. Both convert by themselves, so
  // that a function can return either directly.
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit
  // Makes a failed Result whose error has a code and a message only.
  Result(ErrorCode code, std::string message)
      : Result(Error{.code = code, .message = std::move(message)}) {}

  // Returns true when a value is there. O(1). A value that was moved out still counts as there.
  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  // Returns the value, a reference into the Result.
  // Precondition: ok(); checked.
  [[nodiscard]] T& value() & { return *checked(std::get_if<0>(&state_)); }
  [[nodiscard]] const T& value() const& { return *checked(std::get_if<0>(&state_)); }
  // Moves the value out of a temporary. Precondition: ok(); checked.
  [[nodiscard]] T value() && { return std::move(*checked(std::get_if<0>(&state_))); }
  // Returns the error, a reference into the Result.
  // Precondition: !ok(); checked.
  [[nodiscard]] const Error& error() const& { return *checked(std::get_if<1>(&state_)); }
  // Moves the error out of a temporary. Precondition: !ok(); checked.
  [[nodiscard]] Error error() && { return std::move(*checked(std::get_if<1>(&state_))); }

  // Returns a reference to the value. Precondition: ok(); checked.
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  // Gives access to the members of the value. Precondition: ok(); checked.
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  // Returns `part`; ends the program where it is null.
  template <class Part>
  Part* checked(Part* part) const {
    if (part == nullptr) [[unlikely]] {
      const Error* const error = std::get_if<1>(&state_);
      end_of_unchecked_result(error == nullptr ? "error() of a Result that has a value"
                                               : "value() of a failed Result: ",
                              error);
    }
    return part;
  }

  std::variant<T, Error> state_;
};

}  // namespace quire

// NOLINTBEGIN(bugprone-macro-parentheses): a declaration and type names cannot stand in them.
// Joins two tokens after macros in them were expanded. For QUIRE_TRY alone.
#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

// Returns the error of `expr` from the enclosing function, if `expr` has failed. `expr` is a Status
// or a Result, and is evaluated once.
// The enclosing function returns a Status or a Result.
#define QUIRE_TRY_STATUS(expr)                            \
  do {                                                    \
    if (auto quire_status = (expr); !quire_status.ok()) { \
      return std::move(quire_status).error();             \
    }                                                     \
  } while (false)

// QUIRE_TRY(auto x, expr) moves the value of `expr` into x, or returns the error of `expr` from the
// enclosing function. `expr` is a Result, and is evaluated once.
// The enclosing function returns a Status or a Result.
// The macro expands to several statements: put braces around it behind an `if` or a loop.
#define QUIRE_TRY(declaration, expr) \
  QUIRE_TRY_INNER(QUIRE_CONCAT(quire_result_, __LINE__), declaration, expr)
#define QUIRE_TRY_INNER(name, declaration, expr) \
  auto name = (expr);                            \
  if (!name.ok()) {                              \
    return std::move(name).error();              \
  }                                              \
  declaration = std::move(name).value()
// NOLINTEND(bugprone-macro-parentheses)
