#include "quire/text/answer/loose_values.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/json.h"
#include "quire/text/answer/marked_text.h"

namespace quire::text::answer {
namespace {

constexpr int kMaxDepth = 60;

std::string json_text(std::string_view text) { return base::write_json(base::Json(text)); }

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || (static_cast<unsigned char>(c) >= 0x80 && c != kSpecialBegin);
}

// Appends the character that stands behind a backslash. Returns false for an escape that is cut.
bool append_escaped(std::string_view& rest, std::string& out) {
  constexpr std::string_view kNames = "ntrbf0";
  constexpr std::string_view kValues("\n\t\r\b\f\0", 6);
  if (rest.empty()) {
    return false;
  }
  const char c = rest.front();
  rest.remove_prefix(1);
  if (const std::size_t at = kNames.find(c); at != std::string_view::npos) {
    out += kValues[at];
    return true;
  }
  const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
  if (digits == 0) {
    out += c == '\n' ? "" : std::string(1, c);
    return true;
  }
  if (rest.size() < digits) {
    return false;
  }
  // JSON reads a pair of surrogates, which are two escapes.
  std::string escape = (c == 'x' ? "\\u00" : "\\u") + std::string(rest.substr(0, digits));
  rest.remove_prefix(digits);
  if (c == 'u' && rest.starts_with("\\u") && escape.size() > 3 && (escape[2] | 32) == 'd') {
    escape += rest.substr(0, 6);
    rest.remove_prefix(std::min<std::size_t>(rest.size(), 6));
  }
  const auto read = base::parse_json("\"" + escape + "\"", "escape");
  if (!read.ok() || !read->view().is_string()) {
    return false;
  }
  out += read->view().as_string();
  return true;
}

}  // namespace

void LooseReader::skip_blanks() {
  rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size()));
}

bool LooseReader::skip(std::string_view prefix) {
  skip_blanks();
  return answer::skip(rest_, prefix);
}

bool LooseReader::at_end() {
  skip_blanks();
  return rest_.empty();
}

std::optional<std::string> LooseReader::name() {
  skip_blanks();
  const auto end = std::ranges::find_if_not(rest_, is_name_byte);
  std::string found(rest_.begin(), end);
  rest_.remove_prefix(found.size());
  return found.empty() ? std::nullopt : std::optional(std::move(found));
}

bool LooseReader::is_text() const {
  return quote_.empty() ? rest_.starts_with('"') || rest_.starts_with('\'')
                        : rest_.starts_with(quote_);
}

std::optional<std::string> LooseReader::members(char separator, char close, int depth) {
  const std::string end(1, close);
  std::string out = "{";
  while (!skip(end)) {
    if (out.size() > 1) {
      if (!skip(",")) {
        return std::nullopt;
      }
      out += ',';
      skip_blanks();
    }
    const auto key = is_text() ? text() : name();
    if (!key || !skip(std::string_view(&separator, 1))) {
      return std::nullopt;
    }
    const auto read = value(depth + 1);
    if (!read) {
      return std::nullopt;
    }
    out += json_text(*key) + ":" + *read;
  }
  return out + "}";
}

// Reads a value and returns its JSON. Depth bounds the recursion.
std::optional<std::string> LooseReader::value(int depth) {
  skip_blanks();
  if (depth > kMaxDepth || rest_.empty()) {
    return std::nullopt;
  }
  if (is_text()) {
    const auto read = text();
    return read ? std::optional(json_text(*read)) : std::nullopt;
  }
  if (skip("{")) {
    return members(':', '}', depth);
  }
  if (skip("[")) {
    return list(depth);
  }
  return word();
}

std::optional<std::string> LooseReader::list(int depth) {
  std::string out = "[";
  while (!skip("]")) {
    if (out.size() > 1) {
      if (!skip(",")) {
        return std::nullopt;
      }
      out += ',';
    }
    const auto read = value(depth + 1);
    if (!read) {
      return std::nullopt;
    }
    out += *read;
  }
  return out + "]";
}

std::optional<std::string> LooseReader::text() {
  if (quote_.empty()) {
    const char quote = rest_.front();
    rest_.remove_prefix(1);
    return python_text(quote);
  }
  rest_.remove_prefix(quote_.size());
  const std::size_t end = rest_.find(quote_);
  if (end == std::string_view::npos) {
    return std::nullopt;
  }
  std::string found(rest_.substr(0, end));
  rest_.remove_prefix(end + quote_.size());
  return found;
}

std::optional<std::string> LooseReader::python_text(char quote) {
  std::string out;
  while (!rest_.empty()) {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    if (c == quote) {
      return out;
    }
    if (c != '\\') {
      out += c;
    } else if (!append_escaped(rest_, out)) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Reads a number or a name of Python or JSON for true, false or nothing.
std::optional<std::string> LooseReader::word() {
  const auto end =
      std::ranges::find_if_not(rest_, [](char c) { return is_name_byte(c) || c == '+'; });
  const std::string found(rest_.begin(), end);
  rest_.remove_prefix(found.size());
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [python, json] : kWords) {
    if (found == python) {
      return std::string(json);
    }
  }
  const auto read = base::parse_json(found, "value");
  return read.ok() ? std::optional(base::write_json(*read)) : std::nullopt;
}

}  // namespace quire::text::answer
