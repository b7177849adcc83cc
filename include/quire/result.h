// Errors as values: Status, Result<T>, and the one list of error codes that C++, C, Python and HTTP
// share. Header only, standard library only, so that every module and every .cu file may include
// it.
#pragma once

#include <cstdint>
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

// A T or an Error. A temporary gives its content by value, so that loops over it do not dangle.
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
  [[nodiscard]] T& value() & { return *std::get_if<0>(&state_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&state_); }
  [[nodiscard]] T value() && { return std::move(*std::get_if<0>(&state_)); }
  // Precondition: !ok().
  [[nodiscard]] const Error& error() const& { return *std::get_if<1>(&state_); }
  [[nodiscard]] Error error() && { return std::move(*std::get_if<1>(&state_)); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
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
