#include "quire/text/jinja/text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/unicode.h"
#include "quire/text/utf8.h"

namespace quire::text::jinja {
namespace {

bool is_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

std::size_t Text::length() const { return ascii_ ? bytes_.size() : count_code_points(bytes_); }

std::size_t Text::byte_offset(std::size_t index) const {
  if (ascii_) {
    return std::min(index, bytes_.size());
  }
  std::size_t offset = 0;
  for (; index > 0 && offset < bytes_.size(); --index) {
    offset += decode_at(bytes_, offset).bytes;
  }
  return offset;
}

std::int32_t Text::source_at(std::size_t offset) const {
  return std::upper_bound(runs_.begin(), runs_.end(), offset,
                          [](std::size_t at, const Run& run) { return at < run.end; })
      ->source;
}

void TextBuilder::append(std::string_view bytes, std::int32_t source) {
  if (bytes.empty()) {
    return;
  }
  const bool same = !text_.runs_.empty() && text_.runs_.back().source == source;
  const std::size_t size = text_.bytes_.size() + bytes.size();
  if (meter_ != nullptr && (!meter_->step_bytes(bytes.size()) || !meter_->allow_text(size) ||
                            !text_.charge_.add(bytes.size() + (same ? 0 : sizeof(Run))))) {
    return;
  }
  text_.bytes_ += bytes;
  text_.ascii_ = text_.ascii_ && is_ascii(bytes);
  if (same) {
    text_.runs_.back().end = size;
  } else {
    text_.runs_.push_back({size, source});
  }
}

void TextBuilder::append(const Text& text, std::size_t begin, std::size_t end) {
  auto run = std::upper_bound(text.runs_.begin(), text.runs_.end(), begin,
                              [](std::size_t at, const Run& each) { return at < each.end; });
  while (begin < end) {
    const std::size_t stop = std::min(end, run->end);
    append(text.view().substr(begin, stop - begin), run->source);
    begin = stop;
    ++run;
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

}  // namespace quire::text::jinja
