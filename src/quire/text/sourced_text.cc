#include "quire/text/sourced_text.h"

// GNU: memmem.
#include <string.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/text/render_meter.h"
#include "quire/text/unicode.h"
#include "quire/text/utf8.h"

namespace quire::text {
namespace {

constexpr std::size_t kNone = std::string_view::npos;
constexpr std::size_t kFlushBytes = 4096;

// Returns whether a character behind `before` begins a word.
bool begins_word(Case to, char32_t before) {
  constexpr std::u32string_view kOpening = U"-({[<";
  return to == Case::kTitle ? !is_cased(before)
                            : to == Case::kFilterTitle &&
                                  (kOpening.find(before) != kNone || is_python_space(before));
}

// Appends the character at `at` of `text` in its new case; `begins` a word, for kCapitalize the
// text.
void append_changed(std::string_view text, std::size_t at, Case to, bool begins, std::string& out) {
  if (to == Case::kLower || (to != Case::kUpper && !begins)) {
    append_lower_at(out, text, at);
  } else if (to == Case::kUpper || to == Case::kFilterTitle) {
    append_upper(out, decode_at(text, at).code);
  } else {
    append_title(out, decode_at(text, at).code);
  }
}

}  // namespace

std::size_t Text::length() const { return ascii_ ? bytes_.size() : count_code_points(bytes_); }

std::size_t Text::byte_offset(std::size_t index) const {
  if (ascii_) {
    return std::min(index, bytes_.size());
  }
  std::size_t offset = 0;
  for (; index > 0 && offset < bytes_.size(); --index) {
    offset += utf8_length(bytes_[offset]);
  }
  return offset;
}

std::int32_t Text::source_at(std::size_t offset) const {
  return std::upper_bound(ranges_.begin(), ranges_.end(), offset,
                          [](std::size_t at, const SourceRange& range) { return at < range.end; })
      ->source;
}

void TextBuilder::append(std::string_view bytes, std::int32_t source) {
  if (bytes.empty()) {
    return;
  }
  const bool same = !text_.ranges_.empty() && text_.ranges_.back().source == source;
  const std::size_t size = text_.bytes_.size() + bytes.size();
  if (meter_ != nullptr && (!meter_->step_bytes(bytes.size()) || !meter_->allow_text(size) ||
                            !text_.charge_.add(bytes.size() + (same ? 0 : sizeof(SourceRange))))) {
    return;
  }
  text_.bytes_ += bytes;
  text_.ascii_ = text_.ascii_ && std::ranges::all_of(bytes, [](char c) {
                   return static_cast<unsigned char>(c) < 0x80;
                 });
  if (same) {
    text_.ranges_.back().end = size;
  } else {
    text_.ranges_.push_back({size, source});
  }
}

void TextBuilder::append(const Text& text, std::size_t begin, std::size_t end) {
  auto range =
      std::upper_bound(text.ranges_.begin(), text.ranges_.end(), begin,
                       [](std::size_t at, const SourceRange& each) { return at < each.end; });
  while (begin < end) {
    const std::size_t stop = std::min(end, range->end);
    append(text.view().substr(begin, stop - begin), range->source);
    begin = stop;
    ++range;
  }
}

TextPtr TextBuilder::build() && {
  text_.charge_.add(sizeof(Text));
  return std::make_shared<const Text>(std::move(text_));
}

TextPtr make_text(Meter* meter, std::string_view bytes, std::int32_t source) {
  TextBuilder builder(meter);
  builder.append(bytes, source);
  return std::move(builder).build();
}

TextPtr slice_bytes(Meter* meter, const TextPtr& text, std::size_t begin, std::size_t end) {
  if (begin == 0 && end == text->size_bytes()) {
    return text;
  }
  TextBuilder builder(meter);
  builder.append(*text, begin, end);
  return std::move(builder).build();
}

std::size_t find_bytes(Meter& meter, std::string_view text, std::string_view wanted,
                       std::size_t from) {
  if (from > text.size() || wanted.size() > text.size() - from) {
    return kNone;
  }
  if (wanted.empty()) {
    return from;
  }
  const std::string_view rest = text.substr(from);
  // memmem of glibc and musl takes linear time for every pattern.
  const auto* found =
      static_cast<const char*>(memmem(rest.data(), rest.size(), wanted.data(), wanted.size()));
  const std::size_t passed =
      found == nullptr ? rest.size() : static_cast<std::size_t>(found - rest.data());
  meter.step_bytes(passed + wanted.size());
  return found == nullptr ? kNone : from + passed;
}

TextPtr strip(Meter& meter, const TextPtr& text, std::optional<std::string_view> characters,
              Side side) {
  const std::string_view view = text->view();
  const auto drops = [&](const Decoded& next, std::size_t at) {
    meter.step_bytes(characters ? characters->size() : 0);
    return !meter.failed() && (characters ? characters->find(view.substr(at, next.bytes)) != kNone
                                          : is_python_space(next.code));
  };
  std::size_t begin = 0;
  std::size_t end = view.size();
  while (side != Side::kRight && begin < end && drops(decode_at(view, begin), begin)) {
    begin += utf8_length(view[begin]);
  }
  while (side != Side::kLeft && begin < end) {
    const Decoded previous = decode_before(view, end);
    if (!drops(previous, end - previous.bytes)) {
      break;
    }
    end -= previous.bytes;
  }
  return slice_bytes(&meter, text, begin, end);
}

std::vector<TextPtr> split(Meter& meter, const TextPtr& text, std::string_view separator,
                           std::int64_t max_splits) {
  const std::string_view view = text->view();
  std::vector<TextPtr> out;
  std::size_t begin = 0;
  for (std::int64_t cuts = 0; cuts != max_splits && meter.step(); ++cuts) {
    const std::size_t found = find_bytes(meter, view, separator, begin);
    if (found == kNone) {
      break;
    }
    out.push_back(slice_bytes(&meter, text, begin, found));
    begin = found + separator.size();
  }
  out.push_back(slice_bytes(&meter, text, begin, view.size()));
  return out;
}

std::vector<TextPtr> split_lines(Meter& meter, const TextPtr& text) {
  const std::string_view view = text->view();
  std::vector<TextPtr> out;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < view.size() && !meter.failed();) {
    const Decoded next = decode_at(view, at);
    if (is_python_line_break(next.code)) {
      out.push_back(slice_bytes(&meter, text, begin, at));
      at += view.substr(at).starts_with("\r\n") ? 1 : 0;
      begin = at + next.bytes;
    }
    at += next.bytes;
  }
  out.push_back(slice_bytes(&meter, text, begin, view.size()));
  return out;
}

