// A pattern of a tokenizer file: a literal string or a regex.
//
// Thread rule: immutable; find calls may run on any number of threads.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "quire/base/json.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/regex.h"

namespace quire::text {

class Pattern {
 public:
  // Reads {"String": "..."} or {"Regex": "..."}; `where` names the owner in errors.
  [[nodiscard]] static Result<Pattern> from_json(base::JsonView value, std::string_view where);
  [[nodiscard]] static Pattern literal(std::string text) { return Pattern(std::move(text)); }
  [[nodiscard]] static Pattern regex(Regex regex) { return Pattern(std::move(regex)); }

  // Calls `found(begin, end)` for every match, left to right, without overlap, until it returns
  // false or `meter`, which counts the work, has failed. An empty literal never matches.
  template <class Found>
  void for_each(std::string_view text, base::WorkMeter& meter, Found&& found) const {
    if (const auto* regex = std::get_if<Regex>(&what_)) {
      Matcher matcher(*regex, meter);
      for_each_match(matcher, text, found);
      return;
    }
    const auto& literal = std::get<std::string>(what_);
    if (literal.empty()) {
      return;
    }
    std::size_t from = 0;
    for (std::size_t at = text.find(literal); at != std::string_view::npos;
         at = text.find(literal, from)) {
      if (!meter.step_bytes(at - from) || !found(at, at + literal.size())) {
        return;
      }
      from = at + literal.size();
    }
    meter.step_bytes(text.size() - from);
  }

  // Returns `text` with every match replaced by `content` (taken literally); cut short when `meter`
  // has failed.
  [[nodiscard]] std::string replace_all(std::string_view text, std::string_view content,
                                        base::WorkMeter& meter) const;
  // Returns the literal, or null for a regex.
  [[nodiscard]] const std::string* literal_text() const { return std::get_if<std::string>(&what_); }

 private:
  explicit Pattern(std::string literal) : what_(std::move(literal)) {}
  explicit Pattern(Regex regex) : what_(std::move(regex)) {}

  std::variant<std::string, Regex> what_;
};

}  // namespace quire::text
