#include "http/head.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "message.h"

namespace quire::server {
namespace {

// Room that a method and a version take beside the target.
constexpr std::size_t kLineSlack = 64;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

Refusal malformed(std::string message) { return {.message = std::move(message)}; }

// Returns true for bytes that no head holds: control characters but tab, CR and LF.
bool is_forbidden(unsigned char c) { return (c < ' ' && c != '\t') || c == 0x7F; }

std::optional<Refusal> check_version(std::string_view version) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (version.size() != 8 || !version.starts_with("HTTP/") || !digit(version[5]) ||
      version[6] != '.' || !digit(version[7])) {
    return malformed("request line: want METHOD TARGET HTTP/1.1");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return Refusal{.status = 505,
                   .code = "http_version",
                   .message = std::string(version) + " is not spoken here; use HTTP/1.1"};
  }
  return {};
}

std::optional<Refusal> check_request_line(std::string_view line, std::size_t target_bytes) {
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last || first == 0) {
    return malformed("request line: want METHOD TARGET HTTP/1.1");
  }
  const std::string_view target = line.substr(first + 1, last - first - 1);
  if (target.size() > target_bytes) {
    return Refusal{.status = 414,
                   .code = "uri_too_long",
                   .message = "the target has " + std::to_string(target.size()) +
                              " bytes, the limit is " + std::to_string(target_bytes)};
  }
  const bool plain =
      std::ranges::all_of(target, [](unsigned char c) { return c > ' ' && c < 0x7F; });
  if (target.empty() || !plain) {
    return malformed("request line: the target holds a byte that must be percent-encoded");
  }
  return check_version(line.substr(last + 1));
}

std::optional<Refusal> check_field(std::string_view line) {
  if (line.front() == ' ' || line.front() == '\t') {
    return malformed("header: a field may not go on in a second line");
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) {
    return malformed("header: want NAME: VALUE");
  }
  if (line[colon - 1] == ' ' || line[colon - 1] == '\t') {
    return malformed("header: a space stands before the colon");
  }
  return {};
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string_view stripped(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(" \t"), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(" \t") + 1);
}

bool has_word(const Request& request, std::string_view field, std::string_view word) {
  for (const HeaderField& each : request.headers) {
    if (each.name != field) {
      continue;
    }
    std::string_view rest = each.value;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      if (same_word(stripped(rest.substr(0, comma)), word)) {
        return true;
      }
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
  return false;
}

std::optional<Refusal> HeadScanner::end_line(std::string_view line) {
  if (fields_begin_ == 0) {
    return check_request_line(line, limits_.target_bytes);
  }
  if (++num_fields_ > limits_.header_fields) {
    return Refusal{
        .status = 431,
        .code = "header_too_large",
        .message = "the head has more than " + std::to_string(limits_.header_fields) + " fields"};
  }
  return check_field(line);
}

std::optional<Refusal> HeadScanner::check_size(std::string_view bytes) const {
  if (fields_begin_ == 0) {
    return bytes.size() <= limits_.target_bytes + kLineSlack
               ? std::nullopt
               : std::optional(Refusal{.status = 414,
                                       .code = "uri_too_long",
                                       .message = "the target is longer than " +
                                                  std::to_string(limits_.target_bytes) + " bytes"});
  }
  return at_ - fields_begin_ <= limits_.header_bytes
             ? std::nullopt
             : std::optional(Refusal{.status = 431,
                                     .code = "header_too_large",
                                     .message = "the fields of the head take more than " +
                                                std::to_string(limits_.header_bytes) + " bytes"});
}

HeadScanner::Outcome HeadScanner::scan(std::string_view bytes) {
  while (at_ < bytes.size()) {
    const auto c = static_cast<unsigned char>(bytes[at_]);
    if (c == '\r') {
      if (at_ + 1 == bytes.size()) {
        break;
      }
      if (bytes[at_ + 1] != '\n') {
        return {.refusal = malformed("head: a CR without LF")};
      }
      const std::string_view line = bytes.substr(line_begin_, at_ - line_begin_);
      at_ += 2;
      line_begin_ = at_;
      if (line.empty() && fields_begin_ != 0) {
        return {.size = at_, .refusal = check_size(bytes)};
      }
      if (line.empty()) {
        return {.refusal = malformed("request line: it is empty")};
      }
      if (auto refusal = end_line(line)) {
        return {.refusal = std::move(refusal)};
      }
      if (fields_begin_ == 0) {
        fields_begin_ = at_;
      }
      continue;
    }
    if (c == '\n') {
      return {.refusal = malformed("head: an LF without CR")};
    }
    if (is_forbidden(c)) {
      return {.refusal = malformed("head: it holds a control character")};
    }
    ++at_;
    if (auto refusal = check_size(bytes.substr(0, at_))) {
      return {.refusal = std::move(refusal)};
    }
  }
  return {};
}

std::optional<Refusal> read_framing(const Request& request, bool http11, Framing& framing) {
  std::size_t lengths = 0;
  std::size_t codings = 0;
  for (const HeaderField& field : request.headers) {
    if (field.name == "content-length") {
      ++lengths;
      const char* const end = field.value.data() + field.value.size();
      const auto read = std::from_chars(field.value.data(), end, framing.content_length);
      if (read.ec != std::errc() || read.ptr != end) {
        return malformed("content-length: want one whole number");
      }
    } else if (field.name == "transfer-encoding") {
      ++codings;
      framing.chunked = same_word(stripped(field.value), "chunked");
    }
  }
  if (lengths > 1) {
    return malformed("content-length: it is given more than once");
  }
  if (codings > 0 && lengths > 0) {
    return malformed("transfer-encoding and content-length exclude each other");
  }
  if (codings > 1 || (codings == 1 && (!framing.chunked || !http11))) {
    return malformed("transfer-encoding: only chunked is read, and only once, of HTTP/1.1");
  }
  return {};
}

std::optional<Refusal> split_target(std::string_view target, Request& request, std::string& host) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() > scheme.size() && same_word(target.substr(0, scheme.size()), scheme)) {
      target.remove_prefix(scheme.size());
      const std::size_t end = std::min(target.find_first_of("/?"), target.size());
      host = target.substr(0, end);
      target.remove_prefix(end);
      if (host.empty() || !target.starts_with('/')) {
        return malformed("request line: want a path that begins with /");
      }
    }
  }
  const bool is_star = target == "*" && request.method == "OPTIONS";
  if (!target.starts_with('/') && !is_star) {
    return malformed("request line: want a path that begins with /");
  }
  const std::size_t question = std::min(target.find('?'), target.size());
  request.path = target.substr(0, question);
  request.query = target.substr(std::min(question + 1, target.size()));
  return {};
}

}  // namespace quire::server
