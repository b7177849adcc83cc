// ApiError: a refusal or failure as clients see it, with its HTTP status and code. Checked<T> is a
// T or an ApiError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "message.h"
#include "quire/result.h"

namespace quire::server {

// A refusal or failure of one request. Plain data.
struct ApiError {
  int status = 500;
  // Code of the table in docs/http.md, as "invalid_value". Static memory.
  const char* code = "internal";
  // Begins with `param`, where there is one.
  std::string message = {};
  // JSON path of the field meant, as "messages[2].content". "": null.
  std::string param = {};
  // The core's error behind it.
  std::optional<ErrorCode> cause = {};
  std::string chunk_id = {};
  std::int64_t needed_bytes = 0;
  std::int64_t free_bytes = 0;
  // Both given with `context_length_exceeded`.
  std::optional<std::int64_t> prompt_tokens = {};
  std::optional<std::int64_t> context_tokens = {};
  // Milliseconds after which another try may go through. Given for every 429 and 503.
  std::optional<std::int64_t> retry_after_ms = {};
  // False: another try of the same request cannot go through (`x-should-retry: false`).
  bool retryable = true;
  // True: the connection is closed behind the answer.
  bool close = false;
};

// Holds a T or an ApiError. api_error() converts an Error of the core. QUIRE_TRY works on it.
template <class T>
class [[nodiscard]] Checked {
 public:
  using value_type = T;
  Checked(T value) : state_(std::in_place_index<0>, std::move(value)) {}         // NOLINT
  Checked(ApiError error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT
  Checked(const Error& error);                                                   // NOLINT

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  // Returns the value, or throws where !ok(). Likewise error() throws where ok().
  [[nodiscard]] T& value() & { return std::get<0>(state_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(state_); }
  [[nodiscard]] T value() && { return std::get<0>(std::move(state_)); }
  [[nodiscard]] const ApiError& error() const& { return std::get<1>(state_); }
  [[nodiscard]] ApiError error() && { return std::get<1>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, ApiError> state_;
};

// Success or an ApiError.
struct Nothing {};
using Check = Checked<Nothing>;
inline Check passed() { return Nothing{}; }

// Returns the error that a client gets for an error of the core. `param` names the field meant, or
// is "".
[[nodiscard]] ApiError api_error(const Error& error, std::string param = {});

// Returns a refusal of one field, with the message "PARAM: MESSAGE".
// * invalid: the value is malformed or out of range.
// * missing: the field is required.
// * unsupported: the field, or its value, is known but not implemented.
[[nodiscard]] ApiError invalid(std::string param, std::string_view message);
[[nodiscard]] ApiError missing(std::string param);
[[nodiscard]] ApiError unsupported(std::string param, std::string_view message);
// Returns an error with status and code. A 503 or 429 also gets a time to wait.
[[nodiscard]] ApiError refusal(int status, const char* code, std::string message);

// Shapes of error bodies: of OpenAI's, Anthropic's and Gemini's API.
enum class ErrorShape : std::uint8_t { kOpenAI, kAnthropic, kGemini };

// Returns the body of an error, one line of JSON. `admin` false: leaves out the server's file
// names.
[[nodiscard]] std::string error_body(const ApiError& error, ErrorShape shape, bool admin);
// Returns the response for an error, with headers such as `retry-after` and `x-should-retry`.
[[nodiscard]] Response error_response(const ApiError& error, ErrorShape shape = ErrorShape::kOpenAI,
                                      bool admin = true);
// Returns the response for a refusal by the transport. `code` is static memory. `param` "" is null.
[[nodiscard]] Response error_response(int status, const char* code, std::string message,
                                      std::string param = {});
// Returns the `type` of an error body in OpenAI's shape. Static memory.
[[nodiscard]] const char* error_type(int status);

template <class T>
Checked<T>::Checked(const Error& error) : state_(std::in_place_index<1>, api_error(error)) {}

}  // namespace quire::server
