#include "repl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
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
#include "options.h"
#include "output.h"
#include "quire/context.h"
#include "quire/fields.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/sampling.h"
#include "repl_text.h"

namespace quire::cli {
namespace {

// Words that leave without a slash, as people type them.
bool means_exit(std::string_view line) { return line == "q" || line == "quit" || line == "exit"; }

}  // namespace

Repl::Repl(LLM llm, ContextManager context, ReplOptions options, Interrupts& interrupts)
    : options_(std::move(options)),
      llm_(std::move(llm)),
      context_(std::move(context)),
      branches_(context_),
      sampling_(options_.sampling),
      interrupts_(interrupts),
      reader_(interrupts, [this](std::string_view line) { return complete(line); }) {}

int Repl::loop() {
  std::string line;
  bool interrupted_before = false;
  while (!leaving_) {
    const LineResult result = reader_.next(prompt(), line);
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
    const Status done = handle(line);
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

Status Repl::handle(const std::string& line) {
  if (options_.echo) {
    QUIRE_TRY_STATUS(print("> " + line + "\n"));
  }
  const std::string_view text = trimmed(line);
  if (text.empty()) {
    return {};
  }
  if (means_exit(text)) {
    leave();
    return {};
  }
  return text.front() == '/' ? command(text.substr(1)) : ask(std::string(text));
}

Status Repl::command(std::string_view line) {
  const std::string_view name = line.substr(0, line.find_first_of(kBlanks));
  const Command* command = find_command(name);
  if (command == nullptr) {
    return {ErrorCode::kInvalidArgument,
            "unknown command \"/" + std::string(name) + "\"; /help lists them"};
  }
  QUIRE_TRY(const Arguments arguments, parse_arguments(*command, line.substr(name.size())));
  return command->run(*this, arguments);
}

Interrupt Repl::interrupt() const {
  return [this] { return interrupts_.pending(); };
}

Status Repl::ask(const std::optional<std::string>& text) {
  std::vector<ContextItem> before = context_.items();
  std::erase_if(before, [](const ContextItem& item) { return !item.active; });
  QUIRE_TRY(std::vector<ReusePart> parts, context_.explain());
  const bool whole = options_.format == Format::kJson;
  bool line_open = false;
  ContextManager::Follow follow{.on_text = {}, .stop = interrupt()};
  if (!whole) {
    follow.on_text = [&line_open](std::string_view piece) {
      line_open = true;
      return print(piece);
    };
  }
  auto answer = context_.infer(text, sampling_, interrupt(), follow);
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

// What is said of an answer behind its text.
Status Repl::report() {
  const auto& [answer, before, parts] =
      *last_;  // NOLINT(bugprone-unchecked-optional-access): was set
  if (options_.format == Format::kJson) {
    QUIRE_TRY_STATUS(print(to_json(answer) + "\n"));
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
  if (blank == std::string_view::npos) {
    for (const std::string& name : command_names()) {
      all.push_back("/" + name);
    }
    return all;
  }
  const Command* command = find_command(line.substr(1, blank - 1));
  const auto wants = [command](std::string_view word) {
    return command != nullptr && command->usage.find(word) != std::string_view::npos;
  };
  if (wants("ID")) {
    for (const ContextItem& item : context_.items()) {
      all.push_back(item.name.empty() ? item.id.substr(0, kShownDigits) : item.name);
    }
  }
  add(wants("COMMAND") ? command_names() : std::vector<std::string>());
  add(wants("SETTING") ? setting_names() : std::vector<std::string>());
  add(wants("BRANCH") ? branches_.names() : std::vector<std::string>());
  add(wants("CHECKPOINT") ? branches_.checkpoints() : std::vector<std::string>());
  add(wants("FILE") ? files_like(line.substr(line.find_last_of(kBlanks) + 1))
                    : std::vector<std::string>());
  return all;
}

}  // namespace quire::cli
