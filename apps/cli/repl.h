// The REPL of `quire chat`: a context with its branches, questions to it, and the state that the
// commands of commands.h work on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "branches.h"
#include "commands.h"
#include "interrupts.h"
#include "line_reader.h"
#include "options.h"
#include "quire/context.h"
#include "quire/llm.h"
#include "quire/options.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::cli {

// Tag of answers that Ctrl-C has ended.
inline constexpr std::string_view kStoppedTag = "stopped";

struct ReplOptions {
  Format format = Format::kText;  // format of answers
  bool verbose = false;           // times and reuse on stderr
  bool echo = false;              // show each line before its effect
  bool has_store = false;
  std::string banner;  // shown at the start of a session on a terminal
  SamplingParams sampling;
  RequestOptions request;  // of each answer
};

class Repl {
 public:
  // Makes the REPL. `interrupts` must outlive it. Not movable: its parts refer to each other.
  Repl(LLM llm, ContextManager context, ReplOptions options, Interrupts& interrupts);
  Repl(const Repl&) = delete;
  Repl& operator=(const Repl&) = delete;

  // Reads lines and runs them until the end, or until nothing can be printed; returns the exit
  // code. A line that fails changes nothing, and the next one is read.
  [[nodiscard]] int loop();

  // Commands call the functions below.

  // Asks, prints the answer as it comes, and keeps its facts for /explain. Ctrl-C ends the answer:
  // its text so far stays, tagged kStoppedTag. Without text the assistant goes on.
  [[nodiscard]] Status ask(const std::optional<std::string>& text);
  // Returns an interrupt by which Ctrl-C ends a call.
  [[nodiscard]] Interrupt interrupt() const;
  // Returns the ids of the items that `names` mean: all of them, or the first error.
  [[nodiscard]] Result<std::vector<std::string>> ids_of(std::span<const std::string> names) const;
  // Sets `name` to `value` for the next answers. kInvalidArgument naming what is wrong.
  [[nodiscard]] Status set(const std::string& name, const std::string& value);
  void leave() { leaving_ = true; }
  // Takes back the last turn of the conversation; returns how many items it had. kNotFound.
  [[nodiscard]] Result<std::int64_t> forget_turn();
  // Forgets branches and the last answer: their items are gone.
  void forget_history();

  struct LastAnswer {
    ContextManager::Answer answer;
    std::vector<ContextItem> before;  // the active items before it, as they were
    std::vector<ReusePart> parts;     // the reuse of each of them
  };
  [[nodiscard]] const std::optional<LastAnswer>& last() const { return last_; }
  [[nodiscard]] const SamplingParams& sampling() const { return sampling_; }
  [[nodiscard]] LLM& llm() { return llm_; }
  [[nodiscard]] ContextManager& context() { return context_; }
  [[nodiscard]] Branches& branches() { return branches_; }
  [[nodiscard]] bool has_store() const { return options_.has_store; }
  // Returns whether to use colours: on a terminal, unless the environment sets NO_COLOR.
  [[nodiscard]] bool colours() const;

 private:
  // Reads the lines of a text that opens with """, until one closes it. The text takes its place in
  // `line`; `quoted` says that it stands at the beginning.
  [[nodiscard]] LineResult read_text_block(std::string& line, bool& quoted);
  // Handles a line. `quoted`: a question, whatever it begins with.
  [[nodiscard]] Status handle(const std::string& line, bool quoted);
  [[nodiscard]] Status command(std::string_view line);
  [[nodiscard]] Status report();
  [[nodiscard]] std::string prompt() const;
  // Returns words that may replace the last word of `line`.
  [[nodiscard]] std::vector<std::string> complete(std::string_view line) const;

  const ReplOptions options_;
  LLM llm_;
  ContextManager context_;
  Branches branches_;
  SamplingParams sampling_;
  std::map<std::string, std::string> settings_;  // settings that /set has changed
  std::optional<LastAnswer> last_;
  Interrupts& interrupts_;
  LineReader reader_;
  bool leaving_ = false;
};

}  // namespace quire::cli
