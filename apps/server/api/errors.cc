#include "api/errors.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "api/utf8.h"
#include "message.h"
#include "quire/result.h"

namespace quire::server {
namespace {

namespace json = boost::json;

constexpr std::int64_t kRetryMs = 1000;

struct StatusOf {
  int status;
  const char* code;
  bool retryable;
};

StatusOf status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return {400, "invalid_value", false};
    case ErrorCode::kInvalidComposition:
      return {400, "invalid_composition", false};
    case ErrorCode::kUnsupported:
      return {400, "unsupported_parameter", false};
    case ErrorCode::kOverflow:
      return {400, "too_large", false};
    case ErrorCode::kNotFound:
      return {404, "not_found", false};
    case ErrorCode::kIncompatible:
      return {409, "incompatible", false};
    case ErrorCode::kCancelled:
      return {409, "request_cancelled", false};
    case ErrorCode::kOutOfBlocks:
      return {503, "out_of_blocks", true};
    case ErrorCode::kQueueFull:
      return {429, "queue_full", true};
    case ErrorCode::kClosed:
      return {503, "draining", true};
    case ErrorCode::kCorrupt:
      return {500, "corrupt", false};
    case ErrorCode::kIo:
      return {500, "io", false};
    case ErrorCode::kDevice:
      return {500, "device", false};
    case ErrorCode::kInternal:
      break;
  }
  return {500, "internal", false};
}

// Returns the message without words that hold a "/", which are paths of the server.
std::string without_paths(const std::string& message) {
  std::string kept;
  std::size_t at = 0;
  while (at < message.size()) {
    const std::size_t end = std::min(message.find(' ', at), message.size());
    const std::string_view word = std::string_view(message).substr(at, end - at);
    kept += word.find('/') == std::string_view::npos ? word : "(path)";
    if (end < message.size()) {
      kept += ' ';
    }
    at = end + 1;
  }
  return kept;
}

json::object quire_member(const ApiError& error) {
  json::object quire;
  quire["error_code"] = error.cause ? json::value(error_code_name(*error.cause)) : nullptr;
  if (!error.chunk_id.empty()) {
    quire["chunk_id"] = repaired_utf8(error.chunk_id);
  }
  if (error.needed_bytes > 0) {
    quire["needed_bytes"] = error.needed_bytes;
    quire["free_bytes"] = error.free_bytes;
  }
  return quire;
}

json::object openai_shape(const ApiError& error, const std::string& message) {
  json::object inner;
  inner["message"] = repaired_utf8(message);
  inner["type"] = error_type(error.status);
  inner["param"] =
      error.param.empty() ? json::value(nullptr) : json::value(repaired_utf8(error.param));
  inner["code"] = error.code;
  if (error.prompt_tokens) {
    inner["n_prompt_tokens"] = *error.prompt_tokens;
  }
  if (error.context_tokens) {
    inner["n_ctx"] = *error.context_tokens;
  }
  json::object body;
  body["error"] = std::move(inner);
  body["quire"] = quire_member(error);
  return body;
}

}  // namespace

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 && status != 505 ? "server_error" : "invalid_request_error";
  }
}

ApiError api_error(const Error& error, std::string param) {
  const StatusOf known = status_of(error.code);
  ApiError made{.status = known.status,
                .code = known.code,
                .message = param.empty() ? error.message : param + ": " + error.message,
                .param = std::move(param),
                .cause = error.code,
                .chunk_id = error.chunk_id,
                .needed_bytes = error.needed_bytes,
                .free_bytes = error.free_bytes,
                .retryable = known.retryable};
  if (error.code == ErrorCode::kNotFound && !error.chunk_id.empty()) {
    made.code = "chunk_not_found";
  }
  if (known.status == 503 || known.status == 429) {
    made.retry_after_ms = kRetryMs;
  }
  return made;
}

ApiError invalid(std::string param, std::string_view message) {
  std::string text = param.empty() ? std::string(message) : param + ": " + std::string(message);
  return {.status = 400,
          .code = "invalid_value",
          .message = std::move(text),
          .param = std::move(param),
          .cause = ErrorCode::kInvalidArgument,
          .retryable = false};
}

ApiError missing(std::string param) {
  ApiError error = invalid(std::move(param), "is required");
  error.code = "missing_required_parameter";
  return error;
}

ApiError unsupported(std::string param, std::string_view message) {
  ApiError error = invalid(std::move(param), message);
  error.code = "unsupported_parameter";
  error.cause = ErrorCode::kUnsupported;
  return error;
}

ApiError refusal(int status, const char* code, std::string message) {
  ApiError error{.status = status, .code = code, .message = std::move(message)};
  error.retryable = status == 429 || status == 503 || status == 408;
  if (status == 429 || status == 503) {
    error.retry_after_ms = kRetryMs;
  }
  return error;
}

std::string error_body(const ApiError& error, ErrorShape shape, bool admin) {
  std::string message =
      error.status >= 500 && !admin ? without_paths(error.message) : error.message;
  // The other two shapes come with the endpoints that have them.
  (void)shape;
  return json::serialize(openai_shape(error, message));
}

Response error_response(const ApiError& error, ErrorShape shape, bool admin) {
  Response response{.status = error.status};
  response.body = error_body(error, shape, admin);
  response.close = error.close;
  if (error.status == 401) {
    response.headers.push_back({"www-authenticate", "Bearer"});
  }
  if (error.retry_after_ms) {
    const std::int64_t seconds =
        std::clamp<std::int64_t>((*error.retry_after_ms + 999) / 1000, 1, 60);
    response.headers.push_back({"retry-after", std::to_string(seconds)});
    response.headers.push_back({"retry-after-ms", std::to_string(*error.retry_after_ms)});
  }
  const bool tried_again =
      error.status >= 500 || error.status == 409 || error.status == 429 || error.status == 408;
  if (tried_again && !error.retryable) {
    response.headers.push_back({"x-should-retry", "false"});
  }
  return response;
}

Response error_response(int status, const char* code, std::string message, std::string param) {
  ApiError error = refusal(status, code, std::move(message));
  error.param = std::move(param);
  return error_response(error);
}

}  // namespace quire::server
