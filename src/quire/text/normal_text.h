// Text on its way through the normalizers, which remembers who wrote each byte of it.
//
// Thread rule: one thread per object.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "quire/base/work_meter.h"

namespace quire::text {

// The author of a byte, in rising order of distrust.
enum class Author : char {
  kTemplate,  // the model's files, or a caller whose special tokens count
  kApart,     // as kTemplate, behind an empty text of a user: no token reaches over that place
  kName,      // a word that the caller gives to the template: a role, a plain variable
  kUser,      // special tokens spelled here are text
};

// One Author per byte of a text. Empty: all bytes have the author `only`.
struct Authors {
  std::string each;
  Author only = Author::kUser;

  [[nodiscard]] Author at(std::size_t byte) const {
    return each.empty() ? only : static_cast<Author>(each[byte]);
  }
  // Returns whether [begin, end) of the text may be a special token. No byte may be a user's, some
  // byte must be the template's, and each name that it touches must lie inside.
  [[nodiscard]] bool allow_special(std::size_t begin, std::size_t end) const;
};

struct NormalText {
  std::string text;  // well-formed UTF-8
  Authors authors;
  // Bytes at the start that stem from the first character of the whole input; 0: none.
  std::size_t origin_bytes = 0;
  base::WorkMeter* meter = nullptr;  // borrowed
};

// Makes a text anew from pieces that each stem from a stretch of the old one; these ascend.
class Rewriter {
 public:
  explicit Rewriter(NormalText& text) : old_(&text) { out_.reserve(text.text.size()); }

  // Appends `bytes`, which stem from [begin, end) of the old text; an empty stretch means the
  // characters beside it. The last byte says which character they stem from, as in the reference.
  // False when the meter has failed.
  bool add(std::string_view bytes, std::size_t begin, std::size_t end);
  bool add(char32_t c, std::size_t begin, std::size_t end);
  // Appends [begin, end) of the old text as it is.
  bool copy(std::size_t begin, std::size_t end);
  // Makes the appended text the new text.
  void finish();

 private:
  // Counts what was appended, a few kilobytes at a time.
  bool count(std::size_t bytes);

  NormalText* old_;
  std::string out_;
  std::string authors_;
  std::size_t origin_bytes_ = 0;
  std::size_t uncounted_bytes_ = 0;
};

}  // namespace quire::text
