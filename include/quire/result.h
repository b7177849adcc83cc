// Errors as values: Status, Result<T>, and the one list of error codes that C++ and Python share.
// Header only, standard library only, so that every module and every .cu file may include it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iosfwd>
#include <string>
#include <utility>
#include <variant>

namespace quire {

// What went wrong, by who can mend it. The Python class of each code stands behind it.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,     // ValueError: a parameter is out of range, malformed or unknown
  kNotFound,            // ChunkNotFoundError: no such chunk, sequence, request
  kIncompatible,        // IncompatibleChunksError: made for another model, format or mode
  kInvalidComposition,  // InvalidCompositionError: wrong kinds or number of chunks
  kOverflow,            // KVOverflowError: can never fit, whatever is freed
  kOutOfBlocks,         // OutOfMemoryError: cannot fit now
  kCancelled,           // CancelledError: aborted by the caller
  kClosed,              // ClosedError: the engine was closed
  kUnsupported,         // NotImplementedError: known, not implemented; named
  kCorrupt,             // OSError: a file contradicts itself
  kIo,                  // OSError: the operating system refused
  kDevice,              // DeviceError: accelerator missing or failed
  kInternal,            // QuireError: a bug of ours
};

// Returns the identifier without its k, for messages and JSON ("InvalidArgument").
[[nodiscard]] constexpr const char* error_code_name(ErrorCode code) {
  constexpr const char* kNames[] = {
      "InvalidArgument", "NotFound",    "Incompatible", "InvalidComposition",
      "Overflow",        "OutOfBlocks", "Cancelled",    "Closed",
      "Unsupported",     "Corrupt",     "Io",           "Device",
      "Internal"};
  return kNames[static_cast<std::uint8_t>(code)];
}

// One failure. `message` is lower case, names the thing, gives the two numbers that disagree and
// the way out. The optional fields are set where they apply.
struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message = {};
  std::string chunk_id = {};      // kNotFound, kIncompatible: the chunk meant
  std::int64_t needed_bytes = 0;  // kOutOfBlocks, kOverflow
  std::int64_t free_bytes = 0;    // kOutOfBlocks, kOverflow
};

// Write "NotFound", "NotFound: no chunk ...", "ok"; for logs and tests of programs that include
// <ostream>.
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             ErrorCode code) {
  return out << error_code_name(code);
}
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const Error& error) {
  return out << error.code << ": " << error.message;
}

// Ends the program: it took what is not there without asking ok(). The library itself never does.
[[noreturn]] inline void end_of_unchecked_result(const char* taken, const Error* error) {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-vararg): the caller's mistake, said before it ends
  std::fprintf(stderr, "quire: %s%s%s%s; ask ok() first\n", taken,
               error == nullptr ? "" : error_code_name(error->code), error == nullptr ? "" : ": ",
               error == nullptr ? "" : error->message.c_str());
  std::abort();
}

// Success or an Error. Cheap when ok.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : failed_(true), error_(std::move(error)) {}  // NOLINT: implicit on purpose
  Status(ErrorCode code, std::string message)
      : Status(Error{.code = code, .message = std::move(message)}) {}

  [[nodiscard]] bool ok() const { return !failed_; }
  // Precondition: !ok().
  [[nodiscard]] const Error& error() const& { return error_; }
  [[nodiscard]] Error error() && { return std::move(error_); }

 private:
  bool failed_ = false;
  Error error_;
};

template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out,
                                             const Status& status) {
  return status.ok() ? out << "ok" : out << status.error();
}

// A T or an Error. A temporary gives its content by value, so that loops over it do not dangle. Who
// takes what is not there ends the program with a message on stderr.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit
  Result(ErrorCode code, std::string message)
      : Result(Error{.code = code, .message = std::move(message)}) {}

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  // Precondition: ok().
  [[nodiscard]] T& value() & { return *checked(std::get_if<0>(&state_)); }
  [[nodiscard]] const T& value() const& { return *checked(std::get_if<0>(&state_)); }
  [[nodiscard]] T value() && { return std::move(*checked(std::get_if<0>(&state_))); }
  // Precondition: !ok().
  [[nodiscard]] const Error& error() const& { return *checked(std::get_if<1>(&state_)); }
  [[nodiscard]] Error error() && { return std::move(*checked(std::get_if<1>(&state_))); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
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
#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

// Returns the error of `expr` (a Status or Result) from the enclosing function, if it failed.
#define QUIRE_TRY_STATUS(expr)                            \
  do {                                                    \
    if (auto quire_status = (expr); !quire_status.ok()) { \
      return std::move(quire_status).error();             \
    }                                                     \
  } while (false)

// QUIRE_TRY(auto x, expr): x = the value of the Result `expr`, or returns its error.
#define QUIRE_TRY(declaration, expr) \
  QUIRE_TRY_INNER(QUIRE_CONCAT(quire_result_, __LINE__), declaration, expr)
#define QUIRE_TRY_INNER(name, declaration, expr) \
  auto name = (expr);                            \
  if (!name.ok()) {                              \
    return std::move(name).error();              \
  }                                              \
  declaration = std::move(name).value()
// NOLINTEND(bugprone-macro-parentheses)
