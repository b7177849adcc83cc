#include "quire/text/jinja/string_ops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/text.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/jinja/value.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

constexpr std::size_t kNone = std::string_view::npos;
// Up to here the library's search is at worst so many times slower than a linear one.
constexpr std::size_t kShortPattern = 32;
constexpr std::size_t kFlushBytes = 4096;

// Knuth, Morris, Pratt 1977: linear also for hostile patterns. `text` and `pattern` are read
// through `at(i)`, so that the same code searches backwards.
template <class TextAt, class PatternAt>
std::size_t search_linear(Meter& meter, std::size_t text_size, TextAt text_at,
                          std::size_t pattern_size, PatternAt pattern_at) {
  Charge charge(&meter);
  if (!meter.step_bytes(pattern_size) || !charge.add(pattern_size * sizeof(std::size_t))) {
    return kNone;
  }
  std::vector<std::size_t> border(pattern_size, 0);
  for (std::size_t i = 1, length = 0; i < pattern_size; ++i) {
    while (length > 0 && pattern_at(i) != pattern_at(length)) {
      length = border[length - 1];
    }
    length += pattern_at(i) == pattern_at(length) ? 1 : 0;
    border[i] = length;
  }
  for (std::size_t i = 0, length = 0; i < text_size; ++i) {
    while (length > 0 && text_at(i) != pattern_at(length)) {
      length = border[length - 1];
    }
    length += text_at(i) == pattern_at(length) ? 1 : 0;
    if (length == pattern_size) {
      return i + 1 - pattern_size;
    }
  }
  return kNone;
}

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Parts of one text, as a list of strings. Stops growing when the meter fails.
class Pieces {
 public:
  Pieces(Meter& meter, const TextPtr& text) : meter_(meter), text_(text), charge_(&meter) {}

  bool add(std::size_t begin, std::size_t end) {
    if (!meter_.step() || !charge_.add(sizeof(Span))) {
      return false;
    }
    spans_.push_back({begin, end});
    return true;
  }
  void reverse() { std::reverse(spans_.begin(), spans_.end()); }
  [[nodiscard]] Value build() const {
    SequenceBuilder list(&meter_);
    for (const auto& span : spans_) {
      if (meter_.failed()) {
        break;
      }
      list.push(Value::string(slice_bytes(&meter_, text_, span.begin, span.end)));
    }
    return std::move(list).build();
  }

 private:
  Meter& meter_;
  const TextPtr& text_;
  Charge charge_;
  std::vector<Span> spans_;
};

std::size_t skip_spaces(std::string_view text, std::size_t at, bool spaces) {
  while (at < text.size()) {
    const Decoded next = decode_at(text, at);
    if (is_space(next.code) != spaces) {
      break;
    }
    at += next.bytes;
  }
  return at;
}

std::size_t skip_spaces_back(std::string_view text, std::size_t at, bool spaces) {
  while (at > 0) {
    const Decoded previous = decode_before(text, at);
    if (is_space(previous.code) != spaces) {
      break;
    }
    at -= previous.bytes;
  }
  return at;
}

Value split_spaces(Meter& meter, const TextPtr& text, std::int64_t max_splits) {
  const std::string_view view = text->view();
  Pieces pieces(meter, text);
  std::size_t at = skip_spaces(view, 0, true);
  for (std::int64_t cuts = 0; at < view.size(); ++cuts) {
    const std::size_t end = cuts == max_splits ? view.size() : skip_spaces(view, at, false);
    if (!pieces.add(at, end)) {
      break;
    }
    at = skip_spaces(view, end, true);
  }
  return pieces.build();
}

Value rsplit_spaces(Meter& meter, const TextPtr& text, std::int64_t max_splits) {
  const std::string_view view = text->view();
  Pieces pieces(meter, text);
  std::size_t at = skip_spaces_back(view, view.size(), true);
  for (std::int64_t cuts = 0; at > 0; ++cuts) {
    const std::size_t begin = cuts == max_splits ? 0 : skip_spaces_back(view, at, false);
    if (!pieces.add(begin, at)) {
      break;
    }
    at = skip_spaces_back(view, begin, true);
  }
  pieces.reverse();
  return pieces.build();
}

