// How one value is laid out: Python's format specification mini-language, which % formatting
// shares.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "quire/result.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

struct FormatSpec {
  std::string fill = " ";  // one code point
  char align = 0;          // '<' '>' '^' '=', or 0: by type
  char sign = '-';         // '-' '+' ' '
  bool alternate = false;
  std::int64_t width = 0;
  char grouping = 0;            // ',' '_' or 0
  std::int64_t precision = -1;  // -1: not given
  char type = 0;                // 0: not given
};

// [[fill]align][sign][#][0][width][grouping][.precision][type]; kInvalidArgument for anything else.
[[nodiscard]] Result<FormatSpec> parse_format_spec(std::string_view spec);

// Reads digits at `at` of `text`, moving `at` behind them. kInvalidArgument beyond a million.
[[nodiscard]] Result<std::int64_t> parse_digits(std::string_view text, std::size_t& at);

// Cut to the precision and padded; strings go left by default.
void append_padded(const Text& text, const FormatSpec& spec, TextBuilder& out);
// Types b d o x X of integers and e E f F g G % of numbers. kInvalidArgument for another type.
Status append_number(const Value& value, const FormatSpec& spec, TextBuilder& out);

}  // namespace quire::text::jinja
