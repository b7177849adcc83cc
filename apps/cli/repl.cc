#include "repl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "commands.h"
#include "interrupts.h"
#include "line_reader.h"
#include "nearest.h"
#include "options.h"
#include "output.h"
#include "progress.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "repl_text.h"
#include "utf8.h"

namespace quire::cli {
namespace {

// Returns whether `line` is a word that leaves without a slash, as people type them.
bool means_exit(const std::string& line) {
  return line == "q" || line == "quit" || line == "exit" || line == "bye";
}

constexpr std::string_view kQuotes = "\"\"\"";

// Returns where a text in """ begins in `line`: at its beginning or behind a blank of a command.
// npos without one.
std::size_t opening_quotes(std::string_view line) {
  const std::size_t start = line.find_first_not_of(kBlanks);
  const std::size_t quotes = line.find(kQuotes);
  if (quotes == std::string_view::npos || quotes == start) {
    return quotes;
  }
  const bool in_command = line[start] == '/' && kBlanks.find(line[quotes - 1]) != kBlanks.npos;
  return in_command ? quotes : std::string_view::npos;
}

// Takes the quotes that close a text, and the blanks behind them, off `line`; whether they are
// there.
bool close_quotes(std::string& line) {
  const std::size_t end = line.find_last_not_of(kBlanks) + 1;
  const bool closes = std::string_view(line).substr(0, end).ends_with(kQuotes);
  line.resize(closes ? end - kQuotes.size() : line.size());
  return closes;
}

// Counts tokens of the items that will have to be computed.
std::int64_t missing_tokens(const std::vector<ReusePart>& parts) {
  std::int64_t tokens = 0;
  for (const ReusePart& part : parts) {
    tokens += part.hit ? 0 : part.tokens;
  }
  return tokens;
}

}  // namespace

Repl::Repl(LLM llm, ContextManager context, ReplOptions options, Interrupts& interrupts)
    : options_(std::move(options)),
      llm_(std::move(llm)),
      context_(std::move(context)),
      branches_(context_),
      sampling_(options_.sampling),
      interrupts_(interrupts),
      reader_(interrupts, [this](std::string_view line) { return complete(line); }) {}

bool Repl::colours() const {
  const char* const none = std::getenv("NO_COLOR");
  return reader_.interactive() && (none == nullptr || *none == '\0');
}

LineResult Repl::read_text_block(std::string& line, bool& quoted) {
  const std::size_t quotes = opening_quotes(line);
  quoted = quotes != std::string::npos && quotes == line.find_first_not_of(kBlanks);
  if (quotes == std::string::npos) {
    return LineResult::kLine;
  }
  const std::string before = line.substr(0, quotes);
  std::string text = line.substr(quotes + kQuotes.size());
  bool closed = close_quotes(text);
  for (std::string next; !closed;) {
    const LineResult result = reader_.next("... ", next);
    if (result == LineResult::kEnd) {
      note("(the text had no \"\"\" at its end)");
      break;
    }
    if (result == LineResult::kInterrupted) {
      return result;
    }
    closed = close_quotes(next);
    text += (text.empty() ? "" : "\n") + next;
  }
  line = (quoted ? "" : before) + text;
  return LineResult::kLine;
}

int Repl::loop() {
  if (reader_.interactive() && !print(options_.banner).ok()) {
    return kExitFailed;
  }
  std::string line;
  bool interrupted_before = false;
  while (!leaving_) {
    bool quoted = false;
    LineResult result = reader_.next(prompt(), line);
    if (result == LineResult::kLine) {
      result = read_text_block(line, quoted);
    }
    if (result == LineResult::kEnd) {
      break;
    }
    if (result == LineResult::kInterrupted) {
      if (std::exchange(interrupted_before, true)) {
        return kExitInterrupted;
      }
      note("(press Ctrl-C again or type /exit to leave)");
      continue;
    }
    interrupted_before = false;
    interrupts_.arm();
    line = repair_utf8(std::move(line), "the line");
    const Status done = handle(line, quoted);
    interrupts_.disarm();
    if (!done.ok()) {
      const int code = fail(done.error());
      if (cannot_print(done.error())) {
        return code;
      }
    }
  }
  return kExitOk;
}

std::string Repl::prompt() const {
  return branches_.names().size() == 1 ? "> " : branches_.current() + "> ";
}

Status Repl::handle(const std::string& line, bool quoted) {
  if (options_.echo) {
    QUIRE_TRY_STATUS(print("> " + line + "\n"));
  }
  const std::string_view text = trimmed(line);
  if (text.empty()) {
    return {};
  }
  if (quoted) {
    return ask(std::string(text));
  }
  const std::string word = in_lower_case(text);
  if (means_exit(word)) {
    leave();
    return {};
  }
  if (word == "?" || word == "help") {
    return command(word);
  }
  if (word == "clear") {
    return {ErrorCode::kInvalidArgument,
            "\"clear\" is /clear, which forgets items, or /new; /query clear asks the model"};
  }
  return text.front() == '/' ? command(text.substr(1)) : ask(std::string(text));
}

Status Repl::command(std::string_view line) {
  LineCommands commands;
  QUIRE_TRY(const ParsedLine parsed, commands.parse(line));
  return parsed.work(*this, parsed.arguments);
}

Interrupt Repl::interrupt() const {
  return [this] { return interrupts_.pending(); };
}

Status Repl::ask(const std::optional<std::string>& text) {
  QUIRE_TRY(std::vector<ContextItem> before, context_.items());
  std::erase_if(before, [](const ContextItem& item) { return !item.active; });
  QUIRE_TRY(std::vector<ReusePart> parts, context_.explain());
  const bool whole = options_.format == Format::kJson;
  bool line_open = false;
  ComputeProgress progress(llm_, missing_tokens(parts));
  ContextManager::Follow follow{.on_text = {}, .stop = interrupt()};
  follow.on_text = [whole, &line_open, &progress](std::string_view piece) {
    progress.end();
    line_open = !whole;
    return whole ? Status() : print(piece);
  };
  auto answer =
      context_.infer(text, sampling_, progress.beside(interrupt()), follow, options_.request);
  progress.end();
  if (!whole && (answer.ok() || line_open)) {
    const Status ended = print("\n");
    QUIRE_TRY_STATUS(answer.ok() ? ended : Status());
  }
  if (!answer.ok()) {
    return answer.error();
  }
  last_ = {
      .answer = std::move(answer).value(), .before = std::move(before), .parts = std::move(parts)};
  return report();
}

// Prints the report on an answer behind its text.
Status Repl::report() {
  const auto& [answer, before, parts] =
      *last_;  // NOLINT(bugprone-unchecked-optional-access): was set
  if (options_.format == Format::kJson) {
    QUIRE_TRY(const std::string text, to_json(answer));
    QUIRE_TRY_STATUS(print(text + "\n"));
  }
  if (options_.format == Format::kText && ended_at_once(answer.output)) {
    note("(the answer is empty: the model ended it at once)");
  }
  if (answer.output.finish_reason == FinishReason::kCancelled) {
    QUIRE_TRY_STATUS(context_.tag(answer.output_id, std::string(kStoppedTag)));
    note("(stopped; what is there of the answer is kept, /forget takes it back)");
  }
  if (options_.verbose) {
    note(summary(answer.output));
  }
  return {};
}

Result<std::vector<std::string>> Repl::ids_of(std::span<const std::string> names) const {
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    QUIRE_TRY(const ContextItem item, context_.show(name));
    ids.push_back(item.id);
  }
  return ids;
}