bool is_word_start(char32_t code) {
  return code == '-' || code == '(' || code == '{' || code == '[' || code == '<' || is_space(code);
}

// Appends the code point at `at` of `text` in its new case; `fresh` says that a word (for
// kCapitalize: the text) begins here.
void append_changed(std::string_view text, std::size_t at, Case to, bool fresh, std::string& out) {
  switch (to) {
    case Case::kUpper:
      return append_upper(text, at, out);
    case Case::kLower:
      return append_lower(text, at, out);
    case Case::kSwap:
      return is_upper(decode_at(text, at).code) ? append_lower(text, at, out)
                                                : append_upper(text, at, out);
    case Case::kFilterTitle:
      return fresh ? append_upper(text, at, out) : append_lower(text, at, out);
    case Case::kTitle:
    case Case::kCapitalize:
      return fresh ? append_title(text, at, out) : append_lower(text, at, out);
  }
}

// Whether the code point after `code` begins a word.
bool starts_word(Case to, char32_t code) {
  return (to == Case::kTitle && !is_cased(code)) ||
         (to == Case::kFilterTitle && is_word_start(code));
}

std::string_view html_entity(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '\'':
      return "&#39;";
    case '"':
      return "&#34;";
    default:
      return {};
  }
}

}  // namespace

std::size_t find_bytes(Meter& meter, std::string_view text, std::string_view wanted,
                       std::size_t from) {
  if (from > text.size() || wanted.size() > text.size() - from) {
    return kNone;
  }
  if (wanted.size() <= kShortPattern) {
    const std::size_t found = text.find(wanted, from);
    meter.step_bytes((found == kNone ? text.size() : found) - from);
    return found;
  }
  const std::string_view rest = text.substr(from);
  const std::size_t found = search_linear(
      meter, rest.size(), [&](std::size_t i) { return rest[i]; }, wanted.size(),
      [&](std::size_t i) { return wanted[i]; });
  meter.step_bytes(found == kNone ? rest.size() : found);
  return found == kNone ? kNone : found + from;
}

std::size_t rfind_bytes(Meter& meter, std::string_view text, std::string_view wanted,
                        std::size_t end) {
  if (wanted.size() > end) {
    return kNone;
  }
  if (wanted.size() <= kShortPattern) {
    const std::size_t found = text.rfind(wanted, end - wanted.size());
    meter.step_bytes(found == kNone ? end : end - found);
    return found;
  }
  const std::size_t found = search_linear(
      meter, end, [&](std::size_t i) { return text[end - 1 - i]; }, wanted.size(),
      [&](std::size_t i) { return wanted[wanted.size() - 1 - i]; });
  meter.step_bytes(found == kNone ? end : found);
  return found == kNone ? kNone : end - found - wanted.size();
}

std::int64_t count_occurrences(Meter& meter, std::string_view text, std::string_view wanted) {
  if (wanted.empty()) {
    return static_cast<std::int64_t>(count_code_points(text)) + 1;
  }
  std::int64_t count = 0;
  for (std::size_t at = find_bytes(meter, text, wanted, 0); at != kNone && !meter.failed();
       at = find_bytes(meter, text, wanted, at + wanted.size())) {
    ++count;
  }
  return count;
}

TextPtr strip(Meter& meter, const TextPtr& text, std::optional<std::string_view> characters,
              Side side) {
  const std::string_view view = text->view();
  const auto drop = [&](const Decoded& next, std::size_t at) {
    if (!characters) {
      return is_space(next.code);
    }
    meter.step_bytes(characters->size());
    return characters->find(view.substr(at, next.bytes)) != kNone;
  };
  std::size_t begin = 0;
  std::size_t end = view.size();
  while (side != Side::kRight && begin < end && !meter.failed()) {
    const Decoded next = decode_at(view, begin);
    if (!drop(next, begin)) {
      break;
    }
    begin += next.bytes;
  }
  while (side != Side::kLeft && begin < end && !meter.failed()) {
    const Decoded previous = decode_before(view, end);
    if (!drop(previous, end - previous.bytes)) {
      break;
    }
    end -= previous.bytes;
  }
  return slice_bytes(&meter, text, begin, end);
}

