// Regular expressions of tokenizer files: the dialect of Oniguruma's Ruby syntax, which Hugging
// Face `tokenizers` uses, run by PCRE2 with JIT.
//
// Thread rule: a Regex is immutable; each thread makes its own Matcher.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "quire/base/work_meter.h"
#include "quire/result.h"

namespace quire::text {

// Rewrites an Oniguruma (Ruby) pattern so that PCRE2 means the same. \s, \w, \b, \h follow Unicode
// properties, and ^ and $ match at lines. (?m) is dot-all, x{n,m}+ a repeated repetition, and
// classes nest. kUnsupported naming what has no counterpart (class intersections, \W inside a
// class, ...).
[[nodiscard]] Result<std::string> translate_pattern(std::string_view pattern);

class Regex {
 public:
  // Compiles a pattern. kInvalidArgument with PCRE2's message and offset; kUnsupported from
  // translate_pattern.
  [[nodiscard]] static Result<Regex> compile(std::string_view pattern);

  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

 private:
  friend class Matcher;
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Walks the matches of one regex. Regex and meter are borrowed and must outlive the object.
class Matcher {
 public:
  Matcher(const Regex& regex, base::WorkMeter& meter);
  ~Matcher();
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  struct Match {
    std::size_t begin;
    std::size_t end;  // may equal begin
  };
  // Returns the first match in well-formed `text` at or after `from`; text before `from` is seen by
  // look-behinds. Returns none when the meter, which counts the work, has failed.
  [[nodiscard]] std::optional<Match> find(std::string_view text, std::size_t from);

 private:
  // Looks for a match that starts in [from, last], with the code that takes few steps or gives up.
  enum class Quick : std::uint8_t { kFound, kNone, kGaveUp };
  [[nodiscard]] Quick find_quickly(std::string_view text, std::size_t from, std::size_t last);
  // Looks for it with the code that counts each item of the pattern.
  [[nodiscard]] bool find_counting(std::string_view text, std::size_t from, std::size_t last);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Calls `found(begin, end)` for every match, left to right, until it returns false. Empty matches
// advance by one character, and an empty match at the end of the previous one is skipped.
template <class Found>
void for_each_match(Matcher& matcher, std::string_view text, Found&& found) {
  std::size_t from = 0;
  std::optional<std::size_t> last_end;
  while (from <= text.size()) {
    const auto match = matcher.find(text, from);
    if (!match) {
      return;
    }
    const bool is_empty = match->begin == match->end;
    if ((!is_empty || last_end != match->end) && !found(match->begin, match->end)) {
      return;
    }
    last_end = match->end;
    from = match->end;
    if (is_empty) {
      do {
        ++from;
      } while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80);
    }
  }
}

}  // namespace quire::text
