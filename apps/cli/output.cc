#include "output.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "quire/output.h"
#include "quire/result.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

constexpr std::string_view kCannotPrint = "cannot write to standard output: ";

void append_scalar(const json::value& value, std::string& out) {
  if (const json::string* text = value.if_string()) {
    out.append(text->data(), text->size());
  } else if (const double* number = value.if_double()) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.6g", *number);
    out += digits;
  } else {
    out += json::serialize(value);
  }
}

// Counts the code points of UTF-8.
std::size_t characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](unsigned char c) { return (c & 0xC0U) != 0x80U; }));
}

void append_number(double number, std::string& out) {
  if (!std::isfinite(number)) {
    out += json::serialize(json::value(number));
    return;
  }
  char text[32];
  const char* const end = std::to_chars(std::begin(text), std::end(text), number).ptr;
  const std::string_view written(text, static_cast<std::size_t>(end - text));
  out += written;
  out += written.find_first_of(".e") == std::string_view::npos ? ".0" : "";
}

// Appends JSON, since Boost.JSON would write 0.0 as 0E0.
void append_json(const json::value& value, std::string& out) {
  char separator = 0;
  const auto next = [&](char begin) { out += std::exchange(separator, ',') == 0 ? begin : ','; };
  if (const double* const number = value.if_double()) {
    append_number(*number, out);
  } else if (const json::array* const items = value.if_array(); items && !items->empty()) {
    for (const json::value& item : *items) {
      next('[');
      append_json(item, out);
    }
    out += ']';
  } else if (const json::object* const object = value.if_object(); object && !object->empty()) {
    for (const json::key_value_pair& member : *object) {
      next('{');
      out += json::serialize(json::value(member.key())) + ':';
      append_json(member.value(), out);
    }
    out += '}';
  } else {
    out += json::serialize(value);
  }
}

bool is_scalar(const json::value& value) { return !value.is_object() && !value.is_array(); }

bool is_flat(const json::array& items) {
  for (const json::value& item : items) {
    if (!is_scalar(item)) {
      return false;
    }
  }
  return true;
}

void append_listing(const json::value& value, std::size_t indent, std::string& out);

// Appends the part of a member or item behind its name: on the same line when it fits there.
void append_nested(const json::value& value, std::size_t indent, std::string& out) {
  const json::array* items = value.if_array();
  if (is_scalar(value) || (items != nullptr && is_flat(*items))) {
    out += ' ';
    append_listing(value, 0, out);
    return;
  }
  out += '\n';
  append_listing(value, indent + 2, out);
}

void append_listing(const json::value& value, std::size_t indent, std::string& out) {
  if (const json::object* object = value.if_object()) {
    for (const auto& member : *object) {
      out.append(indent, ' ');
      out.append(member.key().data(), member.key().size());
      out += ':';
      append_nested(member.value(), indent, out);
    }
    return;
  }
  const json::array* items = value.if_array();
  if (items == nullptr) {
    append_scalar(value, out);
    out += '\n';
    return;
  }
  if (!is_flat(*items)) {
    for (const json::value& item : *items) {
      out.append(indent, ' ');
      out += '-';
      append_nested(item, indent, out);
    }
    return;
  }
  const char* separator = "";
  for (const json::value& item : *items) {
    out += separator;
    append_scalar(item, out);
    separator = ", ";
  }
  out += items->empty() ? "none\n" : "\n";
}

void print_error_line(std::string_view message) {
  std::string line = "error: ";
  for (const char c : message) {
    line += c == '\n' || c == '\r' ? ' ' : c;
  }
  line += '\n';
  std::fputs(line.c_str(), stderr);
}

}  // namespace

Status print(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
      poll(&output, 1, -1);  // the next write says what poll says
    } else if (errno != EINTR) {
      return {ErrorCode::kIo, std::string(kCannotPrint) + std::strerror(errno)};
    }
  }
  return {};
}

bool cannot_print(const Error& error) { return error.message.starts_with(kCannotPrint); }

std::string json_text(const json::value& value) {
  std::string out;
  append_json(value, out);
  return out;
}

Status print_json(const json::value& value) { return print(json_text(value) + "\n"); }

std::string format_listing(const json::value& value) {
  std::string out;
  append_listing(value, 0, out);
  return out;
}

std::vector<std::string> format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], characters(row[i]));
    }
  }
  std::vector<std::string> lines;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.append(widths[i] - characters(row[i]) + 2, ' ');
    }
    line.resize(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  return lines;
}

std::size_t terminal_columns(int descriptor) {
  winsize size{};
  // NOLINTNEXTLINE(misc-include-cleaner): sys/ioctl.h has TIOCGWINSZ
  const bool is_known = isatty(descriptor) == 1 && ioctl(descriptor, TIOCGWINSZ, &size) == 0;
  return is_known ? size.ws_col : 0;
}

std::string preview(std::string_view text, std::size_t bytes) {
  std::size_t end = std::min(text.size(), bytes);
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  std::string line = std::string(text.substr(0, end)) + (end < text.size() ? "..." : "");
  std::ranges::replace_if(line, [](unsigned char c) { return c < ' '; }, ' ');
  return line;
}

int fail(const Error& error) {
  print_error_line(error.message);
  return kExitFailed;
}

int fail_usage(std::string_view message) {
  print_error_line(message);
  return kExitUsage;
}

int fail_options(const Error& error) {
  return error.code == ErrorCode::kInvalidArgument ? fail_usage(error.message) : fail(error);
}

void note(std::string_view line) {
  std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
}

bool ended_at_once(const GenerationOutput& output) {
  return output.text.empty() && output.stopped_by.kind == StoppedBy::Kind::kEos;
}

std::string summary(const GenerationOutput& output) {
  char line[200];
  const int length = std::snprintf(line, sizeof line, "prompt %lld tokens (%lld reused), ",
                                   static_cast<long long>(output.usage.prompt_tokens),
                                   static_cast<long long>(output.usage.cached_tokens));
  const std::string prompt(line, static_cast<std::size_t>(length));
  if (output.usage.completion_tokens == 0) {  // there is no first token
    std::snprintf(line, sizeof line, "ended before the first token, after %.0f ms",
                  output.timing.total_seconds * 1e3);
  } else {
    std::snprintf(line, sizeof line, "%lld generated, first token %.0f ms, total %.0f ms",
                  static_cast<long long>(output.usage.completion_tokens),
                  output.timing.first_token_seconds * 1e3, output.timing.total_seconds * 1e3);
  }
  return prompt + line;
}

std::string in_units(double bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text;
}

}  // namespace quire::cli