Value split(Meter& meter, const TextPtr& text, std::optional<std::string_view> separator,
            std::int64_t max_splits) {
  if (!separator) {
    return split_spaces(meter, text, max_splits);
  }
  const std::string_view view = text->view();
  Pieces pieces(meter, text);
  std::size_t begin = 0;
  for (std::int64_t cuts = 0; cuts != max_splits; ++cuts) {
    const std::size_t found = find_bytes(meter, view, *separator, begin);
    if (found == kNone || !pieces.add(begin, found)) {
      break;
    }
    begin = found + separator->size();
  }
  pieces.add(begin, view.size());
  return pieces.build();
}

Value rsplit(Meter& meter, const TextPtr& text, std::optional<std::string_view> separator,
             std::int64_t max_splits) {
  if (!separator) {
    return rsplit_spaces(meter, text, max_splits);
  }
  const std::string_view view = text->view();
  Pieces pieces(meter, text);
  std::size_t end = view.size();
  for (std::int64_t cuts = 0; cuts != max_splits; ++cuts) {
    const std::size_t found = rfind_bytes(meter, view, *separator, end);
    if (found == kNone || !pieces.add(found + separator->size(), end)) {
      break;
    }
    end = found;
  }
  pieces.add(0, end);
  pieces.reverse();
  return pieces.build();
}

Value split_lines(Meter& meter, const TextPtr& text, bool keep_ends) {
  const std::string_view view = text->view();
  Pieces pieces(meter, text);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < view.size();) {
    const Decoded next = decode_at(view, at);
    if (!is_line_break(next.code)) {
      at += next.bytes;
      continue;
    }
    const std::size_t end = at;
    at += next.bytes;
    if (next.code == '\r' && at < view.size() && view[at] == '\n') {
      ++at;
    }
    if (!pieces.add(begin, keep_ends ? at : end)) {
      break;
    }
    begin = at;
  }
  if (begin < view.size()) {
    pieces.add(begin, view.size());
  }
  return pieces.build();
}

TextPtr replace(Meter& meter, const Text& text, std::string_view from, const Text& to,
                std::int64_t count) {
  const std::string_view view = text.view();
  TextBuilder out(&meter);
  std::size_t begin = 0;
  std::size_t search = 0;
  for (; count != 0 && search <= view.size() && !meter.failed(); --count) {
    const std::size_t found = find_bytes(meter, view, from, search);
    if (found == kNone) {
      break;
    }
    out.append(text, begin, found);
    out.append(to);
    begin = found + from.size();
    // Nothing is found before every code point and at the end.
    const bool step_over = from.empty();
    search = step_over ? (found < view.size() ? found + decode_at(view, found).bytes : found + 1)
                       : begin;
  }
  out.append(text, begin, view.size());
  return std::move(out).build();
}

TextPtr change_case(Meter& meter, const Text& text, Case to) {
  TextBuilder out(&meter);
  std::string changed;
  bool fresh = true;
  std::size_t at = 0;
  for (const Run& run : text.runs()) {
    while (at < run.end && !meter.failed()) {
      const Decoded next = decode_at(text.view(), at);
      append_changed(text.view(), at, to, fresh, changed);
      fresh = starts_word(to, next.code);
      at += next.bytes;
      if (changed.size() >= kFlushBytes || at >= run.end) {
        out.append(changed, run.source);
        changed.clear();
      }
    }
  }
  return std::move(out).build();
}

TextPtr escape_html(Meter& meter, const Text& text) {
  TextBuilder out(&meter);
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size_bytes() && !meter.failed(); ++at) {
    const std::string_view entity = html_entity(text.view()[at]);
    if (!entity.empty()) {
      out.append(text, begin, at);
      out.append(entity, text.source_at(at));
      begin = at + 1;
    }
  }
  out.append(text, begin, text.size_bytes());
  return std::move(out).build();
}

}  // namespace quire::text::jinja
