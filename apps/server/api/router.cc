#include "api/router.h"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/errors.h"
#include "api/utf8.h"

namespace quire::server {
namespace {

std::vector<std::string> segments_of(std::string_view path) {
  std::vector<std::string> segments;
  while (!path.empty()) {
    path.remove_prefix(1);  // "/"
    const std::size_t end = path.find('/');
    segments.emplace_back(path.substr(0, end));
    path.remove_prefix(end == std::string_view::npos ? path.size() : end);
  }
  return segments;
}

bool is_name(std::string_view segment) { return segment.starts_with('{'); }
bool is_rest(std::string_view segment) { return segment.ends_with("...}"); }

// Returns the captures where the segments match the pattern.
std::optional<Captures> match(const std::vector<std::string>& pattern,
                              const std::vector<std::string>& segments) {
  Captures captures;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const std::string& part = pattern[i];
    if (i >= segments.size()) {
      return std::nullopt;
    }
    if (!is_name(part)) {
      if (percent_decoded(segments[i]) != part) {
        return std::nullopt;
      }
      continue;
    }
    if (segments[i].empty()) {
      return std::nullopt;
    }
    if (!is_rest(part)) {
      captures.emplace_back(part.substr(1, part.size() - 2), percent_decoded(segments[i]));
      continue;
    }
    std::string rest;
    for (std::size_t k = i; k < segments.size(); ++k) {
      rest += (k == i ? "" : "/") + percent_decoded(segments[k]);
    }
    captures.emplace_back(part.substr(1, part.size() - 5), std::move(rest));
    return captures;
  }
  return pattern.size() == segments.size() ? std::optional(captures) : std::nullopt;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

bool is_method(const Endpoint& endpoint, std::string_view method) {
  const std::string_view own = endpoint.method;
  return own == method || (own == "*" && method != "OPTIONS");
}

void add_method(std::string& allow, std::string_view method) {
  allow += allow.empty() ? "" : ", ";
  allow += method == "*" ? "GET, HEAD, POST, PUT, PATCH, DELETE" : method;
  if (method == "GET") {
    allow += ", HEAD";
  }
}

}  // namespace

std::string percent_decoded(std::string_view text, bool plus) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high >= 0 && low >= 0) {
        decoded += static_cast<char>(high * 16 + low);
        i += 2;
        continue;
      }
    }
    decoded += plus && text[i] == '+' ? ' ' : text[i];
  }
  return decoded;
}

void Router::add(std::span<const Endpoint> endpoints) {
  for (const Endpoint& endpoint : endpoints) {
    endpoints_.push_back(&endpoint);
    const std::string pattern = endpoint.pattern;
    if (pattern.find('{') == std::string::npos) {
      plain_.emplace(pattern, &endpoint);
    }
    patterns_.push_back({segments_of(pattern), &endpoint});
  }
}

Checked<Match> Router::find(std::string_view method, std::string_view path,
                            std::string& allow) const {
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  const auto [begin, end] = plain_.equal_range(path);
  for (auto it = begin; it != end; ++it) {
    if (is_method(*it->second, wanted)) {
      return Match{it->second, {}};
    }
  }
  if (!is_utf8(percent_decoded(path))) {  // its names would stand in answers
    return refusal(400, "invalid_value", "the path is not UTF-8");
  }
  const std::vector<std::string> segments = segments_of(path.starts_with('/') ? path : "/");
  // A path that a pattern spells out belongs to such patterns alone.
  for (const bool spelled : {true, false}) {
    for (const Pattern& pattern : patterns_) {
      const bool has_names =
          std::string_view(pattern.endpoint->pattern).find('{') != std::string_view::npos;
      if (has_names == spelled) {
        continue;
      }
      auto captures = match(pattern.segments, segments);
      if (!captures) {
        continue;
      }
      if (is_method(*pattern.endpoint, wanted)) {
        return Match{pattern.endpoint, *std::move(captures)};
      }
      add_method(allow, pattern.endpoint->method);
    }
    if (!allow.empty()) {
      return refusal(405, "method_not_allowed",
                     std::string(method) + " is not allowed here; allowed: " + allow);
    }
  }
  return refusal(404, "not_found", "no such path");
}

}  // namespace quire::server
