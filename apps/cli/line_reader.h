// One line of input after the other: edited on a terminal, plain through a pipe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "interrupts.h"

namespace quire::cli {

enum class LineResult : std::uint8_t { kLine, kEnd, kInterrupted };

class LineReader {
 public:
  // Editing, history and a prompt only when stdin and stdout are terminals. `interrupts` must
  // outlive the reader.
  explicit LineReader(Interrupts& interrupts);
  ~LineReader();

  // The next line without its newline. kInterrupted: Ctrl-C on a terminal; what was typed is gone.
  [[nodiscard]] LineResult next(std::string& line);
  [[nodiscard]] bool interactive() const { return editor_ != nullptr; }

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  // null through a pipe
};

}  // namespace quire::cli
