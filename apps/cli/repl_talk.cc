// The commands of `quire chat` on the conversation: asking, answers, branches, settings, help.
#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "output.h"
#include "quire/context.h"
#include "quire/output.h"
#include "quire/result.h"
#include "repl.h"
#include "repl_text.h"

namespace quire::cli {
namespace {

namespace json = boost::json;

std::string short_id(const std::string& id) { return id.substr(0, kShownDigits); }

bool is_turn(const ContextItem& item) {
  return item.kind == ItemKind::kUser || item.kind == ItemKind::kOutput;
}

Status infer(Repl& repl, const Arguments& arguments) {
  return repl.ask(arguments.text.empty() ? std::nullopt : std::optional(arguments.text));
}

Status conversation(Repl& repl, const Arguments& /*arguments*/) {
  std::string text;
  QUIRE_TRY(const std::vector<ContextItem> items, repl.context().items());
  for (const ContextItem& item : items) {
    if (item.active && is_turn(item)) {
      const std::size_t start = std::min(item.text.find_first_not_of(" \n"), item.text.size());
      const bool stopped = std::ranges::find(item.tags, kStoppedTag) != item.tags.end();
      text += std::string(item_kind_name(item.kind)) + ": " + item.text.substr(start) +
              (stopped ? " (stopped)" : "") + "\n";
    }
  }
  return print(text);
}

Status new_conversation(Repl& repl, const Arguments& /*arguments*/) {
  QUIRE_TRY(const std::vector<ContextItem> items, repl.context().items());
  for (const ContextItem& item : items) {
    QUIRE_TRY_STATUS(is_turn(item) ? repl.context().deactivate(item.id) : Status());
  }
  return {};
}

Status forget(Repl& repl, const Arguments& /*arguments*/) {
  QUIRE_TRY(const std::int64_t items, repl.forget_turn());
  return print("forgot " + std::to_string(items) + (items == 1 ? " item\n" : " items\n"));
}

Status outputs(Repl& repl, const Arguments& /*arguments*/) {
  QUIRE_TRY(std::vector<ContextItem> items, repl.context().items());
  std::erase_if(items, [](const ContextItem& item) { return item.kind != ItemKind::kOutput; });
  return print(item_table(items, repl.colours()));
}

// Returns the id of the output that `name` means.
Result<std::string> find_output(Repl& repl, const std::string& name) {
  QUIRE_TRY(const ContextItem item, repl.context().show(name));
  if (item.kind != ItemKind::kOutput) {
    return {ErrorCode::kInvalidArgument, "\"" + name + "\" is a " + item_kind_name(item.kind) +
                                             " item, no output; /output lists those"};
  }
  return item.id;
}

Status use_output(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const std::string id, find_output(repl, arguments.ids.front()));
  return repl.context().activate(id);
}

Status delete_output(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const std::string id, find_output(repl, arguments.ids.front()));
  return repl.context().erase(id);
}

// Says how the KV of an active item came when it was needed, unless it was damaged.
std::string how_used(const ContextItem& before, const ReusePart& found) {
  constexpr std::string_view kHow[] = {"reused", "moved back from host memory",
                                       "read from the store", "computed"};
  if (before.tier == Tier::kDisk && !found.hit) {
    return "computed: " + found.reason;
  }
  return std::string(kHow[static_cast<std::uint8_t>(before.tier)]);
}

Status explain(Repl& repl, const Arguments& /*arguments*/) {
  const auto& last = repl.last();
  if (!last) {
    return {ErrorCode::kNotFound, "nothing was asked yet"};
  }
  const auto& [answer, before, parts] = *last;
  const GenerationOutput& output = answer.output;
  std::vector<std::vector<std::string>> rows;
  const auto add = [&rows](const ContextItem& item, std::string_view how) {
    rows.push_back({short_id(item.id), item_kind_name(item.kind),
                    std::to_string(item.token_ids.size()) + " tokens", std::string(how)});
  };
  for (std::size_t i = 0; i < before.size() && i < parts.size(); ++i) {
    add(before[i], how_used(before[i], parts[i]));
  }
  for (const std::string& id : {answer.user_id, answer.output_id}) {
    const auto item = repl.context().show(id);  // unless it was erased since
    if (item.ok()) {
      add(item.value(), id == answer.user_id ? "new" : "generated");
    }
  }
  std::string text = format_listing(
      json::object{{"grade", reuse_grade_name(output.reuse.grade)},
                   {"prompt_tokens", output.usage.prompt_tokens},
                   {"reused_tokens", output.usage.cached_tokens},
                   {"computed_tokens", output.usage.prompt_tokens - output.usage.cached_tokens},
                   {"generated_tokens", output.usage.completion_tokens},
                   {"finish_reason", finish_reason_name(output.finish_reason)}});
  for (const auto& [source, tokens] : output.reuse.sources) {
    text += "from " + source + ": " + std::to_string(tokens) + " tokens\n";
  }
  for (const std::string& line : format_table(rows)) {
    text += line + "\n";
  }
  return print(text);
}

Status stats(Repl& repl, const Arguments& /*arguments*/) {
  QUIRE_TRY(const ContextStats stats, repl.context().stats());
  std::string text = format_listing(json::object{{"items", stats.items},
                                                 {"active_items", stats.active_items},
                                                 {"active_tokens", stats.active_tokens},
                                                 {"device_items", stats.device_items},
                                                 {"device_bytes", stats.device_bytes},
                                                 {"host_items", stats.host_items},
                                                 {"host_bytes", stats.host_bytes},
                                                 {"disk_items", stats.disk_items},
                                                 {"saved_items", stats.saved_items},
                                                 {"tokens_computed", stats.tokens_computed},
                                                 {"tokens_reused", stats.tokens_reused}});
  if (const auto& last = repl.last()) {
    text += "last answer: " + summary(last->answer.output) + "\n";
  }
  return print(text);
}

