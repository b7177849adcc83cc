// Text: an immutable UTF-8 string that knows where each of its bytes came from, and what Python's
// str methods do with it. Every byte of a result keeps its source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quire/text/render_meter.h"
#include "quire/text/utf8.h"

namespace quire::text {

// Sources that are no message; the values of Provenance in chat_template.h.
inline constexpr std::int32_t kFromTemplate = -1;
inline constexpr std::int32_t kFromArgument = -2;

// Tells whether a source is a name of a message or argument (Provenance::is_name), which is a
// source of its own.
[[nodiscard]] constexpr bool is_name(std::int32_t source) { return source < kFromArgument; }
[[nodiscard]] constexpr std::int32_t as_name(std::int32_t source) { return -5 - source; }
[[nodiscard]] constexpr std::int32_t without_name(std::int32_t source) {
  return is_name(source) ? -5 - source : source;
}

// Bytes up to `end` (from the end of the range before) come from `source`, a Provenance::source.
struct SourceRange {
  std::size_t end = 0;
  std::int32_t source = 0;
};

// Invariants: well-formed UTF-8; ranges are not empty, ascend, end at the size, and neighbours have
// different sources.
class Text {
 public:
  [[nodiscard]] std::string_view view() const { return bytes_; }
  [[nodiscard]] std::size_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] const std::vector<SourceRange>& ranges() const { return ranges_; }

  // Returns the length in code points. O(1) for ASCII, else O(bytes).
  [[nodiscard]] std::size_t length() const;
  // Returns the offset in bytes of code point `index`, or the size when index >= length.
  [[nodiscard]] std::size_t byte_offset(std::size_t index) const;
  // Returns the source of the byte at `offset`. Precondition: offset < size_bytes(). O(log ranges).
  [[nodiscard]] std::int32_t source_at(std::size_t offset) const;

 private:
  friend class TextBuilder;
  std::string bytes_;
  std::vector<SourceRange> ranges_;
  bool ascii_ = true;
  Charge charge_;
};

using TextPtr = std::shared_ptr<const Text>;

// Makes a Text piece by piece. Beyond the meter's bounds it ignores what is appended; the meter
// then has failed. Without a meter it is unbounded.
class TextBuilder {
 public:
  explicit TextBuilder(Meter* meter) : meter_(meter) { text_.charge_ = Charge(meter); }

  // Appends bytes of one source. Precondition: `bytes` is well-formed UTF-8.
  void append(std::string_view bytes, std::int32_t source);
  void append(const Text& text) { append(text, 0, text.size_bytes()); }
  // Appends bytes [begin, end) of `text`, with their sources.
  void append(const Text& text, std::size_t begin, std::size_t end);

  [[nodiscard]] TextPtr build() &&;

 private:
  Meter* meter_;
  Text text_;
};

[[nodiscard]] TextPtr make_text(Meter* meter, std::string_view bytes, std::int32_t source);

// Returns bytes [begin, end) of `text`, or `text` itself when that is all of it.
[[nodiscard]] TextPtr slice_bytes(Meter* meter, const TextPtr& text, std::size_t begin,
                                  std::size_t end);

// The operations below take time linear in the text, and count it. They stop early once the meter
// has failed.

// Returns the first occurrence at or after `from`, or npos.
[[nodiscard]] std::size_t find_bytes(Meter& meter, std::string_view text, std::string_view wanted,
                                     std::size_t from);

enum class Side : std::uint8_t { kLeft, kRight, kBoth };

// Strips `characters`, by default white space.
[[nodiscard]] TextPtr strip(Meter& meter, const TextPtr& text,
                            std::optional<std::string_view> characters, Side side);

// Cuts at most `max_splits` times, everywhere when negative. Precondition: `separator` is not
// empty.
[[nodiscard]] std::vector<TextPtr> split(Meter& meter, const TextPtr& text,
                                         std::string_view separator, std::int64_t max_splits);
// Cuts at every line break, so that the last line may be empty.
[[nodiscard]] std::vector<TextPtr> split_lines(Meter& meter, const TextPtr& text);

// Replaces at most `count` times, everywhere when negative; inserted bytes have the sources of
// `to`.
[[nodiscard]] TextPtr replace(Meter& meter, const Text& text, std::string_view from, const Text& to,
                              std::int64_t count);

// kTitle is str.title; kFilterTitle is jinja2's |title.
enum class Case : std::uint8_t { kUpper, kLower, kTitle, kCapitalize, kFilterTitle };

[[nodiscard]] TextPtr change_case(Meter& meter, const Text& text, Case to);

// Appends `text`, where escape(character) may give other bytes for a character. They have the
// source of the character.
template <class Escape>
void append_escaped(Meter& meter, const Text& text, TextBuilder& out, Escape escape) {
  const std::string_view view = text.view();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < view.size() && !meter.failed();) {
    const Decoded next = decode_at(view, at);
    if (const std::string escaped = escape(next.code); !escaped.empty()) {
      out.append(text, begin, at);
      out.append(escaped, text.source_at(at));
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  out.append(text, begin, view.size());
}

}  // namespace quire::text