TextPtr replace(Meter& meter, const Text& text, std::string_view from, const Text& to,
                std::int64_t count) {
  const std::string_view view = text.view();
  TextBuilder out(&meter);
  std::size_t begin = 0;
  std::size_t search = 0;
  for (; count != 0 && search <= view.size() && meter.step(); --count) {
    const std::size_t found = find_bytes(meter, view, from, search);
    if (found == kNone) {
      break;
    }
    out.append(text, begin, found);
    out.append(to);
    begin = found + from.size();
    // Nothing is found before every character and at the end.
    const std::size_t over = found < view.size() ? utf8_length(view[found]) : 1;
    search = from.empty() ? found + over : begin;
  }
  out.append(text, begin, view.size());
  return std::move(out).build();
}

TextPtr change_case(Meter& meter, const Text& text, Case to) {
  TextBuilder out(&meter);
  std::string changed;
  bool begins = true;
  std::size_t at = 0;
  for (const SourceRange& range : text.ranges()) {
    while (at < range.end && !meter.failed()) {
      const Decoded next = decode_at(text.view(), at);
      append_changed(text.view(), at, to, begins, changed);
      begins = begins_word(to, next.code);
      at += next.bytes;
      if (changed.size() >= kFlushBytes || at >= range.end) {
        out.append(changed, range.source);
        changed.clear();
      }
    }
  }
  return std::move(out).build();
}

}  // namespace quire::text
