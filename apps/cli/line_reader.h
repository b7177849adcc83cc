// Reads one line of input after the other: edited on a terminal, plain through a pipe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "interrupts.h"

namespace quire::cli {

enum class LineResult : std::uint8_t { kLine, kEnd, kInterrupted };

// Returns words that may replace the last word of the text typed up to the cursor. Some may not fit
// it.
using Completer = std::function<std::vector<std::string>(std::string_view typed)>;

class LineReader {
 public:
  // Reads from stdin. Editing, completion by tab, history and a prompt need stdin and stdout to be
  // terminals. Each line is appended to a history file private to the user, below $XDG_STATE_HOME
  // or ~/.local/state. Where that fails, history lasts as long as the reader. `interrupts` must
  // outlive the reader.
  LineReader(Interrupts& interrupts, Completer completer);
  ~LineReader();

  // Reads the next line without its newline. Lines pasted on a terminal are one line, with newlines
  // in it. kInterrupted: Ctrl-C on a terminal; the typed text is gone.
  [[nodiscard]] LineResult next(const std::string& prompt, std::string& line);
  [[nodiscard]] bool interactive() const { return editor_ != nullptr; }

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // null through a pipe
};

}  // namespace quire::cli
