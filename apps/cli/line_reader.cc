#include "line_reader.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cwchar>
#include <iostream>
#include <memory>
#include <string>

#include "interrupts.h"

namespace quire::cli {
namespace {

constexpr int kHistoryLines = 1000;
constexpr int kInterruptPollMs = 50;

char* prompt(EditLine* /*editor*/) {
  static char text[] = "> ";
  return text;
}

}  // namespace

struct LineReader::Editor {
  explicit Editor(Interrupts& interrupts_in)
      : interrupts(interrupts_in), editor(el_init("quire", stdin, stdout, stderr)) {
    HistEvent event;
    history(lines, &event, H_SETSIZE, kHistoryLines);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, prompt);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, history, lines);
    el_set(editor, EL_GETCFN, read_character);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;
  ~Editor() {
    history_end(lines);
    el_end(editor);
  }

  // libedit's source of characters: 1 with a character, 0 at the end of input or a Ctrl-C.
  static int read_character(EditLine* editor, wchar_t* out) {
    Editor* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    std::mbstate_t state{};
    while (true) {
      pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      const int ready = poll(&input, 1, kInterruptPollMs);
      if (self->interrupts.pending()) {
        return 0;
      }
      char byte = 0;
      if (ready <= 0) {
        continue;
      }
      if (read(STDIN_FILENO, &byte, 1) != 1) {
        return 0;
      }
      if (byte == '\0') {
        continue;  // what a terminal makes of a Ctrl-D typed before the editor had it
      }
      const std::size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == 1) {
        return 1;
      }
      if (used == static_cast<std::size_t>(-1)) {
        state = {};  // not UTF-8: leave the byte out
      }
    }
  }

  void remember(const std::string& line) const {
    HistEvent event;
    history(lines, &event, H_ENTER, line.c_str());
  }

  Interrupts& interrupts;
  EditLine* editor;
  History* lines = history_init();
};

LineReader::LineReader(Interrupts& interrupts) {
  if (isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
    editor_ = std::make_unique<Editor>(interrupts);
  }
}

LineReader::~LineReader() = default;

LineResult LineReader::next(std::string& line) {
  if (editor_ == nullptr) {
    return std::getline(std::cin, line) ? LineResult::kLine : LineResult::kEnd;
  }
  editor_->interrupts.arm();
  int length = 0;
  const char* text = el_gets(editor_->editor, &length);
  if (text == nullptr || length <= 0) {
    el_reset(editor_->editor);
    std::fputs("\n", stdout);
    std::fflush(stdout);
    return editor_->interrupts.pending() ? LineResult::kInterrupted : LineResult::kEnd;
  }
  line.assign(text, static_cast<std::size_t>(length));
  if (line.ends_with('\n')) {
    line.pop_back();
  }
  if (!line.empty()) {
    editor_->remember(line);
  }
  return LineResult::kLine;
}

}  // namespace quire::cli
