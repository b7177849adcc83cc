// LooseReader: reads values as models write them in calls, of Python and of Gemma 4, and writes
// them as JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire::text::answer {

// Reads from the beginning of a text. Every method returns nullopt or false for what does not
// parse, and the reader is of no use then. Depth is bounded.
class LooseReader {
 public:
  // Borrows the text. `quote` opens and closes a text without escapes: `<|"|>` of Gemma 4. Empty:
  // texts are Python's.
  LooseReader(std::string_view text, std::string_view quote) : rest_(text), quote_(quote) {}

  // Reads a name: letters, digits, "_", "-" and ".".
  [[nodiscard]] std::optional<std::string> name();
  // Drops blanks and then the prefix, if it comes.
  bool skip(std::string_view prefix);
  // Reads members `name SEPARATOR value`, between commas, up to `close`. Returns a JSON object.
  [[nodiscard]] std::optional<std::string> members(char separator, char close, int depth = 0);
  // Returns true at the end of the text.
  [[nodiscard]] bool at_end();

 private:
  [[nodiscard]] std::optional<std::string> value(int depth);
  [[nodiscard]] std::optional<std::string> list(int depth);
  [[nodiscard]] std::optional<std::string> text();
  [[nodiscard]] std::optional<std::string> python_text(char quote);
  [[nodiscard]] std::optional<std::string> word();
  [[nodiscard]] bool is_text() const;
  void skip_blanks();

  std::string_view rest_;
  std::string_view quote_;
};

}  // namespace quire::text::answer
