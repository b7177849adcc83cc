// Text: an immutable UTF-8 string that knows where each of its bytes came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "quire/text/jinja/meter.h"

namespace quire::text::jinja {

// Sources that are no message; the values of Provenance in chat_template.h.
inline constexpr std::int32_t kFromTemplate = -1;
inline constexpr std::int32_t kFromArgument = -2;

// A name of a message or argument (Provenance::is_name) is a source of its own.
[[nodiscard]] constexpr bool is_name(std::int32_t source) { return source < kFromArgument; }
[[nodiscard]] constexpr std::int32_t as_name(std::int32_t source) { return -5 - source; }
[[nodiscard]] constexpr std::int32_t without_name(std::int32_t source) {
  return is_name(source) ? -5 - source : source;
}

// Bytes up to `end` (from the end of the run before) come from `source`, a Provenance::source.
struct Run {
  std::size_t end = 0;
  std::int32_t source = 0;
};

// Invariants: well-formed UTF-8; runs are not empty, ascend, end at the size, and neighbours have
// different sources.
class Text {
 public:
  [[nodiscard]] std::string_view view() const { return bytes_; }
  [[nodiscard]] std::size_t size_bytes() const { return bytes_.size(); }
  [[nodiscard]] const std::vector<Run>& runs() const { return runs_; }

  // In code points. O(1) for ASCII, else O(bytes).
  [[nodiscard]] std::size_t length() const;
  // Offset in bytes of code point `index`; the size when index >= length.
  [[nodiscard]] std::size_t byte_offset(std::size_t index) const;
  // Source of the byte at `offset`. Precondition: offset < size_bytes(). O(log runs).
  [[nodiscard]] std::int32_t source_at(std::size_t offset) const;

 private:
  friend class TextBuilder;
  std::string bytes_;
  std::vector<Run> runs_;
  bool ascii_ = true;
  Charge charge_;
};

using TextPtr = std::shared_ptr<const Text>;

// Makes a Text piece by piece. Beyond the meter's bounds it ignores what is appended; the meter
// then has failed. Without a meter it is unbounded.
class TextBuilder {
 public:
  explicit TextBuilder(Meter* meter) : meter_(meter) { text_.charge_ = Charge(meter); }

  // Precondition: `bytes` is well-formed UTF-8.
  void append(std::string_view bytes, std::int32_t source);
  void append(const Text& text) { append(text, 0, text.size_bytes()); }
  // Bytes [begin, end) of `text`, with their sources.
  void append(const Text& text, std::size_t begin, std::size_t end);

  [[nodiscard]] std::size_t size_bytes() const { return text_.bytes_.size(); }
  [[nodiscard]] Meter* meter() const { return meter_; }
  [[nodiscard]] TextPtr build() &&;

 private:
  Meter* meter_;
  Text text_;
};

[[nodiscard]] TextPtr make_text(Meter* meter, std::string_view bytes, std::int32_t source);

// Bytes [begin, end) of `text`; `text` itself when that is all of it.
[[nodiscard]] TextPtr slice_bytes(Meter* meter, const TextPtr& text, std::size_t begin,
                                  std::size_t end);

}  // namespace quire::text::jinja
