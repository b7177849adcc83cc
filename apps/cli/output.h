// Prints results to stdout, everything else to stderr, and errors as one line.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "quire/output.h"
#include "quire/result.h"

namespace quire::cli {

// Writes all of `text` to stdout at once, unbuffered, so that a reader sees each delta. Waits where
// a non-blocking pipe is full. kIo when the system refuses (a full disk, a closed descriptor).
[[nodiscard]] Status print(std::string_view text);
// Returns whether print() made `error`.
[[nodiscard]] bool cannot_print(const Error& error);

// Prints `value` and a newline to stdout.
[[nodiscard]] Status print_json(const boost::json::value& value);

// Returns `value` as JSON without blanks. A double has the shortest form that reads as the same
// one: 0.0, 0.25, 1e-07.
[[nodiscard]] std::string json_text(const boost::json::value& value);

// Formats JSON as an indented "key: value" listing for people.
[[nodiscard]] std::string format_listing(const boost::json::value& value);

// Formats lines of columns, each as wide as its widest cell; the last column is not padded. All
// rows have the same number of cells.
[[nodiscard]] std::vector<std::string> format_table(
    const std::vector<std::vector<std::string>>& rows);

// Returns the beginning of a text on one line, cut between characters. It has at most `bytes`, and
// "..." where the text goes on.
[[nodiscard]] std::string preview(std::string_view text, std::size_t bytes = 60);

// Returns the columns of the terminal `descriptor`; 0 if it is none, or does not say.
[[nodiscard]] std::size_t terminal_columns(int descriptor);

// Number of digits of an id that texts show.
inline constexpr std::size_t kShownDigits = 12;

// Prints "error: <message>" as one line on stderr; returns kExitFailed.
int fail(const Error& error);
// Prints wrong usage as fail() prints an error; returns kExitUsage.
int fail_usage(std::string_view message);
// Prints the refusal of a validate() as fail() does; returns kExitUsage if it is an invalid
// argument.
int fail_options(const Error& error);

// Prints one line for people on stderr.
void note(std::string_view line);

// Formats a size: "92.1 MiB".
[[nodiscard]] std::string in_units(double bytes);

// Returns true if the model ended the output before its first word.
[[nodiscard]] bool ended_at_once(const GenerationOutput& output);

// Formats "prompt 96 tokens (64 reused), 12 generated, first token 18 ms, total 120 ms"
[[nodiscard]] std::string summary(const GenerationOutput& output);

}  // namespace quire::cli
