#include "api/call.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "api/metrics.h"
#include "api/router.h"
#include "message.h"
#include "quire/interrupt.h"
#include "quire/result.h"

namespace quire::server {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += text.empty() ? "" : ",";
    for (const char c : word) {  // a header's value: names of members are the client's
      text += c > ' ' && c < '\x7f' && c != ',' ? c : '?';
    }
  }
  return text;
}

}  // namespace

std::string_view Call::capture(std::string_view name) const {
  for (const auto& [key, value] : captures) {
    if (key == name) {
      return value;
    }
  }
  return {};
}

std::optional<std::string> Call::query(std::string_view name) const {
  std::string_view rest = request->query;
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const std::size_t equals = std::min(pair.find('='), pair.size());
    if (percent_decoded(pair.substr(0, equals), true) == name) {
      return percent_decoded(pair.substr(std::min(pair.size(), equals + 1)), true);
    }
  }
  return std::nullopt;
}

Interrupt Call::interrupt(const std::shared_ptr<Call>& call) {
  return [call] { return call->gone.load(); };
}

std::string engine_salt(std::string_view tenant, std::string_view cache_salt) {
  std::string salt = std::to_string(tenant.size()) + ':';
  salt += tenant;
  salt += std::to_string(cache_salt.size()) + ':';
  salt += cache_salt;
  return salt;
}

std::vector<HeaderField> success_headers(Services& services, const Call& call) {
  std::vector<HeaderField> headers;
  if (!call.notes.ignored.empty()) {
    headers.push_back({"x-quire-ignored", joined(call.notes.ignored)});
    services.metrics->count_ignored(call.notes.ignored);
  }
  return headers;
}

void send_json(Services& services, Call& call, const json::value& body, int status) {
  Response response{.status = status, .headers = success_headers(services, call)};
  response.body = json::serialize(body);
  call.answer->send(std::move(response));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): callers hand their error over
void send_error(Services& services, Call& call, ApiError error) {
  services.metrics->count_rejection(error.status, error.code);
  call.answer->facts().error_code = error.code;
  call.answer->send(
      error_response(error, ErrorShape::kOpenAI, call.caller != nullptr && call.is_admin()));
}

Check check_model(const Services& services, const Call& call) {
  const auto wanted = call.members().text("model");
  if (!wanted || services.config->any_model ||
      std::ranges::find(services.names, *wanted) != services.names.end()) {
    return passed();
  }
  ApiError error = refusal(
      404, "model_not_found",
      "model: no model " + std::string(*wanted) + ", this server has " + services.names.front());
  error.param = "model";
  error.cause = ErrorCode::kNotFound;
  return error;
}

std::string new_id(std::string_view prefix) {
  static thread_local std::mt19937_64 random{std::random_device{}()};
  constexpr char kAlphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";
  constexpr std::size_t kTimeDigits = 10;
  constexpr std::size_t kDigits = 26;
  auto time = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                             std::chrono::system_clock::now().time_since_epoch())
                                             .count());
  std::array<char, kDigits> digits{};
  for (std::size_t i = kTimeDigits; i-- > 0; time >>= 5) {
    digits[i] = kAlphabet[time & 31];
  }
  for (std::size_t i = kTimeDigits; i < kDigits; ++i) {
    digits[i] = kAlphabet[random() & 31];
  }
  return std::string(prefix).append(digits.data(), digits.size());
}

std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace quire::server
