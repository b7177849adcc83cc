// Splitter: tells the parts of an answer apart as its marked text comes.
//
// Thread rule: one thread per object.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "quire/text/answer/parts.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {

// Limit of one call's text. A longer one stays text.
constexpr std::size_t kMaxCallBytes = std::size_t{1} << 20;

// What every way of splitting does. The result does not depend on where the text is cut, as long as
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

// Makes the splitter of a style; null for kPlain. `prompt_end` is the end of the prompt as marked
// text, which may have opened thinking or a message. `parts` and `schemas` are borrowed. Without
// tools, calls stay text.
[[nodiscard]] std::unique_ptr<Splitter> make_splitter(const Style& style,
                                                      std::string_view prompt_end,
                                                      const ToolSchemas& schemas, Parts& parts);

}  // namespace quire::text::answer
