// What Python's str methods do, on Text: every byte of a result keeps its source. All cost at most
// time linear in the text, and count it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// First occurrence at or after `from`, or npos.
[[nodiscard]] std::size_t find_bytes(Meter& meter, std::string_view text, std::string_view wanted,
                                     std::size_t from);
// Last occurrence that ends at or before `end`, or npos.
[[nodiscard]] std::size_t rfind_bytes(Meter& meter, std::string_view text, std::string_view wanted,
                                      std::size_t end);
// Occurrences that do not overlap; for an empty `wanted` the places between code points.
[[nodiscard]] std::int64_t count_occurrences(Meter& meter, std::string_view text,
                                             std::string_view wanted);

enum class Side : std::uint8_t { kLeft, kRight, kBoth };

// Without `characters`, white space.
[[nodiscard]] TextPtr strip(Meter& meter, const TextPtr& text,
                            std::optional<std::string_view> characters, Side side);

// At most `max_splits` cuts, all when negative. Without `separator`, runs of white space separate
// and those at the ends count for nothing. Precondition: `separator` is not empty.
[[nodiscard]] Value split(Meter& meter, const TextPtr& text,
                          std::optional<std::string_view> separator, std::int64_t max_splits);
[[nodiscard]] Value rsplit(Meter& meter, const TextPtr& text,
                           std::optional<std::string_view> separator, std::int64_t max_splits);
[[nodiscard]] Value split_lines(Meter& meter, const TextPtr& text, bool keep_ends);

// At most `count` replacements, all when negative; inserted bytes have the sources of `to`.
[[nodiscard]] TextPtr replace(Meter& meter, const Text& text, std::string_view from, const Text& to,
                              std::int64_t count);

enum class Case : std::uint8_t { kUpper, kLower, kTitle, kCapitalize, kSwap, kFilterTitle };

// kTitle is str.title, kFilterTitle jinja2's |title.
[[nodiscard]] TextPtr change_case(Meter& meter, const Text& text, Case to);

// &, <, >, ' and " become entities whose text has the source of the character.
[[nodiscard]] TextPtr escape_html(Meter& meter, const Text& text);

}  // namespace quire::text::jinja
