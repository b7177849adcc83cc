#include "quire/text/normal_text.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "quire/text/utf8.h"

namespace quire::text {

bool Authors::allow_special(std::size_t begin, std::size_t end) const {
  if (each.empty()) {
    return only == Author::kTemplate;
  }
  const auto is = [&](std::size_t byte, Author author) {
    return byte < each.size() && at(byte) == author;
  };
  bool by_template = false;
  for (std::size_t byte = begin; byte < end; ++byte) {
    by_template = by_template || is(byte, Author::kTemplate) || is(byte, Author::kApart);
    if (is(byte, Author::kUser) || (byte > begin && is(byte, Author::kApart))) {
      return false;
    }
  }
  const bool cut_left = begin > 0 && is(begin, Author::kName) && is(begin - 1, Author::kName);
  const bool cut_right = end > 0 && is(end - 1, Author::kName) && is(end, Author::kName);
  return by_template && !cut_left && !cut_right;
}

bool Rewriter::count(std::size_t bytes) {
  constexpr std::size_t kBytesPerCount = 4096;
  uncounted_bytes_ += bytes;
  return uncounted_bytes_ < kBytesPerCount ||
         old_->meter->write(std::exchange(uncounted_bytes_, 0));
}

bool Rewriter::add(std::string_view bytes, std::size_t begin, std::size_t end) {
  if (!count(bytes.size())) {
    return false;
  }
  const bool at_origin = end == 0 || end - 1 < old_->origin_bytes;
  if (at_origin && old_->origin_bytes > 0 && origin_bytes_ == out_.size()) {
    origin_bytes_ += bytes.size();
  }
  out_ += bytes;
  const std::string& each = old_->authors.each;
  if (!each.empty()) {
    const std::size_t first = begin < end ? begin : begin - std::min<std::size_t>(begin, 1);
    const std::size_t last = std::min(begin < end ? end : end + 1, each.size());
    const char author = *std::max_element(each.begin() + static_cast<std::ptrdiff_t>(first),
                                          each.begin() + static_cast<std::ptrdiff_t>(last));
    authors_.append(bytes.size(), author);
  }
  return true;
}

bool Rewriter::add(char32_t c, std::size_t begin, std::size_t end) {
  std::string bytes;
  append_code_point(bytes, c);
  return add(bytes, begin, end);
}

bool Rewriter::copy(std::size_t begin, std::size_t end) {
  if (!count(end - begin)) {
    return false;
  }
  if (begin < old_->origin_bytes && origin_bytes_ == out_.size()) {
    origin_bytes_ += std::min(end, old_->origin_bytes) - begin;
  }
  out_.append(old_->text, begin, end - begin);
  if (!old_->authors.each.empty()) {
    authors_.append(old_->authors.each, begin, end - begin);
  }
  return true;
}

void Rewriter::finish() {
  old_->meter->write(uncounted_bytes_);
  old_->text = std::move(out_);
  if (!old_->authors.each.empty()) {
    if (authors_.empty()) {
      old_->authors.only = Author::kUser;  // nothing is left
    }
    old_->authors.each = std::move(authors_);
  }
  old_->origin_bytes = origin_bytes_;
}

}  // namespace quire::text