Status set(Repl& repl, const Arguments& arguments) {
  if (!arguments.text.empty()) {
    QUIRE_TRY_STATUS(repl.set(arguments.word, arguments.text));
  }
  QUIRE_TRY(const std::string listing, settings_listing(repl.sampling(), arguments.word));
  return print(listing);
}

Status print_branch(Repl& repl) { return print("on branch " + repl.branches().current() + "\n"); }

Status fork(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY_STATUS(repl.branches().fork(arguments.word));
  return print_branch(repl);
}

Status switch_branch(Repl& repl, const Arguments& arguments) {
  if (!arguments.word.empty()) {
    QUIRE_TRY_STATUS(repl.branches().switch_to(arguments.word));
    return print_branch(repl);
  }
  std::string text;
  for (const std::string& name : repl.branches().names()) {
    text += (name == repl.branches().current() ? "* " : "  ") + name + "\n";
  }
  return print(text);
}

Status checkpoint(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY_STATUS(repl.branches().checkpoint(arguments.word));
  return print("checkpoint " + repl.branches().checkpoints().back() + "\n");
}

Status rollback(Repl& repl, const Arguments& arguments) {
  QUIRE_TRY(const std::int64_t later, repl.branches().rollback(arguments.word));
  return print("at checkpoint " + repl.branches().checkpoints().back() + "; " +
               std::to_string(later) + " later items taken back\n");
}

Status help(Repl& /*repl*/, const Arguments& arguments) {
  const LineCommands commands;
  if (arguments.word.empty()) {
    return print(
        "A line without a slash is a question. Items are named by id, the beginning of an\n"
        "id, or name. \"\"\" begins a text of several lines, and ends it; what is pasted on a\n"
        "terminal is one question. Ctrl-C ends an answer, which stays as far as it is; twice\n"
        "in a row at the prompt it leaves.\n" +
        commands.table(kTalkGroup) + kItemGroup + ":\n" + commands.table(kItemGroup));
  }
  const std::string& name = arguments.word;
  QUIRE_TRY(const std::string text, commands.help(name.substr(name.starts_with('/') ? 1 : 0)));
  return print(text);
}

Status leave(Repl& repl, const Arguments& /*arguments*/) {
  repl.leave();
  return {};
}

void declare_asking(LineCommands& commands) {
  commands.add("infer", "an answer behind all active items", &infer)
      .text("TEXT", Presence::kOptional)
      .more(
          "TEXT becomes a question, as a line without a slash; without it the assistant just goes "
          "on.\n");
  commands.add("query", "a question, as a line without a slash; it may begin with one here", &infer)
      .text("TEXT")
      .more(
          "The question is asked at once and becomes an item of kind user, its answer one of kind\n"
          "output: a query is not prepared beforehand, only what stands before it (/add, "
          "/compose).\n");
  commands.add("conversation", "the questions and answers that are switched on", &conversation);
  commands.add("new", "a new conversation: questions and answers so far are switched off",
               &new_conversation);
  commands.add("forget", "takes back the last question and what was answered", &forget)
      .more(
          "Their items are erased; those that a branch, a checkpoint or the store has are switched "
          "off.\n"
          "Without a question that is on, the answers that are on are taken back.\n");
}

void declare_looking(LineCommands& commands) {
  commands.add("output", "all answers, with their ids", &outputs);
  commands.add("use-output", "switches an answer on", &use_output).id();
  commands.add("delete-output", "forgets an answer everywhere", &delete_output).id();
  commands
      .add("explain", "what the last answer stood on, what was reused and what computed", &explain)
      .more(
          "grade: exact has the bits of a plain prompt, equal_math the same function in another "
          "order\n"
          "of rounding, approximate has items that have not seen all before them.\n");
  commands.add("stats", "counts of items, bytes and tokens; times of the last answer", &stats);
  commands.add("set", "how answers are sampled; without a value shows it", &set)
      .word("SETTING")
      .text("TEXT", Presence::kOptional)
      .more(
          "Settings are the sampling options of the command line. The value \"default\" takes one "
          "back\n"
          "to what it was at the start.\n");
}

void declare_branching(LineCommands& commands) {
  commands.add("fork", "goes on in a new branch, which begins as this one", &fork)
      .word("BRANCH")
      .more(
          "A branch is which items there are and which are switched on. Its items are shared with "
          "the\n"
          "others; nothing is computed.\n");
  commands.add("switch", "goes on in another branch; without a name lists them", &switch_branch)
      .word("BRANCH")
      .more("Items that the other branch does not know are switched off. Nothing is computed.\n");
  commands.add("checkpoint", "remembers this moment of the branch", &checkpoint).word("CHECKPOINT");
  commands.add("rollback", "back to a checkpoint of the branch, or to the last one", &rollback)
      .word("CHECKPOINT")
      .more(
          "Items that came later are erased; those that another branch or the store has are "
          "switched\n"
          "off. Later checkpoints are forgotten, this one stays.\n");
}

void declare_leaving(LineCommands& commands) {
  commands.add("help", "this list, or more about one command; so does /?", &help).word("COMMAND");
  commands.add("?", "as /help", &help).word("COMMAND");
  commands.add("exit", "leaves; so do /quit, /bye, q, and the end of input", &leave);
  commands.add("quit", "leaves", &leave);
  commands.add("bye", "leaves", &leave);
}

}  // namespace

void declare_talk_commands(LineCommands& commands) {
  commands.begin_group(kTalkGroup);
  declare_asking(commands);
  declare_looking(commands);
  declare_branching(commands);
  declare_leaving(commands);
}

}  // namespace quire::cli
