#include "line_reader.h"

#include <fcntl.h>
#include <histedit.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <cwctype>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "interrupts.h"
#include "quire/interrupt.h"

namespace quire::cli {
namespace {

constexpr int kHistoryLines = 1000;

constexpr std::string_view kWordEnds = " \t";

// Bracketed paste: asked for while a line is edited, the terminal marks what is pasted.
constexpr const char* kMarkPastes = "\x1b[?2004h";
constexpr const char* kMarkNoPastes = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

void mark_pastes(bool on) {
  const char* const terminal = std::getenv("TERM");
  if (terminal != nullptr && std::string_view(terminal) != "dumb") {
    std::fputs(on ? kMarkPastes : kMarkNoPastes, stdout);
    std::fflush(stdout);
  }
}

struct EndHistory {
  void operator()(History* lines) const { history_end(lines); }
};
using Lines = std::unique_ptr<History, EndHistory>;

Lines up_to(int count) {
  Lines lines(history_init());
  HistEvent event;
  history(lines.get(), &event, H_SETSIZE, count);
  return lines;
}

// Opens a file that only the user reads, to write at its end. Makes it when it is not there.
// Returns a negative number if it cannot.
int open_private(const std::string& path) {
  const int file =
      open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
  if (file >= 0 && fchmod(file, S_IRUSR | S_IWUSR) != 0) {
    close(file);
    return -1;
  }
  return file;
}

// Writes the lines behind what the file has; whether all are there. A full disk is no reason to
// end: the line is known until the program ends.
bool append(const Lines& lines, const std::string& path) {
  const int descriptor = open_private(path);
  // NOLINTNEXTLINE(misc-include-cleaner): POSIX has it in <stdio.h>
  std::FILE* const file = descriptor < 0 ? nullptr : fdopen(descriptor, "a");
  if (file == nullptr) {
    return false;
  }
  // A file that is not empty gets no line that says what it is.
  std::fseek(file, 0, SEEK_END);
  HistEvent event;
  const bool written = history(lines.get(), &event, H_SAVE_FP, file) >= 0 && std::ferror(file) == 0;
  return std::fclose(file) == 0 && written;
}

// Returns the file where history stays; "" if it cannot stay.
std::string history_file() {
  namespace fs = std::filesystem;
  const char* state = std::getenv("XDG_STATE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (state != nullptr && *state == '/') {
    folder = state;
  } else if (home != nullptr && *home == '/') {
    folder = fs::path(home) / ".local" / "state";
  } else {
    return "";
  }
  folder /= "quire";
  std::error_code error;
  fs::create_directories(folder, error);
  std::string path = folder / "history";
  const int file = open_private(path);
  if (error || file < 0) {
    return "";
  }
  close(file);
  return path;
}

// Returns the longest beginning that all words share.
std::string common_beginning(const std::vector<std::string>& words) {
  std::string common = words.front();
  for (const std::string& word : words) {
    const auto differ = std::ranges::mismatch(common, word);
    common.erase(differ.in1, common.end());
  }
  return common;
}

}  // namespace

struct LineReader::Editor {
  Editor(Interrupts& interrupts_in, Completer completer_in)
      : interrupts(interrupts_in),
        completer(std::move(completer_in)),
        editor(el_init("quire", stdin, stdout, stderr)) {
    HistEvent event;
    history(lines.get(), &event, H_SETUNIQUE, 1);
    if (!file.empty()) {
      const int loaded = history(lines.get(), &event, H_LOAD, file.c_str());
      if (loaded < 0 || loaded > 2 * kHistoryLines) {  // new or damaged; else long enough
        begin_file();
      }
    }
    el_set(editor, EL_CLIENTDATA, this);
    el_set(editor, EL_PROMPT, show_prompt);
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, history, lines.get());
    el_set(editor, EL_GETCFN, read_character);
    // The narrow form copies both texts and never frees them.
    el_wset(editor, EL_ADDFN, L"quire-complete", L"completes the last word", complete);
    el_set(editor, EL_BIND, "^I", "quire-complete", nullptr);
    el_wset(editor, EL_ADDFN, L"quire-paste", L"takes pasted lines as one", paste);
    el_set(editor, EL_BIND, "\\e[200~", "quire-paste", nullptr);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;
  ~Editor() { el_end(editor); }