Status Repl::set(const std::string& name, const std::string& value) {
  std::string key = name;
  std::ranges::replace(key, '_', '-');
  auto settings = settings_;
  if (value == kDefault) {
    settings.erase(key);
  } else {
    settings[key] = value;
  }
  QUIRE_TRY(SamplingParams params, with_settings(options_.sampling, settings));
  QUIRE_TRY_STATUS(check_logprobs(params, options_.format));
  sampling_ = std::move(params);
  settings_ = std::move(settings);
  return {};
}

Result<std::int64_t> Repl::forget_turn() {
  QUIRE_TRY(const std::vector<std::string> forgotten, branches_.forget_turn());
  if (last_ && std::ranges::find(forgotten, last_->answer.output_id) != forgotten.end()) {
    last_.reset();
  }
  return std::ssize(forgotten);
}

void Repl::forget_history() {
  branches_.clear();
  last_.reset();
}

std::vector<std::string> Repl::complete(std::string_view line) const {
  std::vector<std::string> all;
  const auto add = [&all](const std::vector<std::string>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const std::size_t blank = line.find_first_of(kBlanks);
  if (!line.starts_with('/')) {
    return all;
  }
  const LineCommands commands;
  if (blank == std::string_view::npos) {
    for (const std::string& name : commands.names()) {
      all.push_back("/" + name);
    }
    return all;
  }
  const auto wants = [&commands, name = line.substr(1, blank - 1)](std::string_view argument) {
    return commands.takes(name, argument);
  };
  const auto items = context_.items();
  if (wants("ID") && items.ok()) {
    for (const ContextItem& item : *items) {
      all.push_back(item.name.empty() ? item.id.substr(0, kShownDigits) : item.name);
    }
  }
  add(wants("COMMAND") ? commands.names() : std::vector<std::string>());
  add(wants("SETTING") ? setting_names() : std::vector<std::string>());
  add(wants("BRANCH") ? branches_.names() : std::vector<std::string>());
  add(wants("CHECKPOINT") ? branches_.checkpoints() : std::vector<std::string>());
  add(wants("FILE") ? files_like(line.substr(line.find_last_of(kBlanks) + 1))
                    : std::vector<std::string>());
  return all;
}

}  // namespace quire::cli
