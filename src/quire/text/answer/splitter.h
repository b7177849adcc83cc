// Splitter: tells the parts of an answer apart as its marked text comes.
//
// Thread rule: one thread per object.
#pragma once

#include <cstddef>
#include <string_view>

namespace quire::text::answer {

// Limit of one call's text. A longer one stays text.
constexpr std::size_t kMaxCallBytes = std::size_t{1} << 20;

// A way of splitting. The result does not depend on where the text is cut, as long as
// each special token comes whole.
class Splitter {
 public:
  Splitter() = default;
  Splitter(const Splitter&) = delete;
  Splitter& operator=(const Splitter&) = delete;
  virtual ~Splitter() = default;

  // Takes more marked text.
  virtual void push(std::string_view marked) = 0;
  // Takes the end of the answer.
  virtual void finish() = 0;
  // Returns true while what comes next is thinking.
  [[nodiscard]] virtual bool is_thinking() const = 0;
};

}  // namespace quire::text::answer