  static Editor& of(EditLine* editor) {
    Editor* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *self;
  }

  static char* show_prompt(EditLine* editor) { return of(editor).prompt.data(); }

  // Handles the tab key: completes the last word as far as its choices agree, and lists them when
  // several are left.
  static unsigned char complete(EditLine* editor, std::wint_t /*key*/) {
    const LineInfo* info = el_line(editor);
    const std::string typed(info->buffer, info->cursor);
    const std::string word = typed.substr(typed.find_last_of(kWordEnds) + 1);
    std::vector<std::string> choices = of(editor).completer(typed);
    std::erase_if(choices, [&](const std::string& choice) { return !choice.starts_with(word); });
    if (choices.empty()) {
      return CC_REFRESH_BEEP;
    }
    std::ranges::sort(choices);
    std::string grown = common_beginning(choices);
    if (choices.size() == 1 && !grown.ends_with('/')) {
      grown += ' ';
    }
    if (grown.size() > word.size()) {
      el_insertstr(editor, grown.c_str() + word.size());
      return CC_REFRESH;
    }
    std::fputs("\n", stdout);
    for (const std::string& choice : choices) {
      std::fprintf(stdout, "%s  ", choice.c_str());
    }
    std::fputs("\n", stdout);
    return CC_REDISPLAY;
  }

  // Reads text pasted into the terminal as one line, and does not enter it.
  static unsigned char paste(EditLine* editor, std::wint_t /*key*/) {
    std::wstring text;
    for (wchar_t c = 0; !text.ends_with(kPasteEnd) && el_wgetc(editor, &c) == 1;) {
      text += c == L'\r' ? L'\n' : c;
    }
    text.resize(text.size() - (text.ends_with(kPasteEnd) ? kPasteEnd.size() : 0));
    text.resize(text.find_last_not_of(L'\n') + 1);
    std::erase_if(text,
                  [](wchar_t c) { return c != L'\n' && c != L'\t' && std::iswcntrl(c) != 0; });
    el_winsertstr(editor, text.c_str());
    return CC_REFRESH;
  }

  // Reads a character for libedit: 1 with a character, 0 at the end of input or a Ctrl-C.
  static int read_character(EditLine* editor, wchar_t* out) {
    const Editor& self = of(editor);
    std::mbstate_t state{};
    while (true) {
      pollfd input{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
      const int ready = poll(&input, 1, kInterruptPollMs);
      if (self.interrupts.pending()) {
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
        continue;  // a terminal makes this of a Ctrl-D typed before the editor had it
      }
      const std::size_t used = std::mbrtowc(out, &byte, 1, &state);
      if (used == 1) {
        return 1;
      }
      if (used == static_cast<std::size_t>(-1)) {
        state = {};  // no UTF-8: leave the byte out
      }
    }
  }

  // Remembers the line, also in the file, as soon as it was entered: a session may be killed, and
  // several may write.
  void remember(const std::string& line) const {
    HistEvent event;
    const bool is_new = history(lines.get(), &event, H_ENTER, line.c_str()) > 0;
    if (is_new && !file.empty()) {
      const Lines last = up_to(1);
      history(last.get(), &event, H_ENTER, line.c_str());
      append(last, file);
    }
  }

  // Begins the file anew, with the lines that were loaded of it.
  void begin_file() const {
    const std::string begun = file + ".new";
    std::remove(begun.c_str());
    if (append(lines, begun)) {
      std::rename(begun.c_str(), file.c_str());
    } else {
      std::remove(begun.c_str());
    }
  }

  Interrupts& interrupts;
  const Completer completer;
  const std::string file = history_file();
  std::string prompt;
  EditLine* editor;
  const Lines lines = up_to(kHistoryLines);
};

LineReader::LineReader(Interrupts& interrupts, Completer completer) {
  if (isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
    editor_ = std::make_unique<Editor>(interrupts, std::move(completer));
  }
}

LineReader::~LineReader() = default;

LineResult LineReader::next(const std::string& prompt, std::string& line) {
  if (editor_ == nullptr) {
    return std::getline(std::cin, line) ? LineResult::kLine : LineResult::kEnd;
  }
  editor_->prompt = prompt;
  editor_->interrupts.arm();
  int length = 0;
  mark_pastes(true);
  const char* text = el_gets(editor_->editor, &length);
  mark_pastes(false);
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
